//! Tests of the rules file: the real sidecar behind an Envoy that sends no context extensions and does not normalize paths.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

mod commands;
mod corpus;
mod encoded_slashes;
mod explain;
mod mcp;
mod mcp_clients;

use countersign_tests::{
    Agent, ControlPlane, Envoy, HttpResponse, RawRequest, Sidecar, Upstream, envoy::replaced, sidecar::CheckResult,
};
use serde_json::json;
use std::{fs, path::PathBuf};
use tempfile::TempDir;

const RULES: &str = r#"
[[rules]]
name = "open"
path_prefix = "/open"
allow_anonymous = true

[[rules]]
name = "admin"
path_prefix = "/admin"
require_permissions = ["admin"]

[[rules]]
name = "read-admin"
path_prefix = "/admin"
methods = ["GET"]
any_permission = ["admin", "read"]

[[rules]]
name = "keys"
path_template = "/users/{id}/keys"
require_roles = "auditor"

[[rules]]
name = "partners"
host = "*.partners.example.com"
any_role = ["partner", "auditor"]

[[rules]]
name = "tried"
path = "/tried"
require_roles = "auditor"
forward_token = true
dry_run = true
"#;

/// A control plane, and a sidecar with a rules file.
struct Fixture {
    control: ControlPlane,
    sidecar: Sidecar,
    folder: TempDir,
}

impl Fixture {
    async fn start(rules: &str) -> Self {
        let control = ControlPlane::start().await;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rules.toml");
        fs::write(&file, rules).unwrap();
        let key = control.create_key(control.service(), "sync").await;
        let sidecar = Sidecar::start_with(&control, &[&key], &[&format!("rules.file={}", file.display())]);
        sidecar.wait_until_ready().await;
        Self { control, sidecar, folder }
    }

    fn rules_file(&self) -> PathBuf {
        self.folder.path().join("rules.toml")
    }

    async fn envoy(&self, upstream: u16) -> Envoy {
        let minimal = include_str!("route_rules/minimal.yaml");
        let text = replaced(minimal, "# <grpc_service>", "timeout: 5s");
        Envoy::start(&text, &self.sidecar.socket(), upstream).await
    }

    /// The token of an agent with a role.
    async fn token(&self, role: &str, permissions: &[&str]) -> String {
        Agent::with_role(&self.control, role, permissions).await.0.token().await
    }
}

/// The text of a field of the dynamic metadata; empty if it is absent.
fn metadata(result: &CheckResult, field: &str) -> String {
    let metadata = format!("{:?}", result.response.dynamic_metadata.as_ref().unwrap().fields["countersign"]);
    let value = metadata.split(&format!("\"{field}\": Value {{ kind: Some(StringValue(\"")).nth(1);
    value.and_then(|rest| rest.split('"').next()).unwrap_or_default().to_owned()
}

fn reason(response: &HttpResponse) -> (u16, &str) {
    (response.status, response.text("/error/details/reason"))
}

