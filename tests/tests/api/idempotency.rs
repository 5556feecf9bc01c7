//! `Idempotency-Key`: a repeated request runs once and gets the stored response.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_client::PrivateKey;
use countersign_tests::{
    Agent, ControlPlane, HttpResponse, ManualClock, Postgres, agent::registration, control_plane::text,
    http::HttpClient,
};
use futures_util::future::join_all;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};

/// A request that tests repeat with the same `Idempotency-Key`.
#[derive(Clone)]
struct RepeatedRequest {
    path: String,
    bearer: Option<String>,
    success_status: u16,
    body: Value,
    /// Another valid body for the same route.
    other_body: Value,
}

impl RepeatedRequest {
    async fn send(&self, client: &HttpClient, key: &str) -> HttpResponse {
        self.send_body(client, key, &self.body).await
    }

    async fn send_body(&self, client: &HttpClient, key: &str, body: &Value) -> HttpResponse {
        let request = client.request("POST", &self.path).header("idempotency-key", key).json(body);
        let request = self.bearer.iter().fold(request, RequestBuilder::bearer_auth);
        HttpResponse::send(request).await
    }
}

fn role_request(control: &ControlPlane, name: &str) -> RepeatedRequest {
    let body = |permission: &str| json!({ "name": name, "permissions": [permission] });
    RepeatedRequest {
        path: control.path("/roles"),
        bearer: Some(control.key().to_owned()),
        success_status: 201,
        body: body("read"),
        other_body: body("write"),
    }
}

fn registration_request(email: &str) -> RepeatedRequest {
    let key = PrivateKey::generate();
    let body = |name: &str| {
        let mut body = registration(&key, name);
        body["email"] = json!(email);
        body
    };
    RepeatedRequest {
        path: "/auth/register".into(),
        bearer: None,
        success_status: 201,
        body: body("one"),
        other_body: body("two"),
    }
}

fn feedback_request(control: &ControlPlane, agent: &Agent) -> RepeatedRequest {
    let body = |score: u32| json!({ "agentId": agent.id, "score": score });
    RepeatedRequest {
        path: "/trust/feedback".into(),
        bearer: Some(control.key().to_owned()),
        success_status: 200,
        body: body(90),
        other_body: body(10),
    }
}

fn one_of_each(control: &ControlPlane, agent: &Agent) -> [RepeatedRequest; 3] {
    [role_request(control, "reader"), registration_request("a@example.org"), feedback_request(control, agent)]
}

/// The numbers of created roles, of registered agents, and of feedback for the agent.
async fn operation_counts(control: &ControlPlane, agent: &Agent) -> (usize, usize, usize) {
    let total = async |bearer: &str, path: &str| {
        let listed = control.api.get_as(bearer, path).await.expect(200);
        usize::try_from(listed["pagination"]["total"].as_u64().unwrap()).unwrap()
    };
    let roles = total(control.human(), "/audit?action=role.created").await;
    let agents = total(control.human(), "/audit?action=agent.registered").await;
    (roles, agents, total(control.key(), &format!("/trust/agents/{}/history", agent.id)).await)
}

#[tokio::test]
async fn concurrent_requests_with_one_key_run_once_and_get_the_same_response() {
    let postgres = Postgres::start().await;
    for mut control in ControlPlane::start_on_both_engines(&postgres).await {
        let agent = Agent::register(&control, "agent").await;
        let before = operation_counts(&control, &agent).await;
        let requests = one_of_each(&control, &agent);
        let mut responses = Vec::new();
        for repeated in &requests {
            let batch = join_all((0..50).map(|_| repeated.send(&control.api, "\"k-1\""))).await;
            let statuses: BTreeSet<_> = batch.iter().map(|response| response.status).collect();
            let bodies: BTreeSet<_> = batch.iter().map(|response| response.body.to_string()).collect();
            assert_eq!(statuses, BTreeSet::from([repeated.success_status]), "{}: {bodies:?}", repeated.path);
            assert_eq!(bodies.len(), 1, "{}: {bodies:?}", repeated.path);
            responses.push(batch[0].body.clone());
        }
        let after = operation_counts(&control, &agent).await;
        assert_eq!(after, (before.0 + 1, before.1 + 1, before.2 + 1));

        // Later changes and a restart of the server do not change the stored response.
        control.set_status(&text(&responses[1]["agentId"]), "suspended").await.expect(200);
        control.delete_role(&text(&responses[0]["roleId"])).await.expect(200);
        control.restart().await;
        for (repeated, response) in requests.iter().zip(&responses) {
            assert_eq!(&repeated.send(&control.api, "k-1").await.expect(repeated.success_status), response);
        }
        assert_eq!(operation_counts(&control, &agent).await, after);
        let registered = control.api.post("/auth/register", requests[1].body.clone()).await.expect(201);
        assert_eq!(registered["status"], "suspended");
    }
}

