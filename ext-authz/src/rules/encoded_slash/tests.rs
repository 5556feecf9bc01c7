//! Tests of rules that allow encoded slashes. Most of them take the view of an attacker whose service decodes the slashes.

use super::*;
use crate::rules::{
    PathPattern, RequestTarget,
    tests::{rules, rules_from, selected},
};
use countersign_identity::{Permission, RoleName, ServiceId};
use proptest::prelude::*;

const REFUSED: &str = "path_ambiguous";

fn get(path: &str) -> RequestTarget<'_> {
    RequestTarget { method: "GET", host: "x", path }
}

fn assert_selected(rules: &RuleSet, cases: &[(&str, &str)]) {
    for (path, expected) in cases {
        assert_eq!(selected(rules, &format!("GET x {path}")), *expected, "{path}");
    }
}

#[test]
fn encoded_slash_is_a_character_of_a_segment_only_for_rules_that_allow_it() {
    let rules = rules_from(&[
        "package path = '/@scope%2Fname'; allow_encoded_slash = true",
        "project path_template = '/projects/{id}'; allow_encoded_slash = true",
        "branch path_template = '/repos/a%2fb/{branch}'; allow_encoded_slash = true",
        "files path_prefix = '/files'; allow_encoded_slash = true",
        "plain path_prefix = '/plain'",
    ]);
    assert_selected(
        &rules,
        &[
            ("/@scope%2fname", "package"),
            ("/@scope%2Fname/?q", "package"),
            ("/%40scope%2Fn%61me", "package"),
            ("/@scope/name", "-"),
            ("/@scope%2Fother", REFUSED),
            ("/projects/7", "project"),
            ("/projects/a%2Fb", "project"),
            ("/projects/a%2fb%2Fc", "project"),
            ("/projects/a/b", "-"),
            ("/projects%2Fa", REFUSED),
            ("/projects/a%2Fb/c", REFUSED),
            ("/repos/a%2Fb/c%2Fd", "branch"),
            ("/repos/a%2Fb/c", "branch"),
            ("/repos/a/b/c", "-"),
            ("/files/a%2Fb/c%2Fd/", "files"),
            ("/files%2Fa", REFUSED),
            ("/plain/a%2Fb", REFUSED),
            ("/other/a%2Fb", REFUSED),
        ],
    );
}

/// The service behind the rules decodes slashes before it selects a handler.
#[test]
fn protected_path_is_not_reached_through_an_encoded_slash() {
    let rules = rules_from(&[
        "open path_prefix = '/'; allow_anonymous = true; allow_encoded_slash = true",
        "admin path_prefix = '/admin'; require_permissions = 'admin'",
        "keys path_template = '/users/{id}/keys'; require_permissions = 'admin'",
    ]);
    for path in [
        "/admin%2Fusers",
        "/admin%2fusers/x",
        "/%61dmin%2Fusers",
        "/users%2F7%2Fkeys",
        "/users%2F7/keys",
        "/users/7%2Fkeys",
        "/users/7%2fkeys/",
        // The rules of these paths do not allow encoded slashes.
        "/admin/a%2Fb",
        "/users/a%2Fb/keys",
        // The decoded path has dot segments or empty segments.
        "/a%2F..%2Fadmin",
        "/a%2F%2e%2e%2Fadmin",
        "/a%2fb/..%2f..%2fadmin",
        "/..%2Fadmin",
        "/a/..%2F..%2Fadmin",
        "/a%2F../b",
        "/%2Fadmin",
        "/admin%2F",
        "/a%2F%2Fadmin",
        "/a%2F.%2Fadmin",
        "/./a%2Fb",
        // Another character has several readings.
        "/a%252F..%252Fadmin",
        "/admin%252Fusers",
        "/a%2F%252e%252e%2Fadmin",
        "/a%2F..%5Cadmin",
        "/a%5C..%5Cadmin",
        "/admin%5Cusers%2Fa",
        "/a%2F..;%2Fadmin",
        "/admin;a%2Fb",
        "/a%2Fb%00",
        "/a%2Fb%23",
        "/a%2F..%c0%afadmin",
    ] {
        assert_eq!(selected(&rules, &format!("GET x {path}")), REFUSED, "{path}");
    }
    let open = ["/a%2Fb", "/users/a%2Fb", "/users/a%2fb/names", "/administrators%2Fa", "/x/admin%2Fusers", "/"];
    assert_selected(&rules, &open.map(|path| (path, "open")));
}

