//! Tests of the metrics with a real Prometheus. Each process has its own metrics, so these tests start one replica only.

#![expect(clippy::expect_used, reason = "tests panic on unexpected values")]

use countersign_tests::{
    Agent, ControlPlane, HttpResponse, Prometheus, Sidecar, Upstream, engines, http::HttpClient, prometheus::lint,
    tools,
};
use reqwest::Client;
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};

/// Series that must exist before any request.
const INITIAL_SERIES: [&str; 27] = [
    r#"countersign_registrations_total{result="ok"} 0"#,
    r#"countersign_challenges_total{result="AGENT_NOT_FOUND"} 0"#,
    r#"countersign_authentications_total{result="INVALID_SIGNATURE"} 0"#,
    r#"countersign_refreshes_total{result="AUTHENTICATION_FAILED"} 0"#,
    r#"countersign_revocations_total{result="ok"} 0"#,
    r#"countersign_verifications_total{result="INSUFFICIENT_PERMISSIONS"} 0"#,
    r#"countersign_role_changes_total{result="CONFLICT"} 0"#,
    r#"countersign_feedback_total{result="VALIDATION_ERROR"} 0"#,
    r#"countersign_registrations_total{result="HTTPS_REQUIRED"} 0"#,
    r#"countersign_role_changes_total{result="ROLE_NOT_FOUND"} 0"#,
    r#"countersign_refusals_total{reason="admin_required"} 0"#,
    r#"countersign_verifications_total{result="PAYLOAD_TOO_LARGE"} 0"#,
    r#"countersign_refusals_total{reason="challenge_used"} 0"#,
    r#"countersign_refusals_total{reason="overloaded"} 0"#,
    r#"countersign_refusals_total{reason="master_key_missing"} 0"#,
    r#"countersign_refusals_total{reason="quota_exceeded"} 0"#,
    r#"countersign_refusals_total{reason="idempotency_key_reused"} 0"#,
    r#"countersign_rate_limited_total{category="auth_address"} 0"#,
    "countersign_overloaded_total 0",
    r#"countersign_webhook_attempts_total{result="address_refused"} 0"#,
    r#"countersign_webhook_deliveries_total{result="dead"} 0"#,
    "countersign_webhook_deliveries_pending 0",
    "countersign_webhook_oldest_due_timestamp_seconds 0",
    "countersign_sync_streams 0",
    "countersign_sync_propagation_seconds_count 0",
    r#"countersign_build_info{version=""#,
    "process_open_fds ",
];

async fn scrape(url: &str) -> String {
    let body = HttpClient::plain(url.to_owned()).get("/metrics").await.expect(200);
    body.as_str().expect("the text is UTF-8").to_owned()
}

/// Series that must not exist, because nothing can count in them.
const IMPOSSIBLE_SERIES: [&str; 4] = [
    r#"countersign_feedback_total{result="INVALID_SIGNATURE"}"#,
    r#"countersign_registrations_total{result="ROLE_NOT_FOUND"}"#,
    r#"countersign_refusals_total{reason="view_stale"}"#,
    r#"countersign_refusals_total{reason="permission_missing"}"#,
];

#[tokio::test]
async fn all_possible_series_exist_from_the_start_with_valid_documented_names() {
    let page = std::fs::read_to_string(tools::root().join("docs/run/monitoring.md")).expect("the page exists");
    let control = ControlPlane::start_one_with(&[]).await;
    let text = scrape(&control.env["ADMIN_URL"]).await;
    let engine = engines::database_backend();
    let reruns = format!(r#"countersign_store_transactions_total{{backend="{engine}",kind="write",result="rerun"}} 0"#);
    for line in INITIAL_SERIES.into_iter().chain([reruns.as_str()]) {
        assert!(text.lines().any(|exported| exported.starts_with(line)), "{line} is missing in\n{text}");
    }
    for series in IMPOSSIBLE_SERIES {
        assert!(!text.contains(series), "{series}");
    }
    let invalid = text.replace("countersign_refusals_total", "countersign_refusals");
    assert!(lint(&invalid).contains("_total"), "the linter reports an invalid name");
    let sidecar = Sidecar::start(&control).await;
    for text in [text, scrape(&sidecar.admin.url).await] {
        assert_eq!(lint(&text), "");
        for declaration in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, _) = declaration.split_once(' ').expect("the line has a name and a type");
            let is_listed = page.contains(&format!("| `{name}`")) || page.contains(&format!(", `{name}`"));
            assert!(is_listed || !name.starts_with("countersign_"), "docs/run/monitoring.md does not list {name}");
        }
    }
}