#[tokio::test]
async fn reused_key_with_another_body_is_refused_and_changes_nothing() {
    let postgres = Postgres::start().await;
    for control in ControlPlane::start_on_both_engines(&postgres).await {
        let agent = Agent::register(&control, "agent").await;
        for repeated in one_of_each(&control, &agent) {
            let first = repeated.send(&control.api, "k").await.expect(repeated.success_status);
            let before = operation_counts(&control, &agent).await;
            let refused = repeated.send_body(&control.api, "k", &repeated.other_body).await;
            assert_eq!(refused.error(), (409, "CONFLICT", "idempotency_key_reused"), "{}", refused.body);
            assert_eq!(operation_counts(&control, &agent).await, before);
            let again = repeated.send(&control.api, "k").await.expect(repeated.success_status);
            assert_eq!(again, first, "a repetition of the first request still gets its response");
        }
    }
}

#[tokio::test]
async fn keys_are_separate_per_caller_and_operation() {
    let control = ControlPlane::start_process().await;
    let agent = Agent::register(&control, "agent").await;
    let (_, other_key) = control.create_service(json!({ "name": "other" })).await;
    let first = feedback_request(&control, &agent);
    first.send(&control.api, "k").await.expect(200);
    let other = RepeatedRequest { bearer: Some(other_key), ..first.clone() };
    other.send_body(&control.api, "k", &first.other_body).await.expect(200);
    assert_eq!(operation_counts(&control, &agent).await.2, 2);
    role_request(&control, "reader").send(&control.api, "k").await.expect(201);
    let by_human = RepeatedRequest { bearer: Some(control.human().to_owned()), ..role_request(&control, "writer") };
    by_human.send(&control.api, "k").await.expect(201);
    // In public registration, only the address distinguishes callers.
    let ids = ["a@example.org", "b@example.org"].map(registration_request).map(async |repeated| {
        let created = repeated.send(&control.api, "k").await.expect(201);
        text(&created["agentId"])
    });
    let ids: BTreeSet<_> = join_all(ids).await.into_iter().collect();
    assert_eq!(ids.len(), 2);
    let as_human =
        RepeatedRequest { bearer: Some(control.human().to_owned()), ..registration_request("a@example.org") };
    as_human.send(&control.api, "k").await.expect(201);
}

#[tokio::test]
async fn failed_requests_are_not_stored() {
    let control = ControlPlane::start_process().await;
    let role_id = control.create_role("taken", &[]).await;
    let repeated = role_request(&control, "taken");
    assert_eq!(repeated.send(&control.api, "k").await.status, 409);
    control.delete_role(&role_id).await.expect(200);
    repeated.send(&control.api, "k").await.expect(201);
    let repeated = role_request(&control, "other");
    assert_eq!(repeated.send_body(&control.api, "k2", &json!({ "name": "other" })).await.status, 400);
    repeated.send(&control.api, "k2").await.expect(201);
}

#[tokio::test]
async fn invalid_idempotency_keys_are_refused_with_the_header_name() {
    let control = ControlPlane::start_process().await;
    let repeated = role_request(&control, "reader");
    let long = "k".repeat(256);
    for key in ["", "\"\"", "two words", "a,b", "\"open", "\"a\"; b=1", &long] {
        let response = repeated.send(&control.api, key).await;
        assert_eq!(response.code(), (400, "VALIDATION_ERROR"), "{key}");
        assert!(response.body["error"]["details"]["fields"]["Idempotency-Key"].is_string(), "{}", response.body);
    }
    let two_keys = control.api.request("POST", &repeated.path).bearer_auth(control.key()).json(&repeated.body);
    let two_keys = HttpResponse::send(two_keys.header("idempotency-key", "a").header("idempotency-key", "a")).await;
    assert_eq!(two_keys.status, 400);
    repeated.send(&control.api, &long[..255]).await.expect(201);
}

#[tokio::test]
async fn keys_expire_after_a_day() {
    let clock = ManualClock::new();
    let control = ControlPlane::start_with_clock(&clock, &[]).await;
    let repeated = registration_request("a@example.org");
    let first = repeated.send(&control.api, "k").await.expect(201);
    clock.advance(Duration::from_secs(24 * 3600 - 1));
    assert_eq!(repeated.send(&control.api, "k").await.expect(201), first);
    assert_eq!(repeated.send_body(&control.api, "k", &repeated.other_body).await.status, 409);
    clock.advance(Duration::from_secs(1));
    let other = repeated.send_body(&control.api, "k", &repeated.other_body).await.expect(201);
    assert_ne!(other["agentId"], first["agentId"]);
    assert_eq!(repeated.send(&control.api, "k").await.status, 409, "the key now belongs to the second request");
}