/// A service may select a handler by the first segments as they were sent, and decode the rest.
#[test]
fn every_mixture_of_decoded_and_kept_slashes_is_a_reading() {
    let rules = rules_from(&[
        "project path_prefix = '/p'; require_roles = 'reader'; allow_encoded_slash = true",
        "settings path_template = '/p/{id}/settings/admin'; require_permissions = 'admin'",
    ]);
    assert_selected(
        &rules,
        &[
            ("/p/a%2Fb/settings%2Fadmin", REFUSED),
            ("/p/a/settings%2Fadmin", REFUSED),
            ("/p/a%2Fsettings/admin", REFUSED),
            ("/p/a%2Fb/settings%2Fother", "project"),
            ("/p/a%2Fb/settings/admin", REFUSED),
            ("/p/1%2F1/2%2F2/3%2F3/4%2F4", "project"),
            ("/p/1%2F1/2%2F2/3%2F3/4%2F4/5%2F5", REFUSED),
        ],
    );
}

#[test]
fn rule_of_another_reading_may_require_nothing_more() {
    let service = format!("service_id = '{}'", ServiceId::from_bits(10));
    let service = service.as_str();
    let selected = |own: &str, other: &str| {
        let own = format!("own path_template = '/p/{{id}}'; {own}; allow_encoded_slash = true");
        let other = format!("other path_template = '/p/{{a}}/{{b}}'; {other}");
        selected(&rules_from(&[&own, &other]), "GET x /p/a%2Fb")
    };
    for (own, other) in [
        ("", ""),
        ("require_roles = 'a'", "require_roles = 'a'"),
        ("require_roles = 'a'", ""),
        ("require_roles = 'a,b'", "require_roles = 'b'"),
        ("require_roles = 'a'", "any_role = 'a,b'"),
        ("any_role = 'a'", "any_role = 'a,b'"),
        ("require_permissions = 'x,y'", "require_permissions = 'x'"),
        ("require_permissions = 'x'", "any_permission = 'x,y'"),
        ("any_permission = 'x'", "any_permission = 'x,y'"),
        ("min_trust_score = 60", "min_trust_score = 50"),
        ("min_trust_score = 60", ""),
        ("", "allow_unassigned = true"),
        ("", "allow_anonymous = true"),
        ("allow_anonymous = true", "allow_anonymous = true"),
        ("require_roles = 'a'", "allow_anonymous = true"),
        ("forward_token = true", ""),
        ("", "dry_run = true"),
        ("dry_run = true", "dry_run = true"),
        ("mcp = {}", ""),
        (service, service),
    ] {
        assert_eq!(selected(own, other), "own", "{own} | {other}");
    }
    for (own, other) in [
        ("", "require_roles = 'a'"),
        ("require_roles = 'a'", "require_roles = 'a,b'"),
        ("require_roles = 'b'", "require_roles = 'a'"),
        ("any_role = 'a,b'", "require_roles = 'a'"),
        ("any_role = 'a,b'", "any_role = 'a'"),
        ("", "any_role = 'a,b'"),
        ("require_roles = 'a'", "require_permissions = 'x'"),
        ("require_permissions = 'x'", "require_roles = 'a'"),
        ("require_permissions = 'x'", "require_permissions = 'x,y'"),
        ("any_permission = 'x,y'", "any_permission = 'x'"),
        ("min_trust_score = 50", "min_trust_score = 60"),
        ("", "min_trust_score = 0"),
        ("allow_unassigned = true", ""),
        ("allow_anonymous = true", ""),
        ("allow_anonymous = true", "allow_unassigned = true"),
        ("allow_anonymous = true; allow_unassigned = true", "allow_anonymous = true"),
        ("dry_run = true", ""),
        ("", "require_roles = 'a'; dry_run = true"),
        ("", "mcp = {}"),
        (service, ""),
        ("", service),
    ] {
        assert_eq!(selected(own, other), REFUSED, "{own} | {other}");
    }
}

