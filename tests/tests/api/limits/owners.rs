//! Tests the rate limits for all services of one owner together, and for one agent at many addresses.

use super::fixture::{Fixture, MINUTE, count_passed, rate_limit_refusal};
use countersign_tests::{Agent, HttpResponse, http::HttpClient};
use reqwest::RequestBuilder;
use serde_json::{Value, json};

/// A service of the fixture's human user.
struct OwnedService {
    id: String,
    key: String,
}

impl OwnedService {
    async fn create(fixture: &Fixture) -> Self {
        let (id, key) = fixture.control.create_service(json!({ "name": "Other" })).await;
        Self { id, key }
    }

    fn list_roles(&self, client: &HttpClient) -> RequestBuilder {
        client.request("GET", &format!("/services/{}/roles", self.id)).bearer_auth(&self.key)
    }

    fn verify(&self, client: &HttpClient) -> RequestBuilder {
        client.request("GET", &format!("/services/{}/verify", self.id)).bearer_auth(&self.key)
    }

    fn send_feedback(&self, client: &HttpClient, agent: &Agent) -> RequestBuilder {
        let body = json!({ "agentId": agent.id, "score": 60 });
        client.request("POST", "/trust/feedback").bearer_auth(&self.key).json(&body)
    }
}

/// Limits each service to four management requests per minute. The limit of an owner is always five times the limit of a service.
const MANAGEMENT: [&str; 1] = ["limits.management_per_minute=4"];

/// Creates services of the fixture's human user, one per minute of the test's clock, because the user's requests are limited.
async fn create_services(fixture: &Fixture, count: usize) -> Vec<OwnedService> {
    let mut services = Vec::new();
    for _ in 0..count {
        services.push(OwnedService::create(fixture).await);
        fixture.clock.advance(MINUTE);
    }
    services
}

/// Two services of one owner, who may send 6 more of the 20 requests of this minute.
async fn with_six_left(fixture: &Fixture) -> [OwnedService; 2] {
    let mut services = create_services(fixture, 6).await;
    let (first, second) = (services.remove(0), services.remove(0));
    for (other, requests) in services.iter().zip([4, 4, 4, 2]) {
        assert_eq!(count_passed(requests, || other.list_roles(&fixture.api)).await, requests);
    }
    [first, second]
}

#[tokio::test]
async fn services_of_one_owner_share_the_management_limit_of_the_owner() {
    let fixture = Fixture::with_settings(&MANAGEMENT).await;
    let [first, second] = with_six_left(&fixture).await;
    let response = HttpResponse::send(first.list_roles(&fixture.api)).await;
    assert_eq!(response.header("ratelimit-policy"), "\"management\";q=4;w=60, \"management_owner\";q=20;w=60");
    assert_eq!(response.header("ratelimit"), "\"management\";r=3;t=60, \"management_owner\";r=5;t=60");
    assert_eq!(count_passed(5, || first.list_roles(&fixture.api)).await, 3);
    // A request over the limit of its service does not count for the owner.
    assert_eq!(count_passed(4, || second.list_roles(&fixture.from(2))).await, 2);
    let refused = rate_limit_refusal(&HttpResponse::send(second.list_roles(&fixture.api)).await);
    assert_eq!(refused, ("management_owner".to_owned(), 60));
    assert_eq!(fixture.rate_limited_total("management_owner").await, Some(3.0));
    // The owner can still revoke an API key that uses up the limit.
    let as_owner =
        fixture.api.request("GET", &format!("/services/{}/keys", first.id)).bearer_auth(fixture.control.human());
    let as_owner = HttpResponse::send(as_owner).await;
    assert_eq!(as_owner.header("ratelimit"), "\"management\";r=3;t=60");
    as_owner.expect(200);
    fixture.clock.advance(MINUTE);
    HttpResponse::send(second.list_roles(&fixture.api)).await.expect(200);
}

#[tokio::test]
async fn service_counts_for_its_new_owner_after_a_transfer() {
    let fixture = Fixture::with_settings(&MANAGEMENT).await;
    let bob = fixture.control.mint_human("bob");
    let [first, second] = with_six_left(&fixture).await;
    assert_eq!(count_passed(4, || first.list_roles(&fixture.api)).await, 4);
    assert_eq!(count_passed(3, || second.list_roles(&fixture.api)).await, 2);
    let transfer = format!("/services/{}/transfer", second.id);
    fixture.api.send_as(fixture.control.human(), "PUT", &transfer, json!({ "subject": "bob" })).await.expect(200);
    fixture.api.send_as(&bob, "POST", &format!("{transfer}/accept"), json!({})).await.expect(200);
    // The transfer does not change the count of the service: two of its four requests are left.
    let response = HttpResponse::send(second.list_roles(&fixture.api)).await;
    assert_eq!(response.header("ratelimit"), "\"management\";r=1;t=60, \"management_owner\";r=19;t=60");
    response.expect(200);
}