#[tokio::test]
async fn web_pages_whose_name_resolves_to_loopback_cannot_read_metrics() {
    let control = ControlPlane::start_one_with(&[]).await;
    let sidecar = Sidecar::start(&control).await;
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    for url in [&control.env["ADMIN_URL"], &sidecar.admin.url] {
        let (_, port) = url.rsplit_once(':').expect("the URL has a port");
        for builder in [Client::builder(), Client::builder().http2_prior_knowledge()] {
            let builder = builder.tls_certs_only([]).resolve("page.example", loopback).resolve("localhost", loopback);
            let client = builder.build().expect("the client can be built");
            let get = async |host: &str, path: &str| {
                HttpResponse::send(client.get(format!("http://{host}:{port}{path}"))).await
            };
            let message = get("page.example", "/metrics").await.expect(421);
            let message = message.as_str().expect("the body is a text");
            assert!(message.contains("the header Host"), "{message}");
            assert!(message.contains(&format!("use http://127.0.0.1:{port}/metrics\n")), "{message}");
            get("page.example", "/livez").await.expect(200);
            get("page.example", "/readyz").await.expect(200);
            get("localhost", "/metrics").await.expect(200);
            get("127.0.0.1", "/metrics").await.expect(200);
        }
    }
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the test compares with the system clock")]
async fn prometheus_counts_requests_and_logins() {
    let control = ControlPlane::start_one_with(&[]).await;
    let sidecar = Sidecar::start(&control).await;
    let targets = [("control-plane", control.env["ADMIN_URL"].as_str()), ("ext-authz", sidecar.admin.url.as_str())];
    let prometheus = Prometheus::start(&targets).await;

    let (agent, role) = Agent::with_role(&control, "reader", &["read"]).await;
    let tokens = agent.login().await;
    let token = tokens.access_token.expose_secret();
    control.verify(token).await.expect(200);
    control.verify("nonsense").await.expect(401);
    sidecar.check_token(token).await;
    agent.api().refresh(&tokens.refresh_token).await.expect("the refresh succeeds");
    agent.api().refresh(&tokens.refresh_token).await.expect_err("the refresh token was used");
    let feedback = json!({ "agentId": agent.id, "score": 80 });
    control.api.send_as(control.key(), "POST", "/trust/feedback", feedback).await.expect(200);
    let invalid_body = json!({ "agentId": agent.id, "score": 101 });
    control.api.send_as(control.key(), "POST", "/trust/feedback", invalid_body).await.expect(400);
    let challenge = control.api.post("/auth/challenge", json!({ "agentId": agent.id })).await.expect(200);
    let login = json!({ "challengeId": challenge["challengeId"], "signature": "00" });
    control.api.post("/auth/authenticate", login).await.expect(400);
    control.revoke(&agent.id, &role).await;
    let body = json!({ "name": "reader", "permissions": [] });
    control.api.send_as(control.key(), "POST", &control.path("/roles"), body).await.expect(409);

    let by_result = |name: &str, result: &str| format!(r#"countersign_{name}_total{{result="{result}"}}"#);
    for (expression, expected) in [
        (by_result("registrations", "ok"), 1.0),
        (by_result("challenges", "ok"), 2.0),
        (by_result("authentications", "ok"), 1.0),
        (by_result("authentications", "INVALID_SIGNATURE"), 1.0),
        (by_result("refreshes", "ok"), 1.0),
        (by_result("refreshes", "AUTHENTICATION_FAILED"), 1.0),
        (by_result("verifications", "ok"), 1.0),
        (by_result("verifications", "AUTHENTICATION_FAILED"), 1.0),
        (by_result("role_changes", "ok"), 3.0),
        (by_result("role_changes", "CONFLICT"), 1.0),
        (by_result("feedback", "ok"), 1.0),
        (by_result("feedback", "VALIDATION_ERROR"), 1.0),
        (r#"countersign_refusals_total{reason="refresh_reused"}"#.to_owned(), 1.0),
        (r#"countersign_http_requests_total{method="POST",route="/trust/feedback",status="400"}"#.to_owned(), 1.0),
        ("countersign_sync_streams".to_owned(), 1.0),
        ("countersign_sync_propagation_seconds_count > bool 3".to_owned(), 1.0),
        (r#"sum(countersign_authz_checks_total{decision="allow"})"#.to_owned(), 1.0),
        (
            "sum(countersign_http_request_duration_seconds_count) == bool sum(countersign_http_requests_total)"
                .to_owned(),
            1.0,
        ),
        (r#"countersign_http_request_duration_seconds_count{method="POST",route="/trust/feedback"}"#.to_owned(), 2.0),
        (r#"countersign_store_transactions_total{kind="write",result="committed"} > bool 5"#.to_owned(), 1.0),
        (r#"countersign_store_transactions_total{kind="write",result="rolled_back"} > bool 0"#.to_owned(), 1.0),
        (r#"countersign_store_transaction_duration_seconds_count{kind="read"} > bool 5"#.to_owned(), 1.0),
    ] {
        prometheus.wait_for_value(&expression, expected).await;
    }
    let expiry = prometheus.query("countersign_certificate_expiry_timestamp_seconds").await.expect("the metric exists");
    let now = jiff::Timestamp::now().as_second();
    #[expect(clippy::cast_precision_loss, reason = "seconds are small numbers")]
    let days = (expiry - now as f64) / 86_400.0;
    assert!((300.0..1200.0).contains(&days), "the certificate of --dev is valid for {days} days");
}

#[tokio::test]
async fn prometheus_counts_webhook_deliveries() {
    let control = ControlPlane::start_one_with(&[]).await;
    let prometheus = Prometheus::start(&[("control-plane", &control.env["ADMIN_URL"])]).await;
    let receiver = Upstream::start().await;
    let refused_url = format!("http://127.0.0.1:{}/", countersign_tests::process::free_port());
    for (url, event) in [(receiver.url(), "agent.role_assigned"), (refused_url, "agent.role_revoked")] {
        let body = json!({ "url": url, "events": [event] });
        control.api.send_as(control.key(), "POST", &control.path("/webhooks"), body).await.expect(201);
    }
    let (agent, role) = Agent::with_role(&control, "reader", &["read"]).await;
    control.revoke(&agent.id, &role).await;
    for expression in [
        r#"countersign_webhook_deliveries_total{result="delivered"} == bool 1"#,
        r#"countersign_webhook_deliveries_total{result="dead"} == bool 0"#,
        r#"countersign_webhook_attempts_total{result="ok"} == bool 1"#,
        r#"countersign_webhook_attempts_total{result="connection"} > bool 0"#,
        "countersign_webhook_attempt_duration_seconds_count > bool 1",
        "countersign_webhook_deliveries_pending == bool 1",
    ] {
        prometheus.wait_for_value(expression, 1.0).await;
    }
}

#[tokio::test]
async fn labels_have_a_fixed_set_of_values() {
    let control = ControlPlane::start_one_with(&[]).await;
    let count = async || scrape(&control.env["ADMIN_URL"]).await.lines().count();
    control.api.get("/nowhere").await.expect(404);
    HttpResponse::send(control.api.request("PROPFIND", "/nowhere")).await;
    let before = count().await;
    for path in ["/nowhere/else", "/services/x/y/z", "/%ff", "/auth//refresh"] {
        for method in ["GET", "PROPFIND", "FOO"] {
            let response: Value = HttpResponse::send(control.api.request(method, path)).await.body;
            assert!(response["error"]["code"].is_string());
        }
    }
    assert!(
        count().await <= before + 2,
        "unknown methods are counted as OTHER, and unknown paths do not become labels"
    );
}