#[test]
fn default_counts_for_other_readings_and_never_allows_encoded_slashes() {
    let selected = |default: &str, rule: &str, path: &str| {
        let rule =
            format!("[[rules]]\nname = 'own'\npath_template = '/p/{{id}}'\n{rule}\nallow_encoded_slash = true\n");
        selected(&rules(&format!("{default}\n{rule}")), &format!("GET x {path}"))
    };
    for (default, rule, expected) in [
        ("", "", "own"),
        ("", "require_roles = 'a'", "own"),
        ("", "allow_anonymous = true", REFUSED),
        ("", "allow_unassigned = true", REFUSED),
        ("", "dry_run = true", REFUSED),
        ("[default]\nallow_anonymous = true", "allow_anonymous = true", "own"),
        ("[default]\ndry_run = true", "dry_run = true", "own"),
        ("[default]\nrequire_permissions = 'x'", "require_permissions = 'x'", "own"),
        ("[default]\nrequire_permissions = 'x'", "require_roles = 'a'", REFUSED),
    ] {
        assert_eq!(selected(default, rule, "/p/a%2Fb"), expected, "{default} | {rule}");
        assert_eq!(selected(default, rule, "/q/a%2Fb"), REFUSED, "{default} | {rule}");
    }
    // Rules for the decoded paths, too, make encoded slashes usable under a stricter default.
    let strict = "[default]\nrequire_permissions = 'x'\n[[rules]]\nname = 'decoded'\nany_role = 'a,b'\n";
    for decoded in ["path_template = '/p/{group}/{id}'", "path_prefix = '/p'"] {
        let default = format!("{strict}{decoded}");
        assert_eq!(selected(&default, "require_roles = 'a'", "/p/a%2Fb"), "own", "{decoded}");
    }
}

#[test]
fn rule_that_is_selected_must_allow_the_slash_itself() {
    let rules = rules_from(&[
        "get path_prefix = '/a'; methods = ['GET']; allow_encoded_slash = true",
        "all path_prefix = '/a'",
        "host host = 'a.com'; path_prefix = '/a'; allow_encoded_slash = true",
        "deep path_prefix = '/a/deep'",
    ]);
    for (request, expected) in [
        ("GET x /a/b%2Fc", "get"),
        ("get x /a/b%2Fc", "get"),
        ("POST x /a/b%2Fc", REFUSED),
        ("POST x /a/b", "all"),
        ("POST a.com /a/b%2Fc", "host"),
        ("POST A.com.:80 /a/deep/b%2Fc", "host"),
        ("GET x /a/deep/b%2Fc", REFUSED),
        ("GET x /a/deep%2Fb", "get"),
    ] {
        assert_eq!(selected(&rules, request), expected, "{request}");
    }
    let rules = rules_from(&["any allow_encoded_slash = true", "admin path_prefix = '/admin'; require_roles = 'a'"]);
    assert_selected(&rules, &[("/a%2Fb", "any"), ("/admin%2Fb", REFUSED), ("/a%2F..%2Fadmin", REFUSED)]);
    let rules = rules_from(&["any allow_anonymous = true"]);
    assert_selected(&rules, &[("/a%2F..%2Fadmin", "any")]);
}

#[test]
fn rule_that_gets_no_encoded_slash_is_a_warning() {
    let strict = "[default]\nrequire_permissions = 'x'\n[[rules]]\nname = 'p'\nallow_encoded_slash = true\n";
    for (conditions, path, reading) in [
        ("path_template = '/p/{id}/{x}'", "/p/x%2Fx/x", "/p/x/x/x"),
        ("path = '/@a%2Fb'", "/@a%2Fb", "/@a/b"),
        ("host = '*.a.com'\nmethods = ['PUT']\npath = '/a%2Fb'", "/a%2Fb", "/a/b"),
        ("path_prefix = '/p'", "", ""),
        ("require_permissions = 'x'\npath = '/a%2Fb'", "", ""),
        ("", "", ""),
    ] {
        let warning = format!(
            "line 3: a path such as `{path}` is refused: if the service decodes `%2f`, it reads `{reading}`, and \
             `[default]` could refuse what the rule `p` at line 3 allows"
        );
        let expected = if path.is_empty() { Vec::new() } else { vec![warning] };
        assert_eq!(rules(&format!("{strict}{conditions}")).warnings(), expected, "{conditions}");
    }
}

#[test]
fn explanation_says_why_an_encoded_slash_is_refused() {
    let rules = rules_from(&[
        "open path_prefix = '/'; allow_encoded_slash = true",
        "admin path_prefix = '/admin'; require_permissions = 'admin'",
    ]);
    let explain = |path| rules.explain(get(path), None).to_string();
    assert_eq!(
        explain("/a%2fb"),
        "method   GET\nhost     x\npath     /a%2Fb\n\
         rule     open (line 1): any host, path_prefix /, allow_encoded_slash, any method\n"
    );
    let refused = "rule     cannot be selected: the request is refused with the reason path_ambiguous";
    for (path, expected) in [
        ("/admin/a%2fb", format!("{refused}: the rule `admin` at line 5 does not have `allow_encoded_slash`\n")),
        (
            "/admin%2fb",
            format!(
                "{refused}: if the service decodes `%2f`, it reads `/admin/b`, and the rule `admin` at line 5 could \
                 refuse what the rule `open` at line 1 allows\n"
            ),
        ),
        (
            "/a%2f..",
            format!(
                "path     has no normal form: an encoded slash (`%2f`) is at the start or end of a segment, or beside \
                 another one, `.` or `..`\n{refused}\n"
            ),
        ),
    ] {
        let explanation = explain(path);
        assert!(explanation.ends_with(&expected), "{explanation}");
    }
}

