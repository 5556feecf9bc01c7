//! Tests of rules with `allow_encoded_slash`, behind Envoys that keep encoded slashes, and behind one that decodes them.

use super::{Fixture, reason};
use countersign_tests::{Envoy, RawRequest, Upstream, envoy::replaced, sidecar::run_command, tools};
use std::{fs, process::Command};

const RULES: &str = r#"
[[rules]]
name = "package"
path_template = "/packages/{name}"
any_permission = ["admin", "read"]
allow_encoded_slash = true

[[rules]]
name = "scoped-package"
path = "/registry/@scope%2Fname"
any_permission = ["admin", "read"]
allow_encoded_slash = true

[[rules]]
name = "files"
path_prefix = "/files"
any_permission = ["admin", "read"]
allow_encoded_slash = true

[[rules]]
name = "secret-files"
path_prefix = "/files/secret"
require_permissions = ["admin"]

[[rules]]
name = "admin"
path_prefix = "/admin"
require_permissions = ["admin"]
"#;

/// Rules for the decoded paths of `package` and `scoped-package`.
const DECODED_RULES: &str = r#"
[[rules]]
name = "decoded-package"
path_template = "/packages/{scope}/{name}"
any_permission = ["admin", "read"]

[[rules]]
name = "decoded-scoped-package"
path = "/registry/@scope/name"
any_permission = ["admin", "read"]
"#;

const AMBIGUOUS: (u16, &str) = (403, "path_ambiguous");

/// Requests of an agent that has the permission `read`, but not `admin`.
const REQUESTS: &[(&str, (u16, &str))] = &[
    ("/packages/a", (200, "")),
    ("/packages/@scope%2fname", (200, "")),
    ("/packages/a%2Fb%2Fc?x=%2F..", (200, "")),
    ("/packages/a%2fb%2Fc", AMBIGUOUS),
    ("/packages/a/b", (200, "")),
    ("/registry/@scope%2Fname", (200, "")),
    ("/registry/%40scope%2fname", (200, "")),
    ("/registry/@scope%2Fother", AMBIGUOUS),
    ("/files/a%2Fb/c%2Fd", (200, "")),
    ("/files/secret/a", (403, "permission_missing")),
    // A service that decodes the slash would serve the path of another rule, which requires more.
    ("/files/secret%2Fa", AMBIGUOUS),
    ("/files/%73ecret%2fa", AMBIGUOUS),
    ("/files%2Fsecret%2Fa", AMBIGUOUS),
    ("/admin%2Fusers", AMBIGUOUS),
    // The rule that applies does not allow encoded slashes.
    ("/files/secret/a%2Fb", AMBIGUOUS),
    ("/admin/a%2Fb", AMBIGUOUS),
    ("/other/a%2Fb", AMBIGUOUS),
    // The decoded path has dot segments or empty segments, or can be decoded again.
    ("/packages/a%2F..%2F..%2Fadmin", AMBIGUOUS),
    ("/packages/..%2Fadmin", AMBIGUOUS),
    ("/packages/%2e%2e%2Fadmin", AMBIGUOUS),
    ("/packages/a%2F%2E%2E%2F%2e%2e%2fadmin", AMBIGUOUS),
    ("/packages/a%2F.%2Fb", AMBIGUOUS),
    ("/packages/a%2F%2Fb", AMBIGUOUS),
    ("/packages/%2Fa", AMBIGUOUS),
    ("/packages/a%2F", AMBIGUOUS),
    ("/packages/a%2F/", AMBIGUOUS),
    ("/packages/a%252Fb", AMBIGUOUS),
    ("/packages/a%2F%252e%252e%2Fadmin", AMBIGUOUS),
    ("/packages/a%5Cb", AMBIGUOUS),
    ("/packages/a%2F..%5C..%5Cadmin", AMBIGUOUS),
    ("/packages/a%2F..;x%2Fadmin", AMBIGUOUS),
    ("/packages/a%2Fb%00", AMBIGUOUS),
];

