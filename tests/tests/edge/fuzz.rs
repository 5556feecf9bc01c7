//! Fuzzes the running control plane: requests and sync streams.

#![expect(clippy::expect_used, reason = "a test says what it expects")]

mod fuzz_requests;
mod fuzz_streams;

use countersign_tests::{ControlPlane, http::HttpClient};
use std::time::Duration;

/// Asserts that the control plane answers and that nothing panicked.
async fn is_well(control: &ControlPlane) {
    let health = control.api.get("/health").await;
    assert_eq!((health.status, health.text("/status")), (200, "healthy"), "{}", health.body);
    assert!(!control.log().contains("panicked"), "{}", control.log());
}

/// A value of `/metrics`.
async fn figure(control: &ControlPlane, name: &str) -> Option<f64> {
    let text = HttpClient::plain(control.env["ADMIN_URL"].clone()).get("/metrics").await.body;
    text.as_str()?.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// Deadline of one response on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
