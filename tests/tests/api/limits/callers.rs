//! Limits for authenticated services and human users, and for failed authentication per address.

use super::fixture::{Fixture, MINUTE, count_passed, rate_limit_refusal};
use countersign_tests::{HttpResponse, control_plane::text, http::HttpClient};
use reqwest::RequestBuilder;
use serde_json::json;

fn get(client: &HttpClient, bearer: &str, path: &str) -> RequestBuilder {
    client.request("GET", path).bearer_auth(bearer)
}

#[tokio::test]
async fn management_requests_are_limited_per_service_and_per_human_user() {
    let fixture = Fixture::new().await;
    let control = &fixture.control;
    let (other, other_key) = control.create_service(json!({ "name": "Other" })).await;
    let second_key = control.create_key(control.service(), "full").await;
    fixture.clock.advance(MINUTE);
    let roles = format!("/services/{}/roles", fixture.control.service());
    let first = HttpResponse::send(get(&fixture.api, fixture.control.key(), &roles)).await;
    assert_eq!(first.header("ratelimit-policy"), "\"management\";q=100;w=60, \"management_owner\";q=500;w=60");
    assert_eq!(first.header("ratelimit"), "\"management\";r=99;t=60, \"management_owner\";r=499;t=60");
    assert_eq!(count_passed(110, || get(&fixture.api, fixture.control.key(), &roles)).await, 99);
    // All management routes share one rate limit, for every key of the service and every address.
    let agents = format!("/services/{}/agents", fixture.control.service());
    for path in [roles.as_str(), &agents, "/status", "/trust/agents/agent_00000000000000000000000000/history"] {
        for client in [&fixture.api, &fixture.from(2)] {
            let refused = rate_limit_refusal(&HttpResponse::send(get(client, &second_key, path)).await);
            assert_eq!(refused, ("management".to_owned(), 60), "{path}");
        }
    }
    // Each service and its owner have separate limits of management calls, and calls of other routes do not count.
    HttpResponse::send(get(&fixture.api, &other_key, &format!("/services/{other}/roles"))).await.expect(200);
    assert_eq!(count_passed(110, || get(&fixture.api, fixture.control.human(), &roles)).await, 100);
    let verify = HttpResponse::send(get(
        &fixture.api,
        fixture.control.key(),
        &format!("/services/{}/verify", fixture.control.service()),
    ))
    .await;
    assert_eq!(verify.error(), (401, "AUTHENTICATION_FAILED", "token_missing"));
    fixture.clock.advance(MINUTE);
    HttpResponse::send(get(&fixture.api, fixture.control.key(), &roles)).await.expect(200);
    assert_eq!(fixture.rate_limited_total("management").await, Some(11.0 + 8.0 + 10.0));
}

#[tokio::test]
async fn forbidden_requests_count_towards_the_limit() {
    let fixture = Fixture::new().await;
    let (other, _) = fixture.control.create_service(json!({ "name": "Other" })).await;
    fixture.clock.advance(MINUTE);
    let path = format!("/services/{other}/roles");
    let mut forbidden = 0;
    for _ in 0..105 {
        forbidden +=
            usize::from(HttpResponse::send(get(&fixture.api, fixture.control.key(), &path)).await.status == 403);
    }
    assert_eq!(forbidden, 100);
}

#[tokio::test]
async fn verification_and_feedback_have_separate_limits() {
    let fixture = Fixture::new().await;
    let agent = fixture.register().await;
    let token = text(&fixture.login(&agent).await["accessToken"]);
    let verify = format!("/services/{}/verify", fixture.control.service());
    let verify_request = || get(&fixture.api, fixture.control.key(), &verify).header("x-agent-token", &token);
    let first = HttpResponse::send(verify_request()).await;
    let expected = "\"verification\";r=999;t=60, \"verification_owner\";r=19999;t=60";
    assert_eq!(first.header("ratelimit"), expected);
    assert_eq!(first.error().0, 200);
    assert_eq!(count_passed(1005, verify_request).await, 999);
    assert_eq!(rate_limit_refusal(&HttpResponse::send(verify_request()).await).0, "verification");

    let body = json!({ "agentId": agent.id, "score": 60 });
    let feedback_request =
        || fixture.api.request("POST", "/trust/feedback").bearer_auth(fixture.control.key()).json(&body);
    assert_eq!(count_passed(55, feedback_request).await, 50);
    assert_eq!(rate_limit_refusal(&HttpResponse::send(feedback_request()).await).0, "feedback");
    assert_eq!(
        (fixture.rate_limited_total("verification").await, fixture.rate_limited_total("feedback").await),
        (Some(7.0), Some(6.0))
    );
}

#[tokio::test]
async fn failed_authentication_is_limited_by_address_and_valid_credentials_still_pass() {
    let fixture = Fixture::new().await;
    let roles = format!("/services/{}/roles", fixture.control.service());
    let unknown_key = format!("svc_sk_{}{}", "0".repeat(26), "0".repeat(64));
    let failing_request = |number: usize| match number % 4 {
        0 => get(&fixture.api, &unknown_key, &roles),
        1 => get(&fixture.api, "a.human.token", &roles),
        2 => fixture.api.request("GET", &roles),
        _ => fixture.api.request("GET", &roles).header("authorization", "Basic none"),
    };
    for number in 0..300 {
        let response = HttpResponse::send(failing_request(number)).await;
        assert_eq!(response.code(), (401, "AUTHENTICATION_FAILED"), "{number}");
    }
    for number in 0..4 {
        assert_eq!(rate_limit_refusal(&HttpResponse::send(failing_request(number)).await).0, "failures", "{number}");
    }
    assert_eq!(fixture.rate_limited_total("failures").await, Some(4.0));
    // A valid credential from the rate-limited address is accepted. An invalid credential from an address without
    // earlier failures gets 401, not 429.
    HttpResponse::send(get(&fixture.api, fixture.control.key(), &roles)).await.expect(200);
    HttpResponse::send(get(&fixture.api, fixture.control.human(), &roles)).await.expect(200);
    HttpResponse::send(get(&fixture.from(2), &unknown_key, &roles)).await.expect(401);
    fixture.clock.advance(MINUTE);
    HttpResponse::send(failing_request(0)).await.expect(401);
}
