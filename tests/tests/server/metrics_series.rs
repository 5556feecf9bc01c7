//! Tests which series exist, and the metrics of connections, key fetches and the change feed. Each process has its own
//! metrics, so the control planes are one process.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{
    Agent, ControlPlane, Issuer, SigningKey, engines, eventually, http::HttpClient, prometheus::lint,
};
use futures_util::future::join_all;
use serde_json::Value;

pub(crate) async fn scrape(control: &ControlPlane) -> String {
    let body = HttpClient::plain(control.env["ADMIN_URL"].clone()).get("/metrics").await.expect(200);
    body.as_str().unwrap().to_owned()
}

/// The value of a series, by its name and labels.
pub(crate) fn series_value(metrics: &str, series: &str) -> Option<f64> {
    metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

#[tokio::test]
async fn series_that_cannot_occur_are_absent() {
    let control = ControlPlane::start_one_with(&[]).await;
    let metrics = scrape(&control).await;
    for series in [
        r#"countersign_feedback_total{result="VALIDATION_ERROR"}"#,
        r#"countersign_role_changes_total{result="ROLE_NOT_FOUND"}"#,
        r#"countersign_refusals_total{reason="admin_required"}"#,
    ] {
        assert_eq!(series_value(&metrics, series), Some(0.0), "{series}");
    }
    for series in [
        r#"countersign_feedback_total{result="INVALID_SIGNATURE"}"#,
        r#"countersign_registrations_total{result="ROLE_NOT_FOUND"}"#,
        r#"countersign_refusals_total{reason="view_stale"}"#,
        r#"countersign_refusals_total{reason="permission_missing"}"#,
    ] {
        assert_eq!(series_value(&metrics, series), None, "{series}");
    }
}

#[tokio::test]
async fn request_durations_have_the_method() {
    let control = ControlPlane::start_one_with(&[]).await;
    control.api.get("/health").await.expect(200);
    let series = r#"countersign_http_request_duration_seconds_count{method="GET",route="/health"}"#;
    assert_eq!(series_value(&scrape(&control).await, series), Some(1.0));
}

#[tokio::test]
async fn connection_pools_are_exposed() {
    let control = ControlPlane::start_one_with(&[]).await;
    control.create_role("reader", &[]).await;
    assert_eq!(lint(&scrape(&control).await), "");
    let (reads, writes) = if engines::database_backend() == "sqlite" { (8.0, 1.0) } else { (8.0, 7.0) };
    for (pool, max) in [("read", reads), ("write", writes)] {
        // While a connection returns to its pool, it counts neither as in use nor as idle.
        let open = async || {
            let metrics = scrape(&control).await;
            let max_series = format!("countersign_store_connections_max{{pool=\"{pool}\"}}");
            assert_eq!(series_value(&metrics, &max_series), Some(max));
            let states = ["in_use", "idle"].map(|state| {
                let series = format!("countersign_store_connections{{pool=\"{pool}\",state=\"{state}\"}}");
                series_value(&metrics, &series).unwrap()
            });
            (1.0..=max).contains(&states.iter().sum()).then_some(metrics)
        };
        let metrics = eventually("the pool has open connections", open, || control.log()).await;
        let waits =
            series_value(&metrics, &format!("countersign_store_connection_wait_seconds_count{{pool=\"{pool}\"}}"));
        assert!(waits.unwrap() >= 1.0, "{pool}: {waits:?}");
    }
}

#[tokio::test]
async fn housekeeping_is_exposed() {
    let control = ControlPlane::start_one_with(&[]).await;
    let metrics = scrape(&control).await;
    for data in ["changes", "sessions", "webhook_deliveries", "deleted_roles"] {
        let oldest = format!("countersign_housekeeping_oldest_expired_timestamp_seconds{{data=\"{data}\"}}");
        assert_eq!(series_value(&metrics, &oldest), Some(0.0), "{data}");
    }
    let series = r#"countersign_housekeeping_deleted_rows_total{data="deleted_roles"}"#;
    assert_eq!(series_value(&metrics, series), Some(0.0));
    let (role, agent) = (control.create_role("reader", &[]).await, Agent::register(&control, "Agent").await);
    control.assign(&agent.id, &role).await;
    control.delete_role(&role).await.expect(200);
    // The assignment and the row of the role.
    let deleted = async || (series_value(&scrape(&control).await, series) == Some(2.0)).then_some(());
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
        assert_eq!(series_value(&scrape(&control).await, &series), Some(f64::from(REQUESTS)));
    }
    // Every request is logged, or is in the number of those left out.
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
    let last_read = async || series_value(&scrape(&control).await, name).filter(|time| *time > 1.6e9);
    let first = eventually("the feed has been read", last_read, || control.log()).await;
    let later = async || last_read().await.filter(|time| *time > first);
    eventually("the feed is read again", later, || control.log()).await;
}

#[tokio::test]
async fn key_fetches_are_counted_by_issuer() {
    let key = SigningKey::p256("p");
    let issuer = Issuer::start(&[&key]).await;
    let broken_jwks_url = "humans.issuers.broken.jwks=http://127.0.0.1:1/jwks";
    let mut settings = issuer.settings("corp", &[]).clone();
    settings.extend([
        "humans.issuers.broken.issuer=https://broken.example".to_owned(),
        "humans.issuers.broken.audience=countersign".to_owned(),
        broken_jwks_url.to_owned(),
    ]);
    let settings: Vec<_> = settings.iter().map(String::as_str).collect();
    let control = ControlPlane::start_one_with(&settings).await;
    let fetch_count = |metrics: &str, issuer: &str, result: &str| {
        series_value(metrics, &format!("countersign_jwks_fetches_total{{issuer=\"{issuer}\",result=\"{result}\"}}"))
    };
    let before = scrape(&control).await;
    assert_eq!((fetch_count(&before, "corp", "ok"), fetch_count(&before, "broken", "failed")), (Some(0.0), Some(0.0)));
    control.api.get_as(&key.token(&issuer.claims("ann")), "/services").await.expect(200);
    let mut claims = issuer.claims("ann");
    claims["iss"] = "https://broken.example".into();
    claims["aud"] = "countersign".into();
    control.api.get_as(&key.token(&claims), "/services").await.expect(503);
    let after = scrape(&control).await;
    assert_eq!((fetch_count(&after, "corp", "ok"), fetch_count(&after, "broken", "failed")), (Some(1.0), Some(1.0)));
    assert_eq!((fetch_count(&after, "corp", "failed"), fetch_count(&after, "broken", "ok")), (Some(0.0), Some(0.0)));
    assert_eq!(lint(&after), "");
}