#[tokio::test]
async fn encoded_slash_reaches_the_service_only_where_no_reading_requires_more() {
    let fixture = Fixture::start(RULES).await;
    let upstream = Upstream::start().await;
    let envoy = fixture.envoy(upstream.port).await;
    let (reader, admin) = (fixture.token("reader", &["read"]).await, fixture.token("admin", &["admin"]).await);
    for (path, expected) in REQUESTS {
        let response = RawRequest::get(path).bearer(&reader).send(&envoy.listener).await;
        assert_eq!(reason(&response), *expected, "{path}: {response:?}");
        if response.status == 200 {
            assert_eq!(response.header("x-upstream-path"), *path, "the service receives the path as it was sent");
        }
        let anonymous = RawRequest::get(path).send(&envoy.listener).await;
        let expected = if *expected == AMBIGUOUS { AMBIGUOUS } else { (401, "token_missing") };
        assert_eq!(reason(&anonymous), expected, "{path} without a token");
    }
    let response = RawRequest::get("/files/secret%2Fa").bearer(&admin).send(&envoy.listener).await;
    assert_eq!(reason(&response), AMBIGUOUS, "a path that the service could read differently is refused for everyone");
}

/// The routes that the manual adds to those of the example, indented as in the example.
fn routes_of_manual() -> String {
    let page = fs::read_to_string(tools::root().join("docs/run/route-rules.md")).unwrap();
    let (_, rest) = page.split_once("routes:\n").unwrap();
    let (routes, _) = rest.split_once("```").unwrap();
    let indented = |line: &str| format!("                      {line}\n");
    routes.lines().map(indented).collect::<Vec<_>>().concat()
}

#[tokio::test]
async fn example_envoy_with_the_routes_of_the_manual_keeps_encoded_slashes_for_rules_only() {
    let fixture = Fixture::start(RULES).await;
    let upstream = Upstream::start().await;
    let kept = |text: String| {
        let text = replaced(&text, "UNESCAPE_AND_REDIRECT", "KEEP_UNCHANGED");
        replaced(&text, "routes:\n", &format!("routes:\n{}", routes_of_manual()))
    };
    let envoy = Envoy::start_edited_example(&fixture.sidecar.socket(), upstream.port, kept).await;
    let reader = fixture.token("reader", &["read"]).await;
    for (path, expected) in [
        ("/packages/@scope%2fname", (200, "")),
        ("/packages/a%2F..%2F..%2Fadmin", AMBIGUOUS),
        ("/packages/..%2F..%2Fadmin", AMBIGUOUS),
        ("/packages/a%2F%2Fadmin", AMBIGUOUS),
        ("/packages/a%5Cb", AMBIGUOUS),
        // Envoy resolves dot segments before it selects a route, and does not count an encoded slash as the end of a segment.
        ("/packages/a%2Fb/../c", (200, "")),
        ("/packages/a%2Fb/../../admin", (403, "permission_missing")),
        // The routes with context extensions, for which the sidecar does not look at the path, do not get these paths. The second route
        // of the manual does, and the sidecar refuses them before Envoy answers 400.
        ("/open/x%2F..%2F..%2Fadmin", AMBIGUOUS),
        ("/open%2F..%2Fadmin", AMBIGUOUS),
        ("/admin%2Fusers", AMBIGUOUS),
        ("/packages%2Fa", AMBIGUOUS),
        ("/open/a%5C..%5C..%5Cadmin", AMBIGUOUS),
    ] {
        let response = RawRequest::get(path).bearer(&reader).send_until_checked(&envoy.listener).await;
        assert_eq!(reason(&response), expected, "{path}: {response:?}");
    }
    // The example as it is decodes the slash, so the rule gets the decoded path.
    let example = Envoy::start_example(&fixture.sidecar.socket(), upstream.port).await;
    let response =
        RawRequest::get("/packages/@scope%2fname").bearer(&reader).send_until_checked(&example.listener).await;
    assert!(response.status == 307 && response.header("location").ends_with("/packages/@scope/name"), "{response:?}");
}

