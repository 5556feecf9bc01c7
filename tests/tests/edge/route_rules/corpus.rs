//! Hostile spellings of paths against services that normalize paths as nginx and as Tomcat do.
//!
//! The spellings are of the kinds that public lists of path traversals and of proxy bypasses contain: dots, slashes,
//! encodings, double and invalid encodings, path parameters, control characters, case.

use super::Fixture;
use countersign_tests::{HttpClient, RawRequest};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

const RULES: &str = r#"
[[rules]]
name = "admin"
path_prefix = "/admin"
require_permissions = ["admin"]

[[rules]]
name = "open"
path_prefix = "/"
allow_anonymous = true
"#;

const SPELLINGS: &[&str] = &[
    // The path itself, with ends that services ignore.
    "/admin",
    "/admin/",
    "/admin/users",
    "/admin?",
    "/admin?x=1",
    "/admin/?/open",
    "/admin#",
    "/admin#/open",
    "/admin/.",
    "/admin/./",
    "/admin//",
    "/admin/users/..",
    "/admin/x/../users",
    "/admin%20",
    "/admin%09",
    "/admin.",
    "/admin..",
    // Empty segments and dots.
    "//admin",
    "///admin",
    "/./admin",
    "/././admin",
    "/.//admin",
    "//./admin",
    "/x/../admin",
    "/x//../admin",
    "/x/y/../../admin",
    "/x/./../admin",
    "/x/..//admin",
    "/open/../admin",
    "/open/../../admin",
    "/../admin",
    "/../../admin",
    "/..//admin",
    "/.../admin",
    "/open/.../admin",
    "/./x/.././admin",
    "/admin/../admin",
    // Encoded letters and dots.
    "/%61dmin",
    "/%61%64%6d%69%6e",
    "/%61%64%6D%69%6E/users",
    "/adm%69n",
    "/admi%6e/",
    "/%2e/admin",
    "/%2E/admin",
    "/x/%2e%2e/admin",
    "/x/%2E%2E/admin",
    "/x/.%2e/admin",
    "/x/%2e./admin",
    "/x/%2e%2E/%61dmin",
    "/open/%2e%2e/admin",
    "/%2e%2e/admin",
    "/%2e%2e/%2e%2e/admin",
    "/admin/%2e",
    "/admin/x/%2e%2e",
    // Encoded slashes and backslashes.
    "/%2fadmin",
    "/%2Fadmin",
    "%2fadmin",
    "/admin%2f",
    "/admin%2fusers",
    "/admin%2Fusers",
    "/x/..%2fadmin",
    "/x/..%2Fadmin",
    "/x/%2e%2e%2fadmin",
    "/x%2f..%2fadmin",
    "/x%2f%2e%2e%2fadmin",
    "/open%2f..%2fadmin",
    "/.%2fadmin",
    "/\\admin",
    "\\admin",
    "/x\\..\\admin",
    "/x/..\\admin",
    "/x\\../admin",
    "/.\\admin",
    "/admin\\users",
    "/%5cadmin",
    "/%5Cadmin",
    "/x%5c..%5cadmin",
    "/x/..%5cadmin",
    "/x/%2e%2e%5cadmin",
    "/admin%5cusers",
    // Double encodings.
    "/%2561dmin",
    "/%252e/admin",
    "/x/%252e%252e/admin",
    "/x/..%252fadmin",
    "/x/%252e%252e%252fadmin",
    "/%252fadmin",
    "/admin%252fusers",
    "/x/..%255cadmin",
    "/%25%36%31dmin",
    "/x/%25%32%65%25%32%65/admin",
    // Path parameters.
    "/admin;",
    "/admin;x",
    "/admin;x=1",
    "/admin;/users",
    "/admin;x=1/users",
    "/admin/;x/users",
    "/;/admin",
    "/;x/admin",
    "/;x=1/admin",
    "/x/..;/admin",
    "/x/..;y/admin",
    "/x/..;y=1/admin",
    "/x;y/../admin",
    "/x/.;/../admin",
    "/.;/admin",
    "/.;x/admin",
    "/x/..;/..;/admin",
    "/open/..;/admin",
    "/open;x/..;/admin",
    "/open/;/../admin",
    "/admin;jsessionid=1",
    "/admin%3b",
    "/admin%3bx",
    "/admin%3Bx=1/users",
    "/x/..%3b/admin",
    "/%3b/admin",
    "/;%2f../admin",
    "/x/%2e%2e;/admin",
    "/x/..;%2fadmin",
    "/admin;%2f..%2fopen",
    "/open;/../admin",
    "/;/;/admin",
    // Ends of the path, and control characters.
    "/admin%00",
    "/admin%00/open",
    "/%00/admin",
    "/admin%00.html",
    "/admin%0a",
    "/admin%0d%0a",
    "/%0aadmin",
    "/admin%7f",
    "/admin%3f",
    "/admin%3fx",
    "/admin%23",
    "/admin%23x",
    "/open%3f/../admin",
    "/open?/../admin",
    "/admin%3f/open",
    "/x%23/../admin",
    "/x/%3f/../../admin",
    // Invalid and overlong encodings, other scripts.
    "/%",
    "/%a",
    "/%zzadmin",
    "/admin%",
    "/admin%2",
    "/%u0061dmin",
    "/x/%u002e%u002e/admin",
    "/%c0%aeadmin",
    "/x/%c0%ae%c0%ae/admin",
    "/x/..%c0%afadmin",
    "/x/..%c1%9cadmin",
    "/%e0%80%afadmin",
    "/%ef%bc%8fadmin",
    "/x/%e2%80%a5/admin",
    "/%ef%bd%81dmin",
    "/x/..%ef%bc%8fadmin",
    "/admin%ff",
    "/%f0%80%80%afadmin",
    "/adm%c4%b1n",
    // Case, and forms of the request target other than a path.
    "/Admin",
    "/ADMIN",
    "/aDmIn/users",
    "/%41dmin",
    "/x/../Admin",
    "http://service/admin",
    "http://service//admin",
    "http://service/x/../admin",
    "http://service/admin;x",
    "http://service%2fadmin",
    "http://open/admin",
    "*",
    "admin",
    "./admin",
    "../admin",
    "?/admin",
    "/open/..",
    "/open/../",
    "/x/..;",
    "/:80/admin",
    "/@/../admin",
    "//service/admin",
    "//open//admin",
    "//open/../admin",
];