#[tokio::test]
async fn rules_decide_by_host_path_and_method_behind_envoy() {
    let fixture = Fixture::start(RULES).await;
    let upstream = Upstream::start().await;
    let envoy = fixture.envoy(upstream.port).await;
    let (reader, auditor) = (fixture.token("reader", &["read"]).await, fixture.token("auditor", &[]).await);
    let host = |request: RawRequest, host: &str| request.with("x-forwarded-host", host);
    let request = |method: &str, path: &str| host(RawRequest::new(method, path), "ignored.partners.example.com");
    for (name, request, expected) in [
        ("open", request("GET", "/open/x"), (200, "")),
        ("open, another path", request("GET", "/opening"), (401, "token_missing")),
        ("default", request("GET", "/").bearer(&reader), (200, "")),
        ("default without token", request("GET", "/"), (401, "token_missing")),
        ("GET of admin", request("GET", "/admin/x").bearer(&reader), (200, "")),
        ("POST of admin", request("POST", "/admin/x").bearer(&reader), (403, "permission_missing")),
        ("encoded admin", request("POST", "/%61dmin").bearer(&reader), (403, "permission_missing")),
        ("template", request("GET", "/users/7/keys").bearer(&reader), (403, "role_missing")),
        ("template, role", request("GET", "/users/7/keys").bearer(&auditor), (200, "")),
        ("template, other path", request("GET", "/users/7/names").bearer(&reader), (200, "")),
        ("ambiguous path", request("GET", "/open/..;/admin"), (403, "path_ambiguous")),
    ] {
        let response = request.send(&envoy.listener).await;
        assert_eq!(reason(&response), expected, "{name}: {response:?}");
    }
    let ambiguous = RawRequest::get("/open//x").send(&envoy.listener).await;
    assert_eq!(ambiguous.header("x-agent-reason"), "path_ambiguous");
    assert_eq!(ambiguous.header("www-authenticate"), "", "another token would not help");
    let partner = envoy.listener.request("GET", "/").header("host", "A.Partners.Example.com:80").bearer_auth(&reader);
    assert_eq!(reason(&HttpResponse::send(partner).await), (403, "role_missing"));
    let partner = envoy.listener.request("GET", "/").header("host", "a.partners.example.com.").bearer_auth(&auditor);
    assert_eq!(reason(&HttpResponse::send(partner).await), (200, ""));
}

#[tokio::test]
async fn metadata_names_the_rule_and_extensions_replace_the_rules() {
    let fixture = Fixture::start(RULES).await;
    for (request, rule, expected) in [
        (("GET", "x", "/open"), "open", ""),
        (("POST", "x", "/admin"), "admin", "token_missing"),
        (("GET", "x", "/other"), "", "token_missing"),
        (("GET", "x", "/open/%2e%2e"), "", "path_ambiguous"),
        (("GET", "??", "/open"), "", "host_invalid"),
        (("GET", "b.partners.example.com", "/open"), "partners", "token_missing"),
    ] {
        let result = fixture.sidecar.check_target(request, &[], &[]).await;
        assert_eq!((metadata(&result, "rule").as_str(), result.reason.as_str()), (rule, expected), "{request:?}");
    }
    let result = fixture.sidecar.check_target(("GET", "x", "/open/../x"), &[], &[("allow_unassigned", "true")]).await;
    assert_eq!((result.reason.as_str(), metadata(&result, "rule").as_str()), ("token_missing", ""));
    let log = "countersign_authz_checks_total{decision=\"deny\",reason=\"path_ambiguous\",service=\"none\"}";
    assert_eq!(fixture.sidecar.metric(log).await, Some(1.0));
    assert_eq!(fixture.sidecar.metric("countersign_authz_rules").await, Some(6.0));
}

#[tokio::test]
async fn route_that_only_names_its_service_obeys_the_rules() {
    let other = "svc_00000000000000000000000001";
    let of_other = format!("[[rules]]\nname = 'of-other'\npath = '/other'\nservice_id = '{other}'\n");
    let default = "[default]\nrequire_roles = 'nobody'\n";
    let fixture = Fixture::start(&format!("{RULES}\n{of_other}\n{default}")).await;
    let (token, service) = (fixture.token("reader", &["read"]).await, fixture.control.service().to_owned());
    let authorization = format!("Bearer {token}");
    let headers = [("authorization", authorization.as_str())];
    for (request, rule, expected) in [
        (("GET", "x", "/admin"), "read-admin", ""),
        (("POST", "x", "/admin"), "admin", "permission_missing"),
        (("GET", "x", "/unknown"), "default", "role_missing"),
        (("GET", "x", "/open/%2e%2e"), "", "path_ambiguous"),
        (("GET", "x", "/other"), "", "rule_invalid"),
    ] {
        let result = fixture.sidecar.check_target(request, &headers, &[("service_id", &service)]).await;
        assert_eq!((metadata(&result, "rule").as_str(), result.reason.as_str()), (rule, expected), "{request:?}");
    }
    let warning = "the route and the rule `of-other` of the rules file have different values of `service_id`";
    fixture.sidecar.wait_for_log(warning).await;
    let result = fixture.sidecar.check_target(("GET", "x", "/open"), &[], &[("service_id", other)]).await;
    assert_eq!(result.reason, "service_unknown", "the rule applies to the service of the route");
}

