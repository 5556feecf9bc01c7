//! What is told of each cause: once, with exactly the data that is promised, to whom it concerns.

use countersign_process::{Clock, SystemClock};
use countersign_tests::{Agent, ControlPlane, EventSource, Received, Receiver, StandardWebhooks, Target, eventually};
use secrecy::ExposeSecret;
use serde_json::{Value, json};

/// Kind and data of every event that came, in an order that can be compared: an event that came twice is there twice.
fn told(receiver: &Receiver) -> Vec<(String, Value)> {
    sorted(
        receiver.received().iter().map(|one| (one.json()["event"].as_str().unwrap().to_owned(), one.data())).collect(),
    )
}

fn sorted(mut told: Vec<(String, Value)>) -> Vec<(String, Value)> {
    told.sort_by_key(|(kind, data)| format!("{kind} {data}"));
    told
}

fn expected(told: &[(&str, Value)]) -> Vec<(String, Value)> {
    sorted(told.iter().map(|(kind, data)| ((*kind).to_owned(), data.clone())).collect())
}

/// Waits until a test that is sent last has come: whatever else was to come has come too, for all are sent at once.
async fn fence(target: &Target, receiver: &Receiver) {
    let event = target.test().await;
    let came = async || receiver.received().iter().any(|one| one.id() == event).then_some(());
    eventually("the test comes", came, || format!("{:?}", told(receiver))).await;
}

async fn feedback(control: &ControlPlane, agent: &str, score: f64) {
    let body = json!({ "agentId": agent, "score": score });
    control.api.send_as(control.key(), "POST", "/trust/feedback", body).await.expect(200);
}

#[tokio::test]
async fn each_kind_of_event_is_delivered_once_as_documented() {
    let control = ControlPlane::start().await;
    let receiver = Receiver::good().await;
    let target = Target::create(&control, &receiver.url).await;
    let source = EventSource::new(&control).await;
    let (agent, service) = (source.agent.id.as_str(), control.service());
    let began = SystemClock.now().seconds();

    source.assign().await;
    source.revoke().await;
    source.agent.token_for(service).await;
    source.fail_login(Some(service)).await.expect(400);
    feedback(&control, agent, 90.0).await;
    receiver.until(5).await;
    fence(&target, &receiver).await;

    let role = |more: Value| {
        let mut data = json!({ "agentId": agent, "serviceId": service, "roleId": source.role, "roleName": "reader" });
        data.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        data
    };
    let all = receiver.received();
    let id = all.iter().find_map(|one| one.data()["feedbackId"].as_str().map(str::to_owned)).unwrap();
    let who = json!({ "agentId": agent, "serviceId": service, "ipAddress": "127.0.0.1" });
    let failed = json!({
        "agentId": agent, "serviceId": service, "reason": "invalid_signature", "ipAddress": "127.0.0.1"
    });
    let trust = json!({
        "agentId": agent, "serviceId": service, "feedbackId": id, "score": 90.0, "newTrustScore": 58.0
    });
    let expected = expected(&[
        ("agent.role_assigned", role(json!({ "expiresAt": null }))),
        ("agent.role_revoked", role(json!({ "reason": "revoked" }))),
        ("agent.authenticated", who),
        ("agent.authentication_failed", failed),
        ("trust.feedback_received", trust),
        ("webhook.test", json!({ "webhookId": target.id, "serviceId": service })),
    ]);
    assert_eq!(
        told(&receiver).iter().map(numbers).collect::<Vec<_>>(),
        expected.iter().map(numbers).collect::<Vec<_>>()
    );
    for one in &all {
        assert_well_formed(one, began);
    }
    assert_described(&control, &all).await;
}

/// Whether a score is written as 58 or 58.0 makes no difference in JSON.
fn numbers((kind, data): &(String, Value)) -> String {
    format!("{kind} {data}").replace(".0", "")
}

