//! Tests that Envoy with the example configuration enforces every denial of the sidecar, also while the sidecar is silent or down,
//! and whatever spelling of a path and form of the headers a client chooses.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{
    Agent, Environment, Envoy, HttpResponse, RawRequest, Sidecar, Upstream, envoy::replaced, eventually,
};
use serde_json::json;
use tokio::net::UnixListener;

/// Spellings of `/admin` and of paths below it.
const ADMIN_SPELLINGS: &str = r"/admin /admin/ /admin/users /admin?x=1 //admin ///admin /./admin /x/../admin /%2e/admin
    /x/%2E%2e/admin /%2Fadmin /x/%2e%2e%2fadmin /%5Cadmin /\admin /x\..\admin /admin%2fusers /%61dmin";

#[tokio::test]
async fn envoy_enforces_every_denial_of_the_sidecar() {
    let mut environment = Environment::start().await;
    let (reader, role) = environment.agent("reader", &["read"]).await;
    let register = async |name| Agent::register(&environment.control, name).await;
    let (suspended, revoked) = (register("suspended").await, register("revoked").await);
    let (other, _) = environment.control.create_service(json!({ "name": "Other" })).await;
    let (token, roleless_token) = (reader.token().await, register("roleless").await.token().await);
    let (suspended_token, revoked_token) = (suspended.token().await, revoked.token().await);
    let other_service_token = register("bound to another service").await.token_for(&other).await;
    for agent in [&suspended, &revoked] {
        environment.control.assign(&agent.id, &role).await;
    }
    environment.control.set_status(&suspended.id, "suspended").await.expect(200);
    environment.control.set_status(&revoked.id, "revoked").await.expect(200);
    environment.sidecar.wait_until_refused(&suspended_token, "agent_suspended").await;
    environment.sidecar.wait_until_refused(&revoked_token, "agent_revoked").await;

    let get = RawRequest::get;
    for (name, request, expected) in [
        ("no token", get("/"), (401, "token_missing")),
        ("no token", get("/admin"), (401, "token_missing")),
        ("text that is not a token", get("/").bearer("root"), (401, "token_malformed")),
        ("text that is not a token", get("/open").bearer("root"), (401, "token_malformed")),
        ("two tokens", get("/").bearer(&token).bearer(&token), (401, "token_repeated")),
        ("a bad signature", get("/").bearer(&tampered(&token)), (401, "token_signature_invalid")),
        ("a token for another service", get("/").bearer(&other_service_token), (401, "token_audience_mismatch")),
        ("no role", get("/").bearer(&roleless_token), (403, "no_role")),
        ("no permission", get("/admin").bearer(&token), (403, "permission_missing")),
        ("a suspended agent", get("/").bearer(&suspended_token), (403, "agent_suspended")),
        ("a revoked agent", get("/").bearer(&revoked_token), (403, "agent_revoked")),
    ] {
        let response = request.send_until_checked(&environment.envoy.listener).await;
        assert_eq!((response.status, response.text("/error/details/reason")), expected, "{name}: {response:?}");
        assert_eq!(response.header("x-agent-reason"), expected.1, "{name}");
    }

    let invalid_rule = |text: String| replaced(&text, "require_permissions: admin", "require_role: admin");
    let envoy =
        Envoy::start_edited_example(&environment.sidecar.socket(), environment.upstream.port, invalid_rule).await;
    let response = get("/admin").bearer(&token).send_until_checked(&envoy.listener).await;
    assert_eq!(response.error(), (503, "SERVICE_UNAVAILABLE", "rule_invalid"));

    let key = environment.control.create_key(environment.control.service(), "sync").await;
    environment.control.kill();
    let sidecar_without_view = Sidecar::start_with(&environment.control, &[&key], &[]);
    sidecar_without_view.client().await;
    let envoy = Envoy::start_example(&sidecar_without_view.socket(), environment.upstream.port).await;
    let response = get("/").bearer(&token).send_until_checked(&envoy.listener).await;
    assert_eq!((response.status, response.header("retry-after")), (503, "1"), "{response:?}");
    assert_ne!(response.header("x-agent-reason"), "");
    assert_eq!(environment.upstream.received(), 0, "Envoy forwarded no request to the service");
}

#[tokio::test]
async fn envoy_returns_503_and_logs_an_error_while_the_sidecar_is_silent_or_down() {
    let (folder, upstream) = (tempfile::tempdir().unwrap(), Upstream::start().await);
    let socket = folder.path().join("authz.sock");
    let silent = UnixListener::bind(&socket).unwrap();
    let envoy = Envoy::start_example(&socket, upstream.port).await;
    let assert_refused = async || {
        for path in ["/", "/admin", "/open"] {
            assert_eq!(RawRequest::get(path).send(&envoy.listener).await.status, 503, "{path}");
        }
    };
    assert_refused().await;
    let connected = silent.accept().await.unwrap();
    drop((silent, connected));
    assert_refused().await;
    assert_eq!(upstream.received(), 0);
    let errors_logged = async || (envoy.log().matches("ext_authz_error").count() == 6).then_some(());
    eventually("six errors of the sidecar are logged", errors_logged, || envoy.log()).await;
    RawRequest::get("/health").send(&envoy.listener).await.expect(200);
}

