//! Limits under `/auth`: ten calls a minute for one agent from one address, and three hundred from one address.

use super::fixture::{Fixture, MINUTE, challenge, count_passed, rate_limit_refusal};
use countersign_client::PrivateKey;
use countersign_tests::{
    Agent, HttpResponse,
    agent::{forged_refresh_token, registration},
    http::HttpClient,
};
use futures_util::future::join_all;
use reqwest::RequestBuilder;
use serde_json::json;
use std::time::Duration;
use tokio::task::JoinSet;

#[tokio::test]
async fn eleventh_call_is_refused_and_one_call_passes_after_retry_delay() {
    let fixture = Fixture::new().await;
    let agent = fixture.register().await;
    assert_eq!(fixture.rate_limited_total("auth").await, Some(0.0));
    fixture.clock.advance(MINUTE);
    for call in 0..10 {
        let response = challenge(&fixture.api, &agent).await;
        assert_eq!(response.header("ratelimit-policy"), "\"auth\";q=10;w=60, \"auth_address\";q=300;w=60");
        let (remaining, address_remaining, wait) = (9 - call, 299 - call, 60 - 2 * call);
        let expected = format!("\"auth\";r={remaining};t={wait}, \"auth_address\";r={address_remaining};t={wait}");
        assert_eq!(response.header("ratelimit"), expected);
        assert_eq!(response.header("retry-after"), "");
        response.expect(200);
        fixture.clock.advance(Duration::from_secs(2));
    }
    assert_eq!(rate_limit_refusal(&challenge(&fixture.api, &agent).await), ("auth".to_owned(), 40));
    fixture.clock.advance(Duration::from_millis(39_999));
    assert_eq!(rate_limit_refusal(&challenge(&fixture.api, &agent).await).1, 1);
    fixture.clock.advance(Duration::from_millis(1));
    challenge(&fixture.api, &agent).await.expect(200);
    // The time window of the rate limit slides: only the oldest call has left the window, so only one new call is accepted.
    assert_eq!(rate_limit_refusal(&challenge(&fixture.api, &agent).await).1, 2);
    assert_eq!(fixture.rate_limited_total("auth").await, Some(3.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_of_fifty_concurrent_calls_pass_over_http1_and_http2() {
    let fixture = Fixture::new().await;
    let agent = fixture.register().await;
    let clients = [
        fixture.with_client(reqwest::ClientBuilder::http1_only),
        fixture.with_client(reqwest::ClientBuilder::http2_prior_knowledge),
    ];
    for http_client in clients {
        fixture.clock.advance(MINUTE);
        let mut calls = JoinSet::new();
        for _ in 0..50 {
            calls.spawn(HttpResponse::send(challenge_request(&http_client, &agent)));
        }
        let responses = calls.join_all().await;
        let (passed, refused): (Vec<_>, Vec<_>) = responses.iter().partition(|response| response.status == 200);
        assert_eq!((passed.len(), refused.len()), (10, 40));
        assert!(refused.into_iter().all(|response| rate_limit_refusal(response).0 == "auth"));
    }
}

#[tokio::test]
async fn all_auth_paths_share_the_limit_of_an_agent() {
    let fixture = Fixture::new().await;
    let agent = fixture.register().await;
    let pair = fixture.login(&agent).await;
    let refresh = pair["refreshToken"].as_str().unwrap();
    let wrong_token = forged_refresh_token(refresh);
    let post = |path: &str| fixture.api.request("POST", path);
    let calls: [RequestBuilder; 4] = [
        post("/auth/refresh").json(&json!({ "refreshToken": wrong_token })),
        post("/auth/revoke").json(&json!({ "token": wrong_token })),
        post("/auth/revoke")
            .header("content-type", "application/x-www-form-urlencoded")
            .body(format!("token={wrong_token}")),
        post("/auth/authenticate").json(&json!({
            "challengeId": challenge(&fixture.api, &agent).await.expect(200)["challengeId"],
            "signature": "00",
        })),
    ];
    // The agent has used three of its ten calls in a minute, so seven more pass, with any path and result.
    for call in 0..7 {
        let response = HttpResponse::send(calls[call % 4].try_clone().unwrap()).await;
        assert_ne!(response.status, 429, "{call}: {}", response.body);
    }
    for call in &calls {
        assert_eq!(rate_limit_refusal(&HttpResponse::send(call.try_clone().unwrap()).await).0, "auth");
    }
    // Rate-limited calls have no effect, so the refresh token is still valid.
    let valid_body = json!({ "refreshToken": refresh });
    rate_limit_refusal(&fixture.api.post("/auth/refresh", valid_body.clone()).await);
    fixture.clock.advance(MINUTE);
    fixture.api.post("/auth/refresh", valid_body).await.expect(200);
}

#[tokio::test]
async fn agents_at_one_address_share_only_the_address_limit() {
    let fixture = Fixture::new().await;
    let agents = join_all((0..31).map(|_| fixture.register())).await;
    fixture.clock.advance(MINUTE);
    for agent in &agents[..30] {
        for _ in 0..10 {
            challenge(&fixture.api, agent).await.expect(200);
        }
    }
    let last = &agents[30];
    let response = challenge(&fixture.api, last).await;
    assert_eq!(rate_limit_refusal(&response), ("auth_address".to_owned(), 60));
    assert!(response.header("ratelimit").contains("\"auth\";r=10;t=0"), "{:?}", response.headers);
    assert_eq!(fixture.rate_limited_total("auth_address").await, Some(1.0));
    // Calls with other paths from the rate-limited address are refused too, but calls from a second address are not.
    let unknown_token = json!({ "refreshToken": format!("rf_{}{}", "0".repeat(26), "0".repeat(64)) });
    assert_eq!(rate_limit_refusal(&fixture.api.post("/auth/refresh", unknown_token).await).0, "auth_address");
    challenge(&fixture.from(2), last).await.expect(200);
}

#[tokio::test]
async fn calls_from_another_address_do_not_count_towards_the_limit_of_an_agent() {
    let fixture = Fixture::new().await;
    let agent = fixture.register().await;
    let other_address = fixture.from(3);
    assert_eq!(count_passed(20, || challenge_request(&other_address, &agent)).await, 10);
    assert_eq!(count_passed(20, || challenge_request(&fixture.api, &agent)).await, 10);
}

#[tokio::test]
async fn bodies_without_an_agent_share_one_limit() {
    let fixture = Fixture::new().await;
    let bodies = ["{}", "nonsense", "[]", r#"{"agentId":7}"#, r#"{"agentId":"a","agentId":"b"}"#, ""];
    let mut passed = 0;
    for number in 0..60 {
        let request = fixture.api.request("POST", "/auth/challenge").header("content-type", "application/json");
        passed += usize::from(HttpResponse::send(request.body(bodies[number % bodies.len()])).await.status != 429);
    }
    // A body with two agent ids counts for the first agent, whose id a lenient parser would use.
    assert_eq!(passed, 10 + 10);
}

#[tokio::test]
async fn registration_is_limited_to_10_per_key_and_300_per_address() {
    let fixture = Fixture::new().await;
    let body = registration(&PrivateKey::generate(), "Agent");
    assert_eq!(count_passed(12, || fixture.api.request("POST", "/auth/register").json(&body)).await, 10);
    let mut registered = 0;
    for number in 0..300 {
        // Each registration request contains a different invalid public key.
        let mut body = body.clone();
        body["publicKey"] = number.to_string().into();
        registered += usize::from(fixture.api.post("/auth/register", body).await.status != 429);
    }
    assert_eq!(registered, 290);
}

fn challenge_request(client: &HttpClient, agent: &Agent) -> RequestBuilder {
    client.request("POST", "/auth/challenge").json(&json!({ "agentId": agent.id }))
}

#[tokio::test]
async fn clients_behind_a_trusted_proxy_are_limited_separately() {
    let fixture = Fixture::with_settings(&["proxies.trusted=127.0.0.9"]).await;
    let agent = fixture.register().await;
    let proxy = fixture.from(9);
    for client in ["198.51.100.1", "203.0.113.5, 198.51.100.2", "2001:db8:1:2::1"] {
        let request = || challenge_request(&proxy, &agent).header("x-forwarded-for", client);
        assert_eq!(count_passed(12, request).await, 10, "{client}");
    }
    // Clients that have exhausted the rate limit send their addresses in another notation. All addresses of an IPv6 /64
    // count as one client.
    for client in ["::ffff:198.51.100.1", "198.51.100.1:4711", "203.0.113.6, 198.51.100.2", "2001:db8:1:2:ffff::9"] {
        let request = || challenge_request(&proxy, &agent).header("x-forwarded-for", client);
        assert_eq!(count_passed(2, request).await, 0, "{client}");
    }
    let other = || challenge_request(&proxy, &agent).header("x-forwarded-for", "2001:db8:1:3::1");
    assert_eq!(count_passed(12, other).await, 10);
    let own = count_passed(12, || challenge_request(&proxy, &agent)).await;
    assert_eq!(own, 10, "the proxy's own calls have a separate limit");
}
