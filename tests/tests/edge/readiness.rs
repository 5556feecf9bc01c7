//! Readiness of the sidecar, and the file of the certificate authorities that it trusts.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{Agent, ControlPlane, Sidecar, eventually};
use serde_json::json;
use std::fs;
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
    let (agent, _) = Agent::with_role(&control, "reader", &["read"]).await;
    let token = agent.token().await;
    sidecar.wait_until_accepted(&token).await;
    wait_for_health(&sidecar, ServingStatus::Serving).await;

    control.signal("STOP");
    let body = wait_for_readiness(&sidecar, 503).await;
    let expected = format!("view of service {} (sync.keys[0]): the last one is ", control.service());
    assert!(body.contains(&expected) && body.contains(" s old, the limit is 3 s"), "{body}");
    sidecar.wait_until_refused(&token, "view_stale").await;
    wait_for_health(&sidecar, ServingStatus::NotServing).await;
    assert_eq!(sidecar.admin.get("/livez").await.status, 200);

    control.signal("CONT");
    wait_for_readiness(&sidecar, 200).await;
    wait_for_health(&sidecar, ServingStatus::Serving).await;
    sidecar.wait_until_accepted(&token).await;
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
    let stale = async || reason().await.filter(|reason| reason == "sync_key_refused");
    eventually("the view of the deleted service is stale", stale, || sidecar.log()).await;
    sidecar.wait_for_log("not ready: checks are denied").await;
    assert_eq!(sidecar.admin.get("/readyz").await.status, 200, "{}", sidecar.log());
    let result = sidecar.check_with(&[], &[("service_id", control.service())]).await;
    assert_eq!(result.reason, "token_missing");

    sidecar.restart();
    sidecar.wait_until_ready().await;
    sidecar.wait_for_log("ready without this API key").await;
}

#[tokio::test]
async fn replaced_certificate_authority_is_used_for_the_next_connection() {
    const FAILED: &str = r#"countersign_authz_file_reloads_total{result="failed",setting="sync.ca"}"#;
    let mut control = ControlPlane::start_process().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert.pem();
    fs::write(&file, other).unwrap();
    let sidecar = Sidecar::start_with(&control, &[control.key()], &[&format!("sync.ca={}", file.display())]);
    sidecar.wait_for_log("cannot open the sync stream").await;
    assert_eq!(sidecar.admin.get("/readyz").await.status, 503);

    fs::write(&file, control.authority()).unwrap();
    wait_for_readiness(&sidecar, 200).await;
    let reconnects = format!("countersign_authz_stream_reconnects_total{{service=\"{}\"}}", control.service());
    fs::write(&file, "no certificate").unwrap();
    sidecar.wait_for_metric(FAILED).await;
    assert_eq!(sidecar.metric(&reconnects).await, Some(0.0), "the stream continues");

    control.restart().await;
    sidecar.wait_for_metric(&reconnects).await;
    let connected = format!("countersign_authz_stream_connected{{service=\"{}\"}}", control.service());
    sidecar.wait_for_metric(&connected).await;
}

#[tokio::test]
async fn sidecar_with_the_url_of_the_api_is_told_about_the_sync_port() {
    let control = ControlPlane::start_one_with(&[]).await;
    let url = &control.env["URL"];
    let sidecar = Sidecar::start_with(&control, &[control.key()], &[&format!("sync.urls={url}")]);
    sidecar.wait_for_log("sidecars connect to the sync port (listen.sync)").await;
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
    let new = control.create_key(control.service(), "sync").await;
    fs::write(sidecar.keys_file(), format!("{new}\n{other_key}\n")).unwrap();
    sidecar.wait_for_metric(&count("ok")).await;
    let path = control.path(&format!("/keys/key_{}", &old["svc_sk_".len()..][..26]));
    control.api.send_as(control.human(), "DELETE", &path, json!({})).await.expect(200);
    sidecar
        .wait_for_metric(&format!("countersign_authz_stream_reconnects_total{{service=\"{}\"}}", control.service()))
        .await;
    sidecar.wait_for_metric(&format!("countersign_authz_stream_connected{{service=\"{}\"}}", control.service())).await;
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
