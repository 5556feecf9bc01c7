//! What services say of agents, and what comes of it everywhere.

use countersign_tests::{Agent, ControlPlane, HttpResponse, Sidecar, Verifiers, VerifyOutcome};
use serde_json::{Value, json};
use std::collections::BTreeSet;

async fn feedback(control: &ControlPlane, key: &str, body: Value) -> HttpResponse {
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
    let control = ControlPlane::start().await;
    let sidecar = Sidecar::start(&control).await;
    let verifiers = Verifiers::new(&control, &sidecar);
    let agent = Agent::register(&control, "Agent").await;
    let before = agent.token_for(control.service()).await;
    verifiers.agree("everybody starts in the middle", &before, |outcome| trust_of(outcome) == "50").await;

    let told = json!({ "agentId": agent.id, "score": 100, "reason": "as agreed", "metadata": { "order": 7 } });
    let answer = feedback(&control, control.key(), told).await.expect(200);
    assert_eq!(answer, json!({ "recorded": true, "newTrustScore": 60 }));
    verifiers.agree("a fifth of the way up", &before, |outcome| trust_of(outcome) == "60").await;

    let told = json!({ "agentId": agent.id, "score": 12.345_678 });
    let answer = feedback(&control, control.key(), told).await.expect(200);
    assert_eq!(answer["newTrustScore"], json!(52.06));
    let after = agent.token_for(control.service()).await;
    for token in [before, after] {
        verifiers.agree("and down again", &token, |outcome| trust_of(outcome) == "52.06").await;
    }
    let path = control.path(&format!("/agents/{}", agent.id));
    let record = control.api.get_as(control.key(), &path).await.expect(200);
    assert_eq!(record["trustScore"], json!(52.06));
}

#[tokio::test]
async fn route_with_minimum_trust_admits_agents_with_enough_trust() {
    let control = ControlPlane::start().await;
    let sidecar = Sidecar::start(&control).await;
    let agent = Agent::register(&control, "Agent").await;
    let bearer = format!("Bearer {}", agent.token_for(control.service()).await);
    let required = [("allow_unassigned", "true"), ("min_trust_score", "60")];
    let verdict = sidecar.check_with(&[("authorization", &bearer)], &required).await;
    assert_eq!((verdict.status, verdict.reason.as_str()), (403, "trust_too_low"));
    feedback(&control, control.key(), json!({ "agentId": agent.id, "score": 100 })).await.expect(200);
    let let_in = async || {
        let verdict = sidecar.check_with(&[("authorization", &bearer)], &required).await;
        (verdict.status == 200).then_some(())
    };
    countersign_tests::eventually("the agent is let in", let_in, || sidecar.log()).await;
}

#[tokio::test]
async fn concurrent_feedback_is_all_recorded_in_sequence() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "Agent").await;
    let told = json!({ "agentId": agent.id, "score": 100 });
    let answers =
        futures_util::future::join_all((0..100).map(|_| feedback(&control, control.key(), told.clone()))).await;
    // Of equal feedbacks every order is the same: the weight grows by one, and stops at eight.
    let after = |count: i32| ((200.0 + 100.0 * f64::from(count)) / f64::from(4 + count) * 100.0).round() / 100.0;
    let expected: BTreeSet<_> = (1..=8).map(|count| after(count).to_string()).collect();
    let came: BTreeSet<_> =
        answers.into_iter().map(|answer| answer.expect(200)["newTrustScore"].as_f64().unwrap().to_string()).collect();
    assert_eq!(came, expected);

    let path = format!("/trust/agents/{}/history?limit=200", agent.id);
    let history = control.api.get_as(control.key(), &path).await.expect(200);
    assert_eq!(history["pagination"], json!({ "limit": 200, "offset": 0, "total": 100, "hasMore": false }));
    let ids: BTreeSet<_> =
        history["data"].as_array().unwrap().iter().map(|told| told["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 100);
}

#[tokio::test]
async fn history_is_paginated_newest_first_without_metadata_of_other_services() {
    let control = ControlPlane::start().await;
    let (other, others_key) = control.create_service(json!({ "name": "other" })).await;
    let agent = Agent::register(&control, "Agent").await;
    for (key, score) in [(control.key(), 10.5), (&others_key, 20.0), (control.key(), 30.0)] {
        let told = json!({ "agentId": agent.id, "score": score, "reason": format!("it was {score}"), "metadata": { "s": score } });
        feedback(&control, key, told).await.expect(200);
    }
    let read = async |query: &str| {
        let path = format!("/trust/agents/{}/history{query}", agent.id);
        control.api.get_as(control.key(), &path).await
    };
    let history = read("").await.expect(200);
    assert_eq!(history["pagination"], json!({ "limit": 50, "offset": 0, "total": 3, "hasMore": false }));
    let seen: Vec<_> = history["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|told| {
            (told["score"].clone(), told["reason"].clone(), told["metadata"].clone(), told["serviceId"].clone())
        })
        .collect();
    let own =
        |score: Value, reason: &str| (score.clone(), json!(reason), json!({ "s": score }), json!(control.service()));
    assert_eq!(seen[0].0, json!(30));
    assert_eq!(seen[1], (json!(20), json!("it was 20"), json!({}), json!(other)));
    assert_eq!(seen[2], own(json!(10.5), "it was 10.5"));

    let page = read("?limit=1&offset=1").await.expect(200);
    assert_eq!(page["pagination"], json!({ "limit": 1, "offset": 1, "total": 3, "hasMore": true }));
    assert_eq!(page["data"].as_array().unwrap().len(), 1);
    assert_eq!(read("?limit=5000").await.expect(200)["pagination"]["limit"], 200);
    assert_eq!(read("?limit=0").await.error().0, 400);
}

#[tokio::test]
async fn invalid_scores_are_refused_with_the_allowed_range() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "Agent").await;
    for score in [json!(-0.01), json!(100.01), json!("50"), json!(null), json!(1e300), json!([50]), json!(true)] {
        let answer = feedback(&control, control.key(), json!({ "agentId": agent.id, "score": score })).await;
        assert_eq!(answer.error().1, "VALIDATION_ERROR", "{score}: {}", answer.body);
        let details = &answer.body["error"]["details"];
        assert_eq!((&details["minimum"], &details["maximum"]), (&json!(0), &json!(100)), "{score}");
        assert!(details["fields"]["score"].is_string(), "{score}: {details}");
    }
    for score in ["NaN", "Infinity", "1e400"] {
        let body = format!(r#"{{"agentId":"{}","score":{score}}}"#, agent.id);
        let request = control.api.request("POST", "/trust/feedback").bearer_auth(control.key()).body(body);
        let answer = HttpResponse::send(request).await;
        let details = &answer.body["error"]["details"];
        assert_eq!((answer.status, answer.error().1), (400, "VALIDATION_ERROR"), "{score}: {}", answer.body);
        assert_eq!((&details["minimum"], &details["maximum"]), (&json!(0), &json!(100)), "{score}");
    }
    for nobody in ["agent_00000000000000000000000000", "somebody"] {
        let answer = feedback(&control, control.key(), json!({ "agentId": nobody, "score": 1 })).await;
        assert_eq!((answer.status, answer.error().1), (404, "AGENT_NOT_FOUND"));
    }
}
