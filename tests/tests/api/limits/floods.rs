//! A client with many addresses fills the table of rate-limit windows.

use super::fixture::{Fixture, MINUTE};
use countersign_tests::HttpResponse;
use serde_json::json;

/// Room for windows. A request under `/auth` uses two: that of the address, and that of the address and the agent.
const WINDOWS: usize = 64;

/// An agent in the body of requests, which does not exist.
const AGENT: &str = "agent_00000000000000000000000001";

/// Whether a request for a challenge, which the trusted proxy forwards for this address, is over no limit.
async fn is_allowed(fixture: &Fixture, address: &str) -> bool {
    let request = fixture.api.request("POST", "/auth/challenge").json(&json!({ "agentId": AGENT }));
    HttpResponse::send(request.header("x-forwarded-for", address)).await.status != 429
}

/// The number of common windows, from the metrics.
async fn common_windows(fixture: &Fixture) -> u32 {
    let metrics = fixture.admin.get("/metrics").await.body;
    let mut lines = metrics.as_str().unwrap().lines();
    lines.find_map(|line| line.strip_prefix("countersign_rate_limit_common_windows ")).unwrap().parse().unwrap()
}

#[tokio::test]
async fn flood_of_an_ipv6_network_limits_only_this_network() {
    let settings = [("proxies.trusted", "127.0.0.1/32")];
    let fixture = Fixture::with_windows(&settings, WINDOWS).await;
    let honest = "203.0.113.7";
    for _ in 0..5 {
        assert!(is_allowed(&fixture, honest).await);
    }
    for _ in 0..10 {
        assert!(is_allowed(&fixture, "2001:db8:1:0::1").await);
    }
    assert!(!is_allowed(&fixture, "2001:db8:1:0::1").await, "ten requests are allowed");
    assert_eq!(common_windows(&fixture).await, 0);
    let mut refused = 0;
    for subnet in 1..200 {
        refused += usize::from(!is_allowed(&fixture, &format!("2001:db8:1:{subnet:x}::1")).await);
    }
    assert!(refused > 100, "the network shares one window: {refused} refused");
    assert!(!is_allowed(&fixture, "2001:db8:1:0::1").await, "the flood does not reset the count of its address");
    for _ in 0..5 {
        assert!(is_allowed(&fixture, honest).await, "another address keeps its window");
    }
    assert!(!is_allowed(&fixture, honest).await, "the flood does not reset the count of another address");
    for other in ["198.51.100.1", "2001:db8:2::1", "192.0.2.9"] {
        assert!(is_allowed(&fixture, other).await, "{other} has no window yet");
    }
    // One for requests by address, and one for requests by address and agent.
    assert!((1..=2).contains(&common_windows(&fixture).await));
    fixture.clock.advance(MINUTE * 3);
    assert_eq!(
        common_windows(&fixture).await,
        0,
        "common windows end, and are not counted while there are no requests"
    );
}
