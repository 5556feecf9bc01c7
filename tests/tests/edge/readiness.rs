//! Readiness of the sidecar, and the file of the certificate authorities that it trusts.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{Agent, ControlPlane, Sidecar, eventually};
use serde_json::json;
use std::{fs, path::Path};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

/// Waits until `/readyz` has this status. Returns its body.
async fn wait_for_readiness(sidecar: &Sidecar, status: u16) -> String {
    let response = async || Some(sidecar.admin.get("/readyz").await).filter(|response| response.status == status);
    let name = format!("/readyz has the status {status}");
    let response = eventually(&name, response, || sidecar.log()).await;
    response.body.as_str().unwrap().to_owned()
}

/// Waits until the gRPC health service reports this status for the whole server and the authorization service.
async fn wait_for_health(sidecar: &Sidecar, expected: ServingStatus) {
    let mut client = HealthClient::new(sidecar.channel().await);
    for service in ["", "envoy.service.auth.v3.Authorization"] {
        let reported = async || {
            let request = HealthCheckRequest { service: service.to_owned() };
            (client.check(request).await.unwrap().into_inner().status() == expected).then_some(())
        };
        eventually("the health status changes", reported, || sidecar.log()).await;
    }
}

/// Streams of clients without a credential would keep their connections open for ever.
#[tokio::test]
async fn health_status_cannot_be_watched() {
    let control = ControlPlane::start().await;
    let sidecar = Sidecar::start(&control).await;
    let mut client = HealthClient::new(sidecar.channel().await);
    let status = client.watch(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unimplemented);
    let unknown = HealthCheckRequest { service: "unknown".to_owned() };
    assert_eq!(client.check(unknown).await.unwrap_err().code(), tonic::Code::NotFound);
}

#[tokio::test]
async fn readiness_falls_while_checks_are_denied_and_returns() {
    let control = ControlPlane::start_process_with(&["sync.max_staleness_seconds=3"]).await;
    let sidecar = Sidecar::start(&control).await;
    let agent = Agent::register(&control, "agent").await;
    let role = control.create_role("reader", &["read"]).await;
    control.assign(&agent.id, &role).await;
    let token = agent.token().await;
    let check = async |status: u16| {
        let result = async || Some(sidecar.check_token(&token).await).filter(|result| result.status == status);
        eventually("the check has its result", result, || sidecar.log()).await.reason
    };
    check(200).await;
    wait_for_health(&sidecar, ServingStatus::Serving).await;

    control.signal("STOP");
    let body = wait_for_readiness(&sidecar, 503).await;
    let expected = format!("view of service {} (sync.keys[0]): the last one is ", control.service());
    assert!(body.contains(&expected) && body.contains(" s old, the limit is 3 s"), "{body}");
    assert_eq!(check(503).await, "view_stale");
    wait_for_health(&sidecar, ServingStatus::NotServing).await;
    assert_eq!(sidecar.admin.get("/livez").await.status, 200);

    control.signal("CONT");
    wait_for_readiness(&sidecar, 200).await;
    wait_for_health(&sidecar, ServingStatus::Serving).await;
    check(200).await;
    let log = sidecar.log();
    assert!(log.contains("not ready: checks are denied") && log.contains("the view is confirmed again"), "{log}");
}

#[tokio::test]
async fn deleted_service_does_not_take_the_other_service_out_of_the_rotation() {
    let control = ControlPlane::start_with(&["sync.max_staleness_seconds=3"]).await;
    let (other, other_key) = control.create_service(json!({ "name": "other" })).await;
    let mut sidecar = Sidecar::start_with(&control, &[control.key(), &other_key], &[]);
    sidecar.wait_until_ready().await;
    control.api.send_as(control.human(), "DELETE", &format!("/services/{other}"), json!({})).await.expect(200);
    let reason = async || Some(sidecar.check_with(&[], &[("service_id", &other)]).await.reason);
    let stale = async || reason().await.filter(|reason| reason == "view_stale");
    eventually("the view of the deleted service is stale", stale, || sidecar.log()).await;
    let logged = async || sidecar.log().contains("not ready: checks are denied").then_some(());
    eventually("the staleness is logged", logged, || sidecar.log()).await;
    assert_eq!(sidecar.admin.get("/readyz").await.status, 200, "{}", sidecar.log());
    let result = sidecar.check_with(&[], &[("service_id", control.service())]).await;
    assert_eq!(result.reason, "token_missing");

    sidecar.restart();
    sidecar.wait_until_ready().await;
    let logged = async || sidecar.log().contains("ready without this API key").then_some(());
    eventually("the missing service is logged", logged, || sidecar.log()).await;
}