#[track_caller]
fn assert_well_formed(received: &Received, began: i64) {
    assert_eq!(received.line, "POST /hook HTTP/1.1");
    assert_eq!(received.header("content-type"), "application/json");
    assert_eq!(received.header("user-agent"), format!("countersign/{}", env!("CARGO_PKG_VERSION")));
    assert!(received.id().starts_with("evt_") && received.id().len() == 30, "{}", received.id());
    let now = SystemClock.now().seconds();
    assert!((began..=now).contains(&received.header("webhook-timestamp").parse().unwrap()));
    let body = received.json();
    let mut members: Vec<_> = body.as_object().unwrap().keys().collect();
    members.sort();
    assert_eq!(members, ["data", "event", "timestamp"]);
    let at: jiff::Timestamp = body["timestamp"].as_str().unwrap().parse().unwrap();
    assert!((began..=now).contains(&at.as_second()), "{body}");
    assert!(body["timestamp"].as_str().unwrap().ends_with('Z'), "{body}");
}

async fn assert_described(control: &ControlPlane, all: &[Received]) {
    let file = control.folder().join("openapi.json");
    let described = control.api.get("/openapi.json").await.expect(200);
    assert_eq!(described["webhooks"].as_object().unwrap().len(), 6, "{}", described["webhooks"]);
    std::fs::write(&file, described.to_string()).unwrap();
    let mut library = StandardWebhooks::with_openapi(&file);
    library.assert_described(all);
    // The judge is not one who finds everything good.
    let mut bent = all[0].clone();
    bent.body = bent.json().to_string().replace("agentId", "agent").into_bytes();
    let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| library.assert_described(&[bent])));
    assert!(judged.is_err(), "a body without its agent is not as described");
}

#[tokio::test]
async fn targets_receive_only_subscribed_events_in_their_scope() {
    let control = ControlPlane::start().await;
    let [all, some, other, wide] = [(); 4].map(|()| Receiver::good());
    let (all, some, other, wide) = tokio::join!(all, some, other, wide);
    let (service, key) = control.create_service(json!({ "name": "other" })).await;
    let to_all = Target::create(&control, &all.url).await;
    let to_some = Target::create_for(&control, &some.url, &["agent.role_revoked", "trust.feedback_received"]).await;
    let set = format!("/services/{service}/webhooks");
    let to_other = Target::create_in(&control.api, &key, &set, &other.url, &["*"]).await;
    let to_wide = Target::create_for_deployment(&control, &wide.url).await;
    assert_eq!(to_wide.read().await["serviceId"], Value::Null);

    let source = EventSource::new(&control).await;
    source.events(2).await;
    feedback(&control, &source.agent.id, 10.0).await;
    source.agent.token_for(&service).await;
    for (target, receiver, count) in
        [(&to_all, &all, 3), (&to_some, &some, 2), (&to_other, &other, 1), (&to_wide, &wide, 4)]
    {
        receiver.until(count).await;
        fence(target, receiver).await;
    }
    let kinds = |receiver: &Receiver| told(receiver).into_iter().map(|(kind, _)| kind).collect::<Vec<_>>();
    let [login, assigned, revoked, trust, test] =
        ["agent.authenticated", "agent.role_assigned", "agent.role_revoked", "trust.feedback_received", "webhook.test"];
    assert_eq!(kinds(&all), [assigned, revoked, trust, test]);
    assert_eq!(kinds(&some), [revoked, trust, test]);
    assert_eq!(kinds(&other), [login, test]);
    assert_eq!(kinds(&wide), [login, assigned, revoked, trust, test]);
    // One event is one event, whoever gets it.
    let ids = |receiver: &Receiver| {
        let ids = receiver.received().into_iter().filter(|one| one.json()["event"] == revoked);
        ids.map(|one| (one.id().to_owned(), one.body)).collect::<Vec<_>>()
    };
    assert_eq!(ids(&all), ids(&wide));
    assert_eq!(ids(&all), ids(&some));
}