#[tokio::test]
async fn example_listener_requires_the_permission_for_every_spelling_of_admin_only() {
    let environment = Environment::start().await;
    let (reader, _) = environment.agent("reader", &["read"]).await;
    let (admin, _) = environment.agent("administrator", &["admin"]).await;
    let (reader, admin) = tokio::join!(reader.token(), admin.token());
    for path in ADMIN_SPELLINGS.split_whitespace() {
        let unauthenticated = get_following_redirect(&environment.envoy, path, None).await;
        assert_eq!(unauthenticated.error(), (401, "AUTHENTICATION_FAILED", "token_missing"), "{path}");
        let refused = get_following_redirect(&environment.envoy, path, Some(&reader)).await;
        assert_eq!(refused.error(), (403, "INSUFFICIENT_PERMISSIONS", "permission_missing"), "{path}");
    }
    assert_eq!(environment.upstream.received(), 0);
    for path in ADMIN_SPELLINGS.split_whitespace() {
        let response = get_following_redirect(&environment.envoy, path, Some(&admin)).await;
        assert_eq!(response.status, 200, "{path}: {response:?}");
        let normalized = response.header("x-upstream-path");
        assert!(
            normalized == "/admin" || normalized.starts_with("/admin/") || normalized == "/admin?x=1",
            "{path}: {normalized}"
        );
    }
    for (path, normalized) in [
        ("/administrators", "/administrators"),
        ("/admin/../x", "/x"),
        ("/x/admin", "/x/admin"),
        ("/?/admin", "/?/admin"),
    ] {
        let response = get_following_redirect(&environment.envoy, path, Some(&reader)).await;
        assert_eq!((response.status, response.header("x-upstream-path")), (200, normalized), "{path}");
    }
}

#[tokio::test]
async fn sidecar_decides_equally_for_plain_and_raw_headers() {
    let environment = Environment::start().await;
    let (agent, _) = environment.agent("reader", &["read"]).await;
    let token = agent.token().await;
    let filter = "failure_mode_allow: false";
    let raw = format!("{filter}\n{}encode_raw_headers: true", " ".repeat(22));
    let with_raw_headers = |text: String| replaced(&text, filter, &raw);
    let without_removal = |text: String| replaced(&with_raw_headers(text), "x[!-/:-`{-~]agent", "nothing");
    let (socket, port) = (environment.sidecar.socket(), environment.upstream.port);
    let raw_envoy = Envoy::start_edited_example(&socket, port, with_raw_headers).await;
    let raw_envoy_without_removal = Envoy::start_edited_example(&socket, port, without_removal).await;
    let mut invalid_utf8 = b"Bearer ".to_vec();
    invalid_utf8.extend([&token.as_bytes()[..9], b"\xe9"].concat());

    let get = RawRequest::get;
    for (form, listener) in [
        ("plain", &environment.envoy.listener),
        ("raw", &raw_envoy.listener),
        ("raw, removed by the sidecar alone", &raw_envoy_without_removal.listener),
    ] {
        for (case, request, expected) in [
            ("no token", get("/"), (401, "token_missing")),
            ("invalid UTF-8", get("/").with("authorization", &invalid_utf8), (401, "token_malformed")),
            ("two tokens", get("/").bearer(&token).bearer(&token), (401, "token_repeated")),
            (
                "a token and other credentials",
                get("/").with("authorization", "Basic YTpi").bearer(&token),
                (401, "token_repeated"),
            ),
            (
                "two token headers",
                get("/").with("x-agent-token", &token).with("X-Agent-Token", &token),
                (401, "token_repeated"),
            ),
            ("no permission", get("/admin").bearer(&token), (403, "permission_missing")),
        ] {
            let response = request.send_until_checked(listener).await;
            assert_eq!((response.status, response.text("/error/details/reason")), expected, "{case}, {form}");
        }

        let forged = ["x-agent-id", "x_agent_id", "x-agent.roles", "x-agent_reason"];
        let request = |path| forged.iter().fold(get(path), |request, name| request.with(name, b"root\xe9"));
        let received_headers = request("/").bearer(&token).send_until_checked(listener).await.expect(200);
        assert_eq!(received_headers["x-agent-id"], json!([agent.id]), "{form}");
        assert_eq!(received_headers["x-agent-roles"], json!(["reader"]), "{form}");
        assert_eq!(received_headers.get("authorization"), None, "{form}");
        let anonymous = request("/open").send_until_checked(listener).await.expect(200);
        for name in forged {
            assert!(name == "x-agent-id" || received_headers.get(name).is_none(), "{name}, {form}");
            assert_eq!(anonymous.get(name), None, "{name}, {form}, anonymous");
        }
    }
}

/// The token with one character of its signature changed.
fn tampered(token: &str) -> String {
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let first = if signature.starts_with('A') { 'B' } else { 'A' };
    format!("{signed}.{first}{}", &signature[1..])
}

/// Follows the redirect that Envoy sends for an escaped slash, and returns the last response.
async fn get_following_redirect(envoy: &Envoy, path: &str, token: Option<&str>) -> HttpResponse {
    let request = |path: &str| token.into_iter().fold(RawRequest::get(path), RawRequest::bearer);
    let response = request(path).send_until_checked(&envoy.listener).await;
    if response.status == 307 {
        request(response.header("location")).send_until_checked(&envoy.listener).await
    } else {
        response
    }
}
