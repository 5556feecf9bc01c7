//! Tests of the metrics of connections, requests, key fetches, housekeeping and the change feed. Each process has its own metrics,
//! so these tests start one replica only.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{Agent, ControlPlane, Issuer, SigningKey, engines, eventually, prometheus::lint};
use futures_util::future::join_all;
use serde_json::Value;

async fn scrape(control: &ControlPlane) -> String {
    control.admin().get("/metrics").await.expect(200).as_str().unwrap().to_owned()
}

#[tokio::test]
async fn connection_pools_are_exposed() {
    let control = ControlPlane::start_one_with(&[]).await;
    control.create_role("reader", &[]).await;
    assert_eq!(lint(&scrape(&control).await), "");
    let (reads, writes) = if engines::database_backend() == "sqlite" { (8.0, 1.0) } else { (8.0, 7.0) };
    for (pool, max) in [("read", reads), ("write", writes)] {
        // While a connection returns to its pool, it counts neither as in use nor as idle.
        let series = |name: &str, state: &str| format!("countersign_store_{name}{{pool=\"{pool}\"{state}}}");
        let metric = async |name: &str, state: &str| control.metric(&series(name, state)).await.unwrap();
        assert_eq!(control.metric(&series("connections_max", "")).await, Some(max));
        let open = async || {
            let in_use = metric("connections", ",state=\"in_use\"").await;
            (1.0..=max).contains(&(in_use + metric("connections", ",state=\"idle\"").await)).then_some(())
        };
        eventually("the pool has open connections", open, || control.log()).await;
        assert!(metric("connection_wait_seconds_count", "").await >= 1.0, "{pool}");
    }
}

#[tokio::test]
async fn housekeeping_is_exposed() {
    let control = ControlPlane::start_one_with(&[]).await;
    for data in ["changes", "sessions", "webhook_deliveries", "deleted_roles"] {
        let oldest = format!("countersign_housekeeping_oldest_expired_timestamp_seconds{{data=\"{data}\"}}");
        assert_eq!(control.metric(&oldest).await, Some(0.0), "{data}");
    }
    let series = r#"countersign_housekeeping_deleted_rows_total{data="deleted_roles"}"#;
    assert_eq!(control.metric(series).await, Some(0.0));
    let (_agent, role) = Agent::with_role(&control, "reader", &[]).await;
    control.delete_role(&role).await.expect(200);
    // Two rows are deleted: the assignment and the role.
    let deleted = async || (control.metric(series).await == Some(2.0)).then_some(());
    eventually("the deleted rows are counted", deleted, || control.log()).await;
}

#[tokio::test]
async fn requests_without_a_rate_limit_are_all_counted_but_not_all_logged() {
    /// Requests of each class.
    const REQUESTS: u32 = 200;
    let control = ControlPlane::start_one_with(&["log.format=json"]).await;
    for (path, route, status) in [("/nowhere", "unmatched", 404), ("/openapi.json", "/openapi.json", 200)] {
        for response in join_all((0..REQUESTS).map(|_| control.api.get(path))).await {
            assert_eq!(response.status, status, "{}", response.body);
        }
        let series = format!("countersign_http_requests_total{{method=\"GET\",route=\"{route}\",status=\"{status}\"}}");
        assert_eq!(control.metric(&series).await, Some(f64::from(REQUESTS)));
    }
    // Every request has a log line, or is in the number of lines left out, which is logged.
    let log = || -> Vec<Value> { control.log().lines().filter_map(|line| serde_json::from_str(line).ok()).collect() };
    for (route, class) in [("unmatched", "unknown_path"), ("/openapi.json", "unlimited")] {
        let lines = || log().iter().filter(|line| line["route"] == route).map(|_| 1_u64).sum::<u64>();
        let left_out = || -> u64 {
            log().iter().filter(|line| line["class"] == class).map(|line| line["count"].as_u64().unwrap()).sum()
        };
        let all_reported = async || (lines() + left_out() == u64::from(REQUESTS)).then_some(());
        eventually("the number of lines left out is logged", all_reported, || control.log()).await;
        assert!(lines() >= 10 && left_out() > 0, "{route}: {} lines, {} left out", lines(), left_out());
    }
    // Requests that a rate limit accepted are logged.
    for number in 0..30 {
        control.create_role(&format!("role-{number}"), &[]).await;
    }
    let created = async || (log().iter().filter(|line| line["status"] == 201).count() >= 30).then_some(());
    eventually("all requests are logged", created, || control.log()).await;
}

#[tokio::test]
async fn feed_reads_are_exposed() {
    let control = ControlPlane::start_one_with(&[]).await;
    let name = "countersign_feed_last_read_timestamp_seconds";
    let last_read = async || control.metric(name).await.filter(|time| *time > 1.6e9);
    let first = eventually("the feed has been read", last_read, || control.log()).await;
    let later = async || last_read().await.filter(|time| *time > first);
    eventually("the feed is read again", later, || control.log()).await;
}

#[tokio::test]
async fn key_fetches_are_counted_by_issuer() {
    let key = SigningKey::p256("p");
    let issuer = Issuer::start(&[&key]).await;
    let settings = issuer.settings("corp", &[]);
    let broken = [
        "humans.issuers.broken.issuer=https://broken.example",
        "humans.issuers.broken.audience=countersign",
        "humans.issuers.broken.jwks=http://127.0.0.1:1/jwks",
    ];
    let settings: Vec<_> = settings.iter().map(String::as_str).chain(broken).collect();
    let control = ControlPlane::start_one_with(&settings).await;
    let fetches = async |issuer: &str, result: &str| {
        let series = format!("countersign_jwks_fetches_total{{issuer=\"{issuer}\",result=\"{result}\"}}");
        control.metric(&series).await.unwrap()
    };
    assert_eq!((fetches("corp", "ok").await, fetches("broken", "failed").await), (0.0, 0.0));
    control.api.get_as(&key.token(&issuer.claims("ann")), "/services").await.expect(200);
    let mut claims = issuer.claims("ann");
    claims["iss"] = "https://broken.example".into();
    claims["aud"] = "countersign".into();
    control.api.get_as(&key.token(&claims), "/services").await.expect(503);
    assert_eq!((fetches("corp", "ok").await, fetches("broken", "failed").await), (1.0, 1.0));
    assert_eq!((fetches("corp", "failed").await, fetches("broken", "ok").await), (0.0, 0.0));
    assert_eq!(lint(&scrape(&control).await), "");
}