#[tokio::test]
async fn events_without_a_service_reach_services_where_the_agent_has_a_role() {
    let control = ControlPlane::start().await;
    let [first, second, third, wide] = [(); 4].map(|()| Receiver::good());
    let (first, second, third, wide) = tokio::join!(first, second, third, wide);
    let source = EventSource::new(&control).await;
    let mut targets =
        vec![(Target::create_for(&control, &first.url, &["agent.authentication_failed"]).await, &first, 1)];
    for (receiver, count) in [(&second, 1), (&third, 0)] {
        let (service, key) = control.create_service(json!({ "name": "another" })).await;
        let body = json!({ "name": "writer", "permissions": ["write"] });
        let made = control.api.send_as(&key, "POST", &format!("/services/{service}/roles"), body).await.expect(201);
        if count > 0 {
            let path = format!("/services/{service}/agents/{}/roles", source.agent.id);
            control.api.send_as(&key, "POST", &path, json!({ "roleId": made["roleId"] })).await.expect(200);
        }
        let set = format!("/services/{service}/webhooks");
        let kinds = ["agent.authentication_failed"];
        targets.push((Target::create_in(&control.api, &key, &set, &receiver.url, &kinds).await, receiver, count));
    }
    targets.push((Target::create_for_deployment(&control, &wide.url).await, &wide, 3));
    source.assign().await;
    source.fail_login(None).await.expect(400);
    // An agent without any role concerns nobody in particular.
    let nobody = Agent::register(&control, "Nobody").await;
    nobody.login().await;
    for (target, receiver, count) in &targets {
        receiver.until(*count).await;
        fence(target, receiver).await;
        assert_eq!(receiver.count(), count + 1, "{:?}", told(receiver));
    }
    let failed = first.received().remove(0);
    assert_eq!(failed.data()["serviceId"], Value::Null);
    assert_eq!((failed.id(), &failed.body), (second.received()[0].id(), &second.received()[0].body));
    let unbound = wide.of_kind("agent.authenticated").remove(0).data();
    assert_eq!(unbound, json!({ "agentId": nobody.id, "serviceId": null, "ipAddress": "127.0.0.1" }));
}

#[tokio::test]
async fn failed_login_events_have_the_reason() {
    let control = ControlPlane::start_with(&["tokens.challenge_seconds=2"]).await;
    let receiver = Receiver::good().await;
    let target = Target::create_for(&control, &receiver.url, &["agent.authentication_failed"]).await;
    let source = EventSource::new(&control).await;
    let service = Some(control.service());

    let challenge = source.challenge(service).await;
    let signature = source.signature(&challenge);
    source.answer(&challenge, &signature).await.expect(200);
    assert_eq!(source.answer(&challenge, &signature).await.error().2, "challenge_used");
    let challenge = source.challenge(service).await;
    let signature = source.signature(&challenge);
    let end: jiff::Timestamp = challenge["expiresAt"].as_str().unwrap().parse().unwrap();
    let over = async || (SystemClock.now().micros() > end.as_microsecond()).then_some(());
    eventually("the challenge expires", over, String::new).await;
    assert_eq!(source.answer(&challenge, &signature).await.error().2, "challenge_expired");

    let pair = source.agent.api.login(&source.agent.key, &source.agent.id, service).await.unwrap();
    let refresh = json!({ "refreshToken": pair.refresh_token.expose_secret() });
    control.api.post("/auth/refresh", refresh.clone()).await.expect(200);
    assert_eq!(control.api.post("/auth/refresh", refresh).await.error().2, "refresh_reused");
    let challenge = source.challenge(service).await;
    control.set_status(&source.agent.id, "suspended").await.expect(200);
    let signature = source.signature(&challenge);
    assert_eq!(source.answer(&challenge, &signature).await.error().2, "agent_suspended");
    receiver.until(4).await;
    fence(&target, &receiver).await;

    let mut told = told(&receiver);
    told.retain(|(kind, _)| kind != "webhook.test");
    let reasons = ["challenge_used", "challenge_expired", "refresh_reused", "agent_suspended"];
    let failed = reasons.map(|reason| {
        let who =
            json!({ "agentId": source.agent.id, "serviceId": service, "reason": reason, "ipAddress": "127.0.0.1" });
        ("agent.authentication_failed", who)
    });
    assert_eq!(told, expected(&failed));
}