#[test]
fn commands_say_why_an_encoded_slash_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.toml");
    let path = file.display().to_string();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(tools::binary("countersign-ext-authz"));
        command.arg("rules").args(arguments);
        run_command(command, "")
    };
    fs::write(&file, format!("{RULES}{DECODED_RULES}")).unwrap();
    assert_eq!(run(&["check", &path]), (Some(0), format!("{path}: 7 rules, no errors\n"), String::new()));
    fs::write(&file, RULES).unwrap();
    let (code, output, _) = run(&["check", &path]);
    let warning = "warning: line 2: if the service decodes `%2f`, it serves `/packages/x%2Fx` also as `/packages/x/x`, and \
                   the default of the sidecar could allow what the rule `package` at line 2 refuses: write a rule for the \
                   decoded paths, too\n";
    assert!(code == Some(0) && output.starts_with(&format!("{path}: {warning}")), "{output}");
    let explain = |request: &str| run(&["explain", &path, "--host", "x", "--path", request]);
    let (code, output, _) = explain("/packages/a%2fb");
    let rule = "path     /packages/a%2Fb\nrule     package (line 2): any host, path_template /packages/{}, allow_encoded_slash";
    assert!(code == Some(0) && output.contains(rule), "{output}");
    for (request, expected) in [
        ("/admin/a%2Fb", "path_ambiguous: the rule `admin` at line 25 does not have `allow_encoded_slash`\n"),
        (
            "/files/secret%2Fa",
            "path_ambiguous: if the service decodes `%2f`, it reads `/files/secret/a`, and the rule `secret-files` at \
             line 20 could refuse what the rule `files` at line 14 allows\n",
        ),
        ("/other/a%2Fb", "path_ambiguous: the default of the sidecar does not have `allow_encoded_slash`\n"),
        ("/packages/a%2F..", "has no normal form: an encoded slash (`%2f`) is at the start or end of a segment"),
    ] {
        let (code, output, _) = explain(request);
        assert!(code == Some(3) && output.contains(expected), "{request}: {output}");
    }

    fs::write(&file, format!("{RULES}\n[default]\nrequire_permissions = [\"admin\"]\n")).unwrap();
    let (code, output, _) = run(&["check", &path]);
    assert_eq!((code, output.lines().count()), (Some(0), 3), "{output}");
    let warning = "warning: line 2: a path such as `/packages/x%2Fx` is refused: if the service decodes `%2f`, it reads \
                   `/packages/x/x`, and `[default]` could refuse what the rule `package` at line 2 allows\n";
    assert!(output.starts_with(&format!("{path}: {warning}")), "{output}");

    let page = fs::read_to_string(tools::root().join("docs/run/route-rules.md")).unwrap();
    let (_, section) = page.split_once("### Encoded slashes").unwrap();
    let (_, example) = section.split_once("```toml\n").unwrap();
    fs::write(&file, example.split("```").next().unwrap()).unwrap();
    assert_eq!(run(&["check", &path]), (Some(0), format!("{path}: 3 rules, no errors\n"), String::new()));
    let (code, output, _) = explain("/packages/secret/key");
    assert!(code == Some(0) && output.contains("rule     secret-packages"), "{output}");

    fs::write(&file, "[[rules]]\nname = 'a'\npath = '/a%2Fb'\n").unwrap();
    let (code, _, errors) = run(&["check", &path]);
    let fix = "line 3: rule `a`: `path`: `/a%2Fb`: the path contains an encoded slash (`%2f`): the rule needs \
               `allow_encoded_slash = true`";
    assert!(code == Some(1) && errors.contains(fix), "{errors}");
}
