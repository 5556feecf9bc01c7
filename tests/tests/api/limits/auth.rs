//! Under `/auth`: ten calls a minute about one agent from one address, and three hundred from one address.

use super::fixture::{Agent, Fixture, MINUTE, challenge, passed, refused};
use countersign_tests::{ControlPlane, HttpResponse, http::HttpClient};
use reqwest::RequestBuilder;
use serde_json::json;
use std::time::Duration;
use tokio::task::JoinSet;

#[tokio::test]
async fn eleventh_call_is_refused_and_one_call_passes_after_retry_delay() {
    let fixture = Fixture::new().await;
    let agent = fixture.register().await;
    assert_eq!(fixture.counted("auth").await, Some(0.0));
    fixture.clock.advance(MINUTE);
    for call in 0..10 {
        let answer = challenge(&fixture.api, &agent).await;
        assert_eq!(answer.header("ratelimit-policy"), "\"auth\";q=10;w=60, \"auth_address\";q=300;w=60");
        let (own, address, wait) = (9 - call, 299 - call, 60 - 2 * call);
        let left = format!("\"auth\";r={own};t={wait}, \"auth_address\";r={address};t={wait}");
        assert_eq!(answer.header("ratelimit"), left);
        assert_eq!(answer.header("retry-after"), "");
        answer.expect(200);
        fixture.clock.advance(Duration::from_secs(2));
    }
    assert_eq!(refused(&challenge(&fixture.api, &agent).await), ("auth".to_owned(), 40));
    fixture.clock.advance(Duration::from_millis(39_999));
    assert_eq!(refused(&challenge(&fixture.api, &agent).await).1, 1);
    fixture.clock.advance(Duration::from_millis(1));
    challenge(&fixture.api, &agent).await.expect(200);
    // One came free, not all: the window slides.
    assert_eq!(refused(&challenge(&fixture.api, &agent).await).1, 2);
    assert_eq!(fixture.counted("auth").await, Some(3.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_of_fifty_concurrent_calls_pass_over_http1_and_http2() {
    let fixture = Fixture::new().await;
    let agent = fixture.register().await;
    let sites = [
        fixture.with_client(reqwest::ClientBuilder::http1_only),
        fixture.with_client(reqwest::ClientBuilder::http2_prior_knowledge),
    ];
    for site in sites {
        fixture.clock.advance(MINUTE);
        let mut crowd = JoinSet::new();
        for _ in 0..50 {
            crowd.spawn(HttpResponse::send(
                site.request("POST", "/auth/challenge").json(&json!({ "agentId": agent.id })),
            ));
        }
        let answers = crowd.join_all().await;
        let (passed, over): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
        assert_eq!((passed.len(), over.len()), (10, 40));
        assert!(over.into_iter().all(|answer| refused(answer).0 == "auth"));
    }
}

#[tokio::test]
async fn all_auth_paths_share_the_limit_of_an_agent() {
    let fixture = Fixture::new().await;
    let agent = fixture.register().await;
    let pair = fixture.login(&agent).await;
    let refresh = pair["refreshToken"].as_str().unwrap();
    let (digits, last) = refresh.split_at(refresh.len() - 1);
    let wrong = format!("{digits}{}", if last == "0" { "1" } else { "0" });
    let post = |path: &str| fixture.api.request("POST", path);
    let calls: [RequestBuilder; 4] = [
        post("/auth/refresh").json(&json!({ "refreshToken": wrong })),
        post("/auth/revoke").json(&json!({ "token": wrong })),
        post("/auth/revoke").header("content-type", "application/x-www-form-urlencoded").body(format!("token={wrong}")),
        post("/auth/authenticate").json(&json!({
            "challengeId": challenge(&fixture.api, &agent).await.expect(200)["challengeId"],
            "signature": "00",
        })),
    ];
    // Three are used up: of the rest, seven pass, whichever they are and however they end.
    for call in 0..7 {
        let answer = HttpResponse::send(calls[call % 4].try_clone().unwrap()).await;
        assert_ne!(answer.status, 429, "{call}: {}", answer.body);
    }
    for call in &calls {
        assert_eq!(refused(&HttpResponse::send(call.try_clone().unwrap()).await).0, "auth");
    }
    // What was refused did nothing: the token is as good as it was.
    let good = json!({ "refreshToken": refresh });
    refused(&fixture.api.post("/auth/refresh", good.clone()).await);
    fixture.clock.advance(MINUTE);
    fixture.api.post("/auth/refresh", good).await.expect(200);
}

#[tokio::test]
async fn agents_at_one_address_share_only_the_address_limit() {
    let fixture = Fixture::new().await;
    let mut agents = Vec::new();
    for _ in 0..31 {
        agents.push(fixture.register().await);
    }
    fixture.clock.advance(MINUTE);
    for agent in &agents[..30] {
        for _ in 0..10 {
            challenge(&fixture.api, agent).await.expect(200);
        }
    }
    let last = &agents[30];
    let answer = challenge(&fixture.api, last).await;
    assert_eq!(refused(&answer), ("auth_address".to_owned(), 60));
    assert!(answer.header("ratelimit").contains("\"auth\";r=10;t=0"), "{:?}", answer.headers);
    assert_eq!(fixture.counted("auth_address").await, Some(1.0));
    // So is everything else that is sent there, but not from elsewhere.
    let wrong = json!({ "refreshToken": format!("rf_{}{}", "0".repeat(26), "0".repeat(64)) });
    assert_eq!(refused(&fixture.api.post("/auth/refresh", wrong).await).0, "auth_address");
    challenge(&fixture.from(2), last).await.expect(200);
}

#[tokio::test]
async fn calls_from_another_address_do_not_use_up_the_limit_of_an_agent() {
    let fixture = Fixture::new().await;
    let agent = fixture.register().await;
    let elsewhere = fixture.from(3);
    assert_eq!(passed(20, || challenge_request(&elsewhere, &agent)).await, 10);
    assert_eq!(passed(20, || challenge_request(&fixture.api, &agent)).await, 10);
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
    // Which of two agents is meant cannot be told, but the first is what a lax reader would see.
    assert_eq!(passed, 10 + 10);
}

#[tokio::test]
async fn registration_is_limited_to_10_per_key_and_300_per_address() {
    let fixture = Fixture::new().await;
    let key = countersign_client::PrivateKey::generate().public_pem().unwrap();
    let body = |key: &str| json!({ "email": "owner@example.org", "name": "Agent", "publicKey": key });
    assert_eq!(passed(12, || fixture.api.request("POST", "/auth/register").json(&body(&key))).await, 10);
    let mut registered = 0;
    for number in 0..300 {
        // No key at all, and yet another each time.
        let answer = fixture.api.post("/auth/register", body(&number.to_string())).await;
        registered += usize::from(answer.status != 429);
    }
    assert_eq!(registered, 290);
}

fn challenge_request(at: &HttpClient, agent: &Agent) -> RequestBuilder {
    at.request("POST", "/auth/challenge").json(&json!({ "agentId": agent.id }))
}

#[tokio::test]
async fn forwarded_address_from_an_untrusted_peer_is_ignored() {
    let fixture = Fixture::with_settings(&[("proxies.trusted", "127.0.0.9")]).await;
    let agent = fixture.register().await;
    let mut number = 0;
    let mut request = || {
        number += 1;
        let forwarded = format!("198.51.100.{number}");
        let request = challenge_request(&fixture.api, &agent).header("x-forwarded-for", &forwarded);
        request.header("forwarded", format!("for={forwarded}")).header("x-real-ip", forwarded)
    };
    let requests: Vec<_> = (0..20).map(|_| request()).collect();
    let mut passed = 0;
    for request in requests {
        passed += usize::from(HttpResponse::send(request).await.status == 200);
    }
    assert_eq!(passed, 10);
}

#[tokio::test]
async fn clients_behind_a_trusted_proxy_are_limited_separately() {
    let fixture = Fixture::with_settings(&[("proxies.trusted", "127.0.0.9")]).await;
    let agent = fixture.register().await;
    let proxy = fixture.from(9);
    for client in ["198.51.100.1", "203.0.113.5, 198.51.100.2", "2001:db8:1:2::1"] {
        let request = || challenge_request(&proxy, &agent).header("x-forwarded-for", client);
        assert_eq!(passed(12, request).await, 10, "{client}");
    }
    // The same clients, spelled otherwise; the whole /64 is one.
    for client in ["::ffff:198.51.100.1", "198.51.100.1:4711", "203.0.113.6, 198.51.100.2", "2001:db8:1:2:ffff::9"] {
        let request = || challenge_request(&proxy, &agent).header("x-forwarded-for", client);
        assert_eq!(passed(2, request).await, 0, "{client}");
    }
    let other = || challenge_request(&proxy, &agent).header("x-forwarded-for", "2001:db8:1:3::1");
    assert_eq!(passed(12, other).await, 10);
    assert_eq!(passed(12, || challenge_request(&proxy, &agent)).await, 10, "the proxy itself");
}

#[tokio::test]
async fn released_binary_enforces_the_default_limits() {
    let control = ControlPlane::start_with_default_limits().await;
    let agent = countersign_tests::Agent::register(&control, "Agent").await;
    for _ in 0..10 {
        control.api.post("/auth/challenge", json!({ "agentId": agent.id })).await.expect(200);
    }
    let answer = control.api.post("/auth/challenge", json!({ "agentId": agent.id })).await;
    let (category, seconds) = refused(&answer);
    assert!(category == "auth" && (30..=60).contains(&seconds), "{category} {seconds}");
}
