//! Fuzzes the running control plane: requests and sync streams.

#![expect(clippy::expect_used, reason = "tests panic on unexpected values")]

mod fuzz_requests;
mod fuzz_streams;

use countersign_tests::{ControlPlane, http::HttpClient};
use std::time::Duration;

/// Asserts that the control plane is healthy and that its log contains no panic.
async fn assert_healthy(control: &ControlPlane) {
    let health = control.api.get("/health").await;
    assert_eq!((health.status, health.text("/status")), (200, "healthy"), "{}", health.body);
    assert!(!control.log().contains("panicked"), "{}", control.log());
}

/// The value of a metric from `/metrics`.
async fn metric(control: &ControlPlane, name: &str) -> Option<f64> {
    let text = HttpClient::plain(control.env["ADMIN_URL"].clone()).get("/metrics").await.body;
    text.as_str()?.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// Timeout of one response, with a margin for busy machines.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);