#[tokio::test]
async fn changed_file_is_used_and_a_bad_file_changes_nothing() {
    const RELOADS: &str = "countersign_authz_file_reloads_total";
    let fixture = Fixture::start(RULES).await;
    let verdict = async |path| fixture.sidecar.check_target(("GET", "x", path), &[], &[]).await.reason;
    assert_eq!(verdict("/open").await, "");
    let bad = RULES.replace("require_permissions", "require_permission").replace("name = \"open\"", "name = \"keys\"");
    fs::write(fixture.rules_file(), bad).unwrap();
    fixture.sidecar.wait_for_metric(&format!("{RELOADS}{{result=\"failed\",setting=\"rules.file\"}}")).await;
    // The sidecar writes the log line after it has changed the metric, so wait for the line, too.
    fixture.sidecar.wait_for_log("unknown key `require_permission`").await;
    assert_eq!((verdict("/open").await.as_str(), verdict("/new").await.as_str()), ("", "token_missing"));
    assert_eq!(fixture.sidecar.admin.get("/readyz").await.status, 200);

    let changed = "[[rules]]\nname = 'new'\npath = '/new'\nallow_anonymous = true\n";
    fs::write(fixture.rules_file(), changed).unwrap();
    fixture.sidecar.wait_for_metric(&format!("{RELOADS}{{result=\"ok\",setting=\"rules.file\"}}")).await;
    assert_eq!((verdict("/open").await.as_str(), verdict("/new").await.as_str()), ("token_missing", ""));
    assert_eq!(fixture.sidecar.metric("countersign_authz_rules").await, Some(1.0));
}

#[tokio::test]
async fn dry_run_allows_without_identity_and_counts_the_refusal() {
    let fixture = Fixture::start(RULES).await;
    let upstream = Upstream::start().await;
    let envoy = fixture.envoy(upstream.port).await;
    let (reader, auditor) = (fixture.token("reader", &["read"]).await, fixture.token("auditor", &[]).await);
    let service = fixture.control.service();
    let dry_runs = async |reason: &str| {
        let line = format!("countersign_authz_dry_run_denials_total{{reason=\"{reason}\",service=\"{service}\"}}");
        fixture.sidecar.metric(&line).await
    };
    let forged = RawRequest::get("/tried").with("x-agent-id", "agt_forged").with("X_Agent_Roles", "auditor");
    let second_token = |request: RawRequest| request.bearer(&reader).bearer(&auditor);
    for (name, request, counted) in [
        ("no token", forged.clone(), "token_missing"),
        ("a bad token", forged.clone().bearer("a.b.c"), "token_malformed"),
        ("two tokens", second_token(forged.clone()), "token_repeated"),
        ("a role is missing", forged.clone().bearer(&reader), "role_missing"),
        ("a token in both headers", forged.clone().with("x-agent-token", "a.b").bearer(&reader), "token_malformed"),
    ] {
        let before = dry_runs(counted).await.unwrap();
        let received = request.send(&envoy.listener).await.expect(200);
        let identity: Vec<_> = received.as_object().unwrap().keys().filter(|key| key.contains("agent")).collect();
        assert_eq!(identity, [] as [&String; 0], "{name}");
        assert_eq!(received.get("authorization"), None, "{name}: the service does not receive the refused token");
        assert_eq!(dry_runs(counted).await, Some(before + 1.0), "{name}");
    }
    let received = forged.bearer(&auditor).send(&envoy.listener).await.expect(200);
    assert_eq!(received["x-agent-roles"], json!(["auditor"]));
    assert_eq!(received["authorization"], json!([format!("Bearer {auditor}")]), "the rule forwards the token");

    let result = fixture
        .sidecar
        .check_target(("GET", "x", "/tried"), &[("authorization", &format!("Bearer {reader}"))], &[])
        .await;
    let fields = ["decision", "reason", "rule", "dry_run_reason"].map(|field| metadata(&result, field));
    assert_eq!(fields, ["allow", "dry_run", "tried", "role_missing"]);
}