/// The roles and permissions of an agent; `None` stands for a request without a token.
type Agent = Option<(&'static [&'static str], &'static [&'static str])>;

const AGENTS: [Agent; 7] = [
    None,
    Some((&[], &[])),
    Some((&["a"], &[])),
    Some((&["b"], &[])),
    Some((&["c"], &["x"])),
    Some((&["a"], &["x"])),
    Some((&["a", "b"], &["x", "y"])),
];

fn allows(policy: &Policy, agent: Agent) -> bool {
    let Some((roles, permissions)) = agent else { return policy.allow_anonymous };
    let has_role = |role: &RoleName| roles.contains(&role.to_string().as_str());
    let has_permission = |permission: &Permission| permissions.contains(&permission.to_string().as_str());
    (policy.allow_unassigned || !roles.is_empty())
        && policy.require_roles.iter().all(has_role)
        && (policy.any_role.is_empty() || policy.any_role.iter().any(has_role))
        && policy.require_permissions.iter().all(has_permission)
        && (policy.any_permission.is_empty() || policy.any_permission.iter().any(has_permission))
}

/// The path with the slashes of each segment as they are, and decoded.
fn readings(path: &str) -> Vec<String> {
    let mut readings = vec![String::new()];
    for segment in path.split('/').skip(1) {
        let decoded = segment.replace("%2F", "/").replace("%2f", "/");
        let longer = |start: &String| [format!("{start}/{segment}"), format!("{start}/{decoded}")];
        readings = readings.iter().flat_map(longer).collect();
    }
    readings
}

fn rule() -> impl Strategy<Value = String> {
    let path = prop_oneof![
        Just(String::new()),
        "(/[ab]){1,3}".prop_map(|path| format!("path = '{path}'")),
        "(/(a|b|a%2Fb)){0,2}/a%2fb".prop_map(|path| format!("path = '{path}'")),
        "(/[ab]){1,2}".prop_map(|path| format!("path_prefix = '{path}'")),
        Just("path_prefix = '/'".to_owned()),
        "(/(a|b|\\{x\\})){0,2}/\\{x\\}(/(a|b|\\{x\\})){0,1}".prop_map(|path| format!("path_template = '{path}'")),
    ];
    let allows_slash = prop_oneof![Just("allow_encoded_slash = true"), Just("")];
    (path, policy(), allows_slash).prop_map(|(path, policy, allows_slash)| format!("{path}\n{policy}\n{allows_slash}"))
}

fn policy() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        Just(""),
        Just("allow_anonymous = true"),
        Just("allow_unassigned = true"),
        Just("require_roles = 'a'"),
        Just("require_roles = 'a,b'"),
        Just("any_role = 'a,b'"),
        Just("require_permissions = 'x'"),
        Just("require_roles = 'a'\nany_permission = 'x,y'"),
    ]
}

proptest! {
    /// Whoever is allowed to send a path with encoded slashes is also allowed to send what any service could read instead.
    #[test]
    fn encoded_slash_opens_nothing(
        conditions in proptest::collection::vec(rule(), 1..8),
        default in proptest::option::of(policy()),
        path in "(/(a|b|a%2Fb|b%2fa|a%2Fa%2fb)){1,3}",
    ) {
        let mut text = default.map(|policy| format!("[default]\n{policy}\n")).unwrap_or_default();
        for (number, condition) in conditions.iter().enumerate() {
            let longer = format!("{text}[[rules]]\nname = 'r{number}'\n{condition}\n");
            if RuleSet::parse(longer.as_bytes()).is_ok() {
                text = longer;
            }
        }
        let rules = rules(&text);
        let Ok(Some(rule)) = rules.select(get(&path)) else { return Ok(()) };
        let depends_on_path = rules.rules.iter().any(|rule| rule.path != PathPattern::Any);
        if !depends_on_path || !path.contains('%') {
            return Ok(());
        }
        prop_assert_eq!(rule.encoded_slash, EncodedSlash::Kept);
        for reading in readings(&path) {
            let other = rules.matching(get(&reading)).first().copied().or(rules.default.as_ref());
            let policy = other.map_or_else(Policy::default, |other| Policy::clone(&other.policy));
            for agent in AGENTS {
                prop_assert!(!allows(&rule.policy, agent) || allows(&policy, agent), "{}: {:?}", reading, agent);
            }
        }
    }
}