/// How a service normalizes a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Normalization {
    /// Decodes, merges slashes, then resolves dots.
    Nginx,
    /// Removes path parameters, decodes, takes backslashes for slashes, merges slashes, then resolves dots.
    Tomcat,
    /// Like Tomcat, and removes path parameters again after decoding.
    Lenient,
}

impl Normalization {
    /// The path that the service serves; `None` if it refuses the path.
    fn apply(self, target: &str) -> Option<String> {
        let target = target.strip_prefix("http://").map_or(target, |rest| rest.split_at(rest.find('/').unwrap_or(0)).1);
        let path = target.split(['?', '#']).next()?;
        let without_parameters = |path: &str| -> String {
            path.split('/').map(|segment| segment.split(';').next().unwrap_or_default()).collect::<Vec<_>>().join("/")
        };
        let path = match self {
            Self::Nginx => decode(path)?,
            Self::Tomcat => decode(&without_parameters(path))?.replace('\\', "/"),
            Self::Lenient => without_parameters(&decode(&without_parameters(path))?.replace('\\', "/")),
        };
        let mut segments = Vec::new();
        for segment in path.strip_prefix('/')?.split('/') {
            match segment {
                "" | "." => {}
                ".." => drop(segments.pop()),
                segment => segments.push(segment),
            }
        }
        Some(format!("/{}", segments.join("/")))
    }
}

fn decode(path: &str) -> Option<String> {
    let bytes = path.as_bytes();
    let (mut decoded, mut index) = (Vec::new(), 0);
    while let Some(byte) = bytes.get(index) {
        if *byte == b'%' {
            let digits = path.get(index + 1..index + 3).filter(|it| it.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
            decoded.push(u8::from_str_radix(digits, 16).ok().filter(|byte| *byte != 0)?);
            index += 3;
        } else {
            decoded.push(*byte);
            index += 1;
        }
    }
    Some(String::from_utf8_lossy(&decoded).into_owned())
}

/// A service that answers `protected` for `/admin` and paths below it, and `open` for all others.
async fn start_service(normalization: Normalization) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !request.windows(4).any(|window| window == b"\r\n\r\n") {
                    if stream.read_buf(&mut request).await.is_ok_and(|read| read == 0) {
                        return;
                    }
                }
                let request = String::from_utf8_lossy(&request).into_owned();
                let path = request.split(' ').nth(1).and_then(|target| normalization.apply(target));
                let is_protected = |path: &str| path == "/admin" || path.starts_with("/admin/");
                let (status, body) = match path {
                    None => ("400 Bad Request", "refused"),
                    Some(path) if is_protected(&path) => ("200 OK", "protected"),
                    Some(_) => ("200 OK", "open"),
                };
                let response =
                    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
                let _closed = stream.write_all(response.as_bytes()).await;
            });
        }
    });
    port
}

#[tokio::test]
async fn no_protected_path_is_reached_without_permission() {
    let fixture = Fixture::start(RULES).await;
    let admin = fixture.token("admin", &["admin"]).await;
    for normalization in [Normalization::Nginx, Normalization::Tomcat, Normalization::Lenient] {
        let port = start_service(normalization).await;
        let service = HttpClient::plain(format!("http://127.0.0.1:{port}"));
        let envoy = fixture.envoy(port).await;
        let (mut protected, mut open) = (0, 0);
        for spelling in SPELLINGS {
            let direct = RawRequest::get(spelling).send(&service).await;
            protected += usize::from(direct.body == "protected");
            let response = RawRequest::get(spelling).send(&envoy.listener).await;
            assert_ne!(response.body, "protected", "{normalization:?}: {spelling}");
            open += usize::from(response.body == "open");
        }
        // Without the rules, many spellings reach the protected path. With them, paths with one reading stay open.
        assert!(protected >= 60, "{normalization:?}: {protected}");
        assert!(open >= 10, "{normalization:?}: {open}");
        for path in ["/admin", "/%61dmin/users", "/admin?x"] {
            let response = RawRequest::get(path).bearer(&admin).send(&envoy.listener).await;
            assert_eq!((response.status, response.body.as_str()), (200, Some("protected")), "{path}");
        }
        assert_eq!(RawRequest::get("/open").send(&envoy.listener).await.body, "open");
    }
}