#[tokio::test]
async fn replaced_certificate_authority_is_used_for_the_next_connection() {
    const FAILED: &str = r#"countersign_authz_file_reloads_total{result="failed",setting="sync.ca"}"#;
    let mut control = ControlPlane::start_process().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    let write = |path: &Path, content: &[u8]| fs::write(path, content).unwrap();
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert.pem();
    write(&file, other.as_bytes());
    let sidecar = Sidecar::start_with(&control, &[control.key()], &[&format!("sync.ca={}", file.display())]);
    let refused = async || sidecar.log().contains("cannot open the sync stream").then_some(());
    eventually("the sidecar does not trust the control plane", refused, || sidecar.log()).await;
    assert_eq!(sidecar.admin.get("/readyz").await.status, 503);

    write(&file, &control.authority());
    wait_for_readiness(&sidecar, 200).await;
    let reconnects = format!("countersign_authz_stream_reconnects_total{{service=\"{}\"}}", control.service());
    write(&file, b"no certificate");
    let failed = async || sidecar.metric(FAILED).await.filter(|count| *count > 0.0);
    eventually("the file is refused", failed, || sidecar.log()).await;
    assert_eq!(sidecar.metric(&reconnects).await, Some(0.0), "the stream continues");

    control.restart().await;
    let reconnected = async || sidecar.metric(&reconnects).await.filter(|count| *count > 0.0);
    eventually("the stream is lost", reconnected, || sidecar.log()).await;
    let connected = format!("countersign_authz_stream_connected{{service=\"{}\"}}", control.service());
    let connected = async || sidecar.metric(&connected).await.filter(|count| *count > 0.0);
    eventually("the previous authority is trusted", connected, || sidecar.log()).await;
}

#[tokio::test]
async fn sidecar_with_the_url_of_the_api_is_told_about_the_sync_port() {
    let control = ControlPlane::start_one_with(&[]).await;
    let url = &control.env["URL"];
    let sidecar = Sidecar::start_with(&control, &[control.key()], &[&format!("sync.urls={url}")]);
    let told = async || sidecar.log().contains("sidecars connect to the sync port (listen.sync)").then_some(());
    eventually("the control plane answers", told, || sidecar.log()).await;
    assert!(sidecar.log().contains(url), "{}", sidecar.log());
    assert_eq!(sidecar.admin.get("/readyz").await.status, 503);
}

#[tokio::test]
async fn replaced_api_key_is_used_for_the_next_stream() {
    const RELOADS: &str = "countersign_authz_file_reloads_total";
    let control = ControlPlane::start_with(&["sync.max_staleness_seconds=10"]).await;
    let (other, other_key) = control.create_service(json!({ "name": "other" })).await;
    let old = control.create_key(control.service(), "sync").await;
    let sidecar = Sidecar::start_with(&control, &[&old, &other_key], &[]);
    sidecar.wait_until_ready().await;
    let count = |result: &str| format!("{RELOADS}{{result=\"{result}\",setting=\"sync.keys\"}}");
    let wait_for = async |line: &str| {
        let reached = async || sidecar.metric(line).await.filter(|count| *count > 0.0);
        eventually(line, reached, || sidecar.log()).await
    };
    fs::write(sidecar.keys_file(), format!("{old}\n{other_key}\n{old}x\n")).unwrap();
    wait_for(&count("failed")).await;
    // A line is written to the log after the metric has changed.
    let logged = async || sidecar.log().contains("contains 3 API keys instead of 2").then_some(());
    eventually("the failure is logged", logged, || sidecar.log()).await;

    let new = control.create_key(control.service(), "sync").await;
    fs::write(sidecar.keys_file(), format!("{other_key}\n{new}\n")).unwrap();
    wait_for(&count("ok")).await;
    let path = control.path(&format!("/keys/key_{}", &old["svc_sk_".len()..][..26]));
    control.api.send_as(control.human(), "DELETE", &path, json!({})).await.expect(200);
    wait_for(&format!("countersign_authz_stream_reconnects_total{{service=\"{}\"}}", control.service())).await;
    wait_for(&format!("countersign_authz_stream_connected{{service=\"{}\"}}", control.service())).await;
    let log = sidecar.log();
    let ended = log.matches("the stream of the replaced API key has ended").count();
    assert_eq!(ended, 1, "only the stream of the revoked key ends: {log}");
    assert!(!log.contains("refuses the API key"), "a replacement as documented is no error: {log}");
    assert_eq!(sidecar.admin.get("/readyz").await.status, 200);
    let reconnects = format!("countersign_authz_stream_reconnects_total{{service=\"{other}\"}}");
    assert_eq!(sidecar.metric(&reconnects).await, Some(0.0), "the stream of the other service continues");
    let log = sidecar.log();
    assert!(![&old, &new, &other_key].iter().any(|key| log.contains(key.as_str())), "{log}");
}
