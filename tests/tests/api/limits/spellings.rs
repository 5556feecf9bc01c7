//! A path under `/auth` in a spelling that does not address its route returns 404, so the spelling cannot bypass the
//! rate limit of the route.

use countersign_tests::{Agent, ControlPlane, RawRequest};
use secrecy::ExposeSecret;
use serde_json::json;

const SPELLINGS: [&str; 14] = [
    "/auth/refresh/",
    "//auth/refresh",
    "/auth//refresh",
    "/auth/./refresh",
    "/./auth/refresh",
    "/x/../auth/refresh",
    "/auth/refresh/.",
    "/auth%2frefresh",
    "/auth/%72efresh",
    "/%61uth/refresh",
    "/AUTH/refresh",
    "/auth/refresh;a=b",
    "/auth/refresh%20",
    "/auth\\refresh",
];

/// Spellings of a path that address the same route.
const EQUIVALENT: [&str; 3] = ["/auth/refresh", "/auth/refresh?a=b", "http://service/auth/refresh"];

#[tokio::test]
async fn other_spellings_of_a_path_do_not_bypass_the_limit() {
    let control = ControlPlane::start_with_default_limits().await;
    let agent = Agent::register(&control, "Agent").await;
    let pair = agent.login().await;
    for _ in 0..8 {
        control.api.post("/auth/challenge", json!({ "agentId": agent.id })).await.expect(200);
    }
    let body = json!({ "refreshToken": pair.refresh_token.expose_secret() }).to_string();
    let send = async |path: &str| {
        let request = RawRequest::new("POST", path).with("content-type", "application/json");
        request.with("content-length", body.len().to_string()).send_tls(&control, body.as_bytes()).await
    };
    for path in EQUIVALENT {
        let response = send(path).await.unwrap();
        assert_eq!(response.error(), (429, "RATE_LIMIT_EXCEEDED", ""), "{path}");
    }
    for path in SPELLINGS {
        // The HTTP library rejects an invalid path, with or without a response.
        let Some(response) = send(path).await else { continue };
        assert!([400, 404].contains(&response.status), "{path}: {} {}", response.status, response.body);
        assert!(!response.body.to_string().contains("accessToken"), "{path}");
    }
}
