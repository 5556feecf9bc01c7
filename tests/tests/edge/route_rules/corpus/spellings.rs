//! Spellings of `/admin` that the authors of this project wrote. They guard against the return of known mistakes.

/// The spellings, separated by white space.
pub const SPELLINGS: [&str; 9] = [
    // The path itself, with ends that services ignore.
    r"/admin /admin/ /admin/users /admin? /admin?x=1 /admin/?/open /admin# /admin#/open /admin/. /admin/./ /admin//
     /admin/users/.. /admin/x/../users /admin%20 /admin%09 /admin. /admin..",
    // Empty segments and dots.
    r"//admin ///admin /./admin /././admin /.//admin //./admin /x/../admin /x//../admin /x/y/../../admin /x/./../admin
     /x/..//admin /open/../admin /open/../../admin /../admin /../../admin /..//admin /.../admin /open/.../admin
     /./x/.././admin /admin/../admin",
    // Encoded letters and dots.
    r"/%61dmin /%61%64%6d%69%6e /%61%64%6D%69%6E/users /adm%69n /admi%6e/ /%2e/admin /%2E/admin /x/%2e%2e/admin
     /x/%2E%2E/admin /x/.%2e/admin /x/%2e./admin /x/%2e%2E/%61dmin /open/%2e%2e/admin /%2e%2e/admin
     /%2e%2e/%2e%2e/admin /admin/%2e /admin/x/%2e%2e",
    // Encoded slashes and backslashes.
    r"/%2fadmin /%2Fadmin %2fadmin /admin%2f /admin%2fusers /admin%2Fusers /x/..%2fadmin /x/..%2Fadmin
     /x/%2e%2e%2fadmin /x%2f..%2fadmin /x%2f%2e%2e%2fadmin /open%2f..%2fadmin /.%2fadmin /\admin \admin /x\..\admin
     /x/..\admin /x\../admin /.\admin /admin\users /%5cadmin /%5Cadmin /x%5c..%5cadmin /x/..%5cadmin
     /x/%2e%2e%5cadmin /admin%5cusers",
    // Double encodings.
    r"/%2561dmin /%252e/admin /x/%252e%252e/admin /x/..%252fadmin /x/%252e%252e%252fadmin /%252fadmin /admin%252fusers
     /x/..%255cadmin /%25%36%31dmin /x/%25%32%65%25%32%65/admin",
    // Path parameters.
    r"/admin; /admin;x /admin;x=1 /admin;/users /admin;x=1/users /admin/;x/users /;/admin /;x/admin /;x=1/admin
     /x/..;/admin /x/..;y/admin /x/..;y=1/admin /x;y/../admin /x/.;/../admin /.;/admin /.;x/admin /x/..;/..;/admin
     /open/..;/admin /open;x/..;/admin /open/;/../admin /admin;jsessionid=1 /admin%3b /admin%3bx /admin%3Bx=1/users
     /x/..%3b/admin /%3b/admin /;%2f../admin /x/%2e%2e;/admin /x/..;%2fadmin /admin;%2f..%2fopen /open;/../admin
     /;/;/admin",
    // Ends of the path, and control characters.
    r"/admin%00 /admin%00/open /%00/admin /admin%00.html /admin%0a /admin%0d%0a /%0aadmin /admin%7f /admin%3f
     /admin%3fx /admin%23 /admin%23x /open%3f/../admin /open?/../admin /admin%3f/open /x%23/../admin
     /x/%3f/../../admin",
    // Invalid and overlong encodings, other scripts.
    r"/% /%a /%zzadmin /admin% /admin%2 /%u0061dmin /x/%u002e%u002e/admin /%c0%aeadmin /x/%c0%ae%c0%ae/admin
     /x/..%c0%afadmin /x/..%c1%9cadmin /%e0%80%afadmin /%ef%bc%8fadmin /x/%e2%80%a5/admin /%ef%bd%81dmin
     /x/..%ef%bc%8fadmin /admin%ff /%f0%80%80%afadmin /adm%c4%b1n",
    // Case, and forms of the request target other than a path.
    r"/Admin /ADMIN /aDmIn/users /%41dmin /x/../Admin http://service/admin http://service//admin
     http://service/x/../admin http://service/admin;x http://service%2fadmin http://open/admin * admin ./admin
     ../admin ?/admin /open/.. /open/../ /x/..; /:80/admin /@/../admin //service/admin //open//admin //open/../admin",
];