#[tokio::test]
async fn verifications_and_feedback_of_one_owner_are_limited_separately() {
    let settings = ["limits.verification_per_minute=1", "limits.feedback_per_minute=1"];
    let fixture = Fixture::with_settings(&settings).await;
    let agent = fixture.register().await;
    let services = create_services(&fixture, 21).await;
    for (number, service) in services.iter().enumerate() {
        assert_eq!(count_passed(1, || service.verify(&fixture.api)).await, usize::from(number < 20), "{number}");
    }
    let last = &services[20];
    let refused = rate_limit_refusal(&HttpResponse::send(last.verify(&fixture.api)).await);
    assert_eq!(refused.0, "verification_owner");
    for (number, service) in services[..6].iter().enumerate() {
        let passed = count_passed(1, || service.send_feedback(&fixture.api, &agent)).await;
        assert_eq!(passed, usize::from(number < 5), "{number}");
    }
    let refused = rate_limit_refusal(&HttpResponse::send(last.send_feedback(&fixture.api, &agent)).await);
    assert_eq!(refused.0, "feedback_owner");
}

/// A control plane behind a proxy that forwards requests for any address. Each agent may log in and refresh 24 times a minute.
async fn behind_proxy() -> Fixture {
    Fixture::with_settings(&["proxies.trusted=127.0.0.1/32", "limits.auth_per_minute=2"]).await
}

/// Logs an agent in from many networks, until only three more logins or refreshes are allowed.
async fn use_up_all_but_three(fixture: &Fixture, agent: &Agent) {
    for subnet in 0..21 {
        login_from(fixture, 100 + subnet, agent, agent).await.expect(200);
    }
}

/// Sends a request under `/auth` from the /64 network with this number.
async fn send_from(fixture: &Fixture, subnet: u32, path: &str, body: Value) -> HttpResponse {
    let request = fixture.api.request("POST", path).json(&body);
    HttpResponse::send(request.header("x-forwarded-for", format!("2001:db8:1:{subnet:x}::1"))).await
}

/// Logs in from the /64 network with this number, and signs with this agent's key.
async fn login_from(fixture: &Fixture, subnet: u32, agent: &Agent, signer: &Agent) -> HttpResponse {
    let challenge = send_from(fixture, subnet, "/auth/challenge", json!({ "agentId": agent.id })).await.expect(200);
    send_from(fixture, subnet, "/auth/authenticate", signer.answer(&challenge)).await
}

#[tokio::test]
async fn logins_and_refreshes_of_an_agent_are_limited_over_all_addresses() {
    let fixture = behind_proxy().await;
    let (agent, other) = (fixture.register().await, fixture.register().await);
    // A stranger without the key of the agent does not use up its limit.
    for subnet in 0..5 {
        login_from(&fixture, subnet, &agent, &other).await.expect(400);
    }
    use_up_all_but_three(&fixture, &agent).await;
    let first = login_from(&fixture, 10, &agent, &agent).await;
    assert!(first.header("ratelimit-policy").ends_with("\"agent\";q=24;w=60"), "{:?}", first.headers);
    assert!(first.header("ratelimit").ends_with("\"agent\";r=2;t=60"), "{:?}", first.headers);
    let refresh = json!({ "refreshToken": first.expect(200)["refreshToken"] });
    let next = send_from(&fixture, 11, "/auth/refresh", refresh).await.expect(200);
    login_from(&fixture, 12, &agent, &agent).await.expect(200);
    assert_eq!(rate_limit_refusal(&login_from(&fixture, 13, &agent, &agent).await), ("agent".to_owned(), 60));
    let refresh = json!({ "refreshToken": next["refreshToken"] });
    let refused = send_from(&fixture, 14, "/auth/refresh", refresh.clone()).await;
    assert_eq!(rate_limit_refusal(&refused).0, "agent");
    assert_eq!(fixture.rate_limited_total("agent").await, Some(2.0));
    login_from(&fixture, 15, &other, &other).await.expect(200);
    // The refused refresh has no effect, so the refresh token is still unused.
    fixture.clock.advance(MINUTE);
    send_from(&fixture, 14, "/auth/refresh", refresh).await.expect(200);
}

#[tokio::test]
async fn copied_refresh_token_does_not_use_up_the_limit_of_its_agent() {
    let fixture = behind_proxy().await;
    let agent = fixture.register().await;
    use_up_all_but_three(&fixture, &agent).await;
    let pair = login_from(&fixture, 1, &agent, &agent).await.expect(200);
    let used = json!({ "refreshToken": pair["refreshToken"] });
    send_from(&fixture, 2, "/auth/refresh", used.clone()).await.expect(200);
    for subnet in 3..7 {
        send_from(&fixture, subnet, "/auth/refresh", used.clone()).await.expect(401);
    }
    login_from(&fixture, 8, &agent, &agent).await.expect(200);
}
