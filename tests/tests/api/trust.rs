//! Feedback about agents and its effect on trust scores.

use countersign_tests::{
    Agent, ControlPlane, HttpResponse, Sidecar, Verifiers, VerifyOutcome,
    http::{items, texts},
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

async fn submit_feedback(control: &ControlPlane, key: &str, body: Value) -> HttpResponse {
    control.api.send_as(key, "POST", "/trust/feedback", body).await
}

fn trust_of(outcome: &VerifyOutcome) -> &str {
    match outcome {
        VerifyOutcome::Accepted { trust, .. } => trust,
        VerifyOutcome::Refused(..) => "refused",
    }
}

#[tokio::test]
async fn feedback_changes_trust_in_the_api_sidecar_and_next_token() {
    let control = ControlPlane::shared().await;
    let sidecar = Sidecar::start(&control).await;
    let verifiers = Verifiers::new(&control, &sidecar);
    let agent = Agent::register(&control, "Agent").await;
    let before = agent.token_for(control.service()).await;
    verifiers.wait_until_equal("the initial trust is 50", &before, |outcome| trust_of(outcome) == "50").await;

    let body = json!({ "agentId": agent.id, "score": 100, "reason": "as agreed", "metadata": { "order": 7 } });
    let response = submit_feedback(&control, control.key(), body).await.expect(200);
    assert_eq!(response, json!({ "recorded": true, "newTrustScore": 60 }));
    verifiers
        .wait_until_equal("trust rises by a fifth of the difference", &before, |outcome| trust_of(outcome) == "60")
        .await;
    for (minimum, expected) in [("60", (200, "")), ("61", (403, "trust_too_low"))] {
        let extensions = [("allow_unassigned", "true"), ("min_trust_score", minimum)];
        let result = sidecar.check_with(&[("authorization", &format!("Bearer {before}"))], &extensions).await;
        assert_eq!((result.status, result.reason.as_str()), expected, "{minimum}");
    }

    let body = json!({ "agentId": agent.id, "score": 12.345_678 });
    let response = submit_feedback(&control, control.key(), body).await.expect(200);
    assert_eq!(response["newTrustScore"], json!(52.06));
    let after = agent.token_for(control.service()).await;
    for token in [before, after] {
        verifiers.wait_until_equal("trust falls", &token, |outcome| trust_of(outcome) == "52.06").await;
    }
    let record = control.get(&format!("/agents/{}", agent.id)).await.expect(200);
    assert_eq!(record["trustScore"], json!(52.06));
}

#[tokio::test]
async fn concurrent_feedback_is_all_recorded_in_sequence() {
    let control = ControlPlane::shared().await;
    let agent = Agent::register(&control, "Agent").await;
    agent.token_for(control.service()).await;
    let body = json!({ "agentId": agent.id, "score": 100 });
    let responses =
        futures_util::future::join_all((0..100).map(|_| submit_feedback(&control, control.key(), body.clone()))).await;
    // All feedback has the score 100, so it does not matter in which order the requests are recorded. Each one adds 1 to the weight
    // of the service, up to 4: the limit for the services of one owner, and the weight of the initial score.
    let after = |count: i32| ((200.0 + 100.0 * f64::from(count)) / f64::from(4 + count) * 100.0).round() / 100.0;
    let expected: BTreeSet<_> = (1..=4).map(|count| after(count).to_string()).collect();
    let scores: BTreeSet<_> = responses
        .into_iter()
        .map(|response| response.expect(200)["newTrustScore"].as_f64().unwrap().to_string())
        .collect();
    assert_eq!(scores, expected);

    let path = format!("/trust/agents/{}/history?limit=200", agent.id);
    let history = control.api.get_as(control.key(), &path).await.expect(200);
    assert_eq!(history["pagination"], json!({ "limit": 200, "offset": 0, "total": 100, "hasMore": false }));
    assert_eq!(BTreeSet::from_iter(texts(&history, "id")).len(), 100);
}

#[tokio::test]
async fn history_is_paginated_newest_first_without_reason_and_metadata_of_other_services() {
    let control = ControlPlane::shared().await;
    let (other, other_key) = control.create_service(json!({ "name": "other" })).await;
    let agent = Agent::register(&control, "Agent").await;
    for (key, score) in [(control.key(), 10.5), (&other_key, 20.0), (control.key(), 30.0)] {
        let body = json!({ "agentId": agent.id, "score": score, "reason": format!("it was {score}"), "metadata": { "s": score } });
        submit_feedback(&control, key, body).await.expect(200);
    }
    let read = async |query: &str| {
        let path = format!("/trust/agents/{}/history{query}", agent.id);
        control.api.get_as(control.key(), &path).await
    };
    let history = read("").await.expect(200);
    assert_eq!(history["pagination"], json!({ "limit": 50, "offset": 0, "total": 3, "hasMore": false }));
    let entry = |number: usize| {
        ["score", "reason", "metadata", "serviceId"].map(|field| history["data"][number][field].clone())
    };
    assert_eq!(entry(0)[0], json!(30));
    assert_eq!(entry(1), [json!(20), json!(""), json!({}), json!(other)]);
    assert_eq!(entry(2), [json!(10.5), json!("it was 10.5"), json!({ "s": 10.5 }), json!(control.service())]);

    let page = read("?limit=1&offset=1").await.expect(200);
    let next = &page["pagination"]["nextCursor"];
    assert!(next.is_string(), "{page}");
    let pagination = json!({ "limit": 1, "offset": 1, "total": 3, "hasMore": true, "nextCursor": next });
    assert_eq!(page["pagination"], pagination);
    assert_eq!(items(&page).len(), 1);
    assert_eq!(read("?limit=5000").await.expect(200)["pagination"]["limit"], 200);
    assert_eq!(read("?limit=0").await.error().0, 400);
}

#[tokio::test]
async fn invalid_scores_are_refused_with_the_allowed_range() {
    let control = ControlPlane::shared().await;
    let agent = Agent::register(&control, "Agent").await;
    for score in [json!(-0.01), json!(100.01), json!("50"), json!(null), json!(1e300), json!([50]), json!(true)] {
        let response = submit_feedback(&control, control.key(), json!({ "agentId": agent.id, "score": score })).await;
        assert_eq!(response.error().1, "VALIDATION_ERROR", "{score}: {}", response.body);
        let details = &response.body["error"]["details"];
        assert_eq!((&details["minimum"], &details["maximum"]), (&json!(0), &json!(100)), "{score}");
        assert!(details["fields"]["score"].is_string(), "{score}: {details}");
    }
    for score in ["NaN", "Infinity", "1e400"] {
        let body = format!(r#"{{"agentId":"{}","score":{score}}}"#, agent.id);
        let request = control.api.request("POST", "/trust/feedback").bearer_auth(control.key()).body(body);
        let response = HttpResponse::send(request).await;
        let details = &response.body["error"]["details"];
        assert_eq!(response.code(), (400, "VALIDATION_ERROR"), "{score}: {}", response.body);
        assert_eq!((&details["minimum"], &details["maximum"]), (&json!(0), &json!(100)), "{score}");
    }
    for agent_id in ["agent_00000000000000000000000000", "unknown"] {
        let response = submit_feedback(&control, control.key(), json!({ "agentId": agent_id, "score": 1 })).await;
        assert_eq!(response.code(), (404, "AGENT_NOT_FOUND"));
    }
}
