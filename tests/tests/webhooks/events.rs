//! Tests that each action emits one event with the documented data, to the targets in its scope.

use countersign_process::{Clock, SystemClock};
use countersign_tests::{ControlPlane, EventSource, Received, Receiver, Reply, StandardWebhooks, Target, WrongClock};
use secrecy::ExposeSecret;
use serde_json::{Value, json};

/// Seconds after which a challenge has expired.
pub const AFTER_A_CHALLENGE: i64 = 301;

/// Kind and data of every delivered event, sorted and with duplicates.
pub fn delivered(receiver: &Receiver) -> Vec<(String, Value)> {
    sorted(
        receiver
            .received()
            .iter()
            .map(|request| (request.json()["event"].as_str().unwrap().to_owned(), request.data()))
            .collect(),
    )
}

fn sorted(mut delivered: Vec<(String, Value)>) -> Vec<(String, Value)> {
    delivered.sort_by_key(|(kind, data)| format!("{kind} {data}"));
    delivered
}

fn expected(delivered: &[(&str, Value)]) -> Vec<(String, Value)> {
    sorted(delivered.iter().map(|(kind, data)| ((*kind).to_owned(), data.clone())).collect())
}

/// Sends a test event and waits until it is delivered. When the test event is delivered, earlier events have arrived
/// too, because all events are sent at once.
pub async fn wait_for_all_events(target: &Target, receiver: &Receiver) {
    let event = target.send_test_event().await;
    receiver.wait_for_event(&event).await;
}

#[tokio::test]
async fn each_kind_of_event_is_delivered_once_as_documented() {
    let control = ControlPlane::start().await;
    let (target, receiver) = Target::with_receiver(&control, Reply::Status(200)).await;
    let source = EventSource::new(&control).await;
    let (agent, service) = (source.agent.id.as_str(), control.service());
    let started = SystemClock.now().seconds();

    source.assign().await;
    source.revoke().await;
    source.agent.token_for(service).await;
    source.fail_login(Some(service)).await.expect(400);
    control.rate(control.key(), agent, 90.0).await;
    receiver.wait_for_requests(5).await;
    wait_for_all_events(&target, &receiver).await;

    let role = |fields: Value| {
        let mut data = json!({ "agentId": agent, "serviceId": service, "roleId": source.role, "roleName": "reader" });
        data.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        data
    };
    let requests = receiver.received();
    let id = requests.iter().find_map(|request| request.data()["feedbackId"].as_str().map(str::to_owned)).unwrap();
    let agent_data = json!({ "agentId": agent, "serviceId": service, "ipAddress": "127.0.0.1" });
    let failed = json!({
        "agentId": agent, "serviceId": service, "reason": "invalid_signature", "ipAddress": "127.0.0.1"
    });
    let trust = json!({
        "agentId": agent, "serviceId": service, "feedbackId": id, "score": 90.0, "newTrustScore": 58.0
    });
    let expected = expected(&[
        ("agent.role_assigned", role(json!({ "expiresAt": null }))),
        ("agent.role_revoked", role(json!({ "reason": "revoked" }))),
        ("agent.authenticated", agent_data),
        ("agent.authentication_failed", failed),
        ("trust.feedback_received", trust),
        ("webhook.test", json!({ "webhookId": target.id, "serviceId": service })),
    ]);
    assert_eq!(
        delivered(&receiver).iter().map(without_decimal_zeros).collect::<Vec<_>>(),
        expected.iter().map(without_decimal_zeros).collect::<Vec<_>>()
    );
    for request in &requests {
        assert_well_formed(request, started);
    }
    assert_bodies_match_openapi(&control, &requests).await;
}

/// Formats an event so that 58 and 58.0 are equal, as in JSON.
fn without_decimal_zeros((kind, data): &(String, Value)) -> String {
    format!("{kind} {data}").replace(".0", "")
}

#[track_caller]
fn assert_well_formed(received: &Received, started: i64) {
    assert_eq!(received.line, "POST /hook HTTP/1.1");
    assert_eq!(received.header("content-type"), "application/json");
    assert_eq!(received.header("user-agent"), format!("countersign/{}", env!("CARGO_PKG_VERSION")));
    assert!(received.id().starts_with("evt_") && received.id().len() == 30, "{}", received.id());
    let now = SystemClock.now().seconds();
    assert!((started..=now).contains(&received.header("webhook-timestamp").parse().unwrap()));
    let body = received.json();
    let mut members: Vec<_> = body.as_object().unwrap().keys().collect();
    members.sort();
    assert_eq!(members, ["data", "event", "timestamp"]);
    let at: jiff::Timestamp = body["timestamp"].as_str().unwrap().parse().unwrap();
    assert!((started..=now).contains(&at.as_second()), "{body}");
    assert!(body["timestamp"].as_str().unwrap().ends_with('Z'), "{body}");
}

async fn assert_bodies_match_openapi(control: &ControlPlane, all: &[Received]) {
    let file = control.folder().join("openapi.json");
    let described = control.api.get("/openapi.json").await.expect(200);
    assert_eq!(described["webhooks"].as_object().unwrap().len(), 6, "{}", described["webhooks"]);
    std::fs::write(&file, described.to_string()).unwrap();
    let mut library = StandardWebhooks::with_openapi(&file);
    library.assert_bodies_match_openapi(all);
    // The validator refuses an invalid body.
    let mut invalid = all[0].clone();
    invalid.body = invalid.json().to_string().replace("agentId", "agent").into_bytes();
    let result =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| library.assert_bodies_match_openapi(&[invalid])));
    assert!(result.is_err(), "a body without its agent is refused");
}

#[tokio::test]
async fn targets_receive_only_subscribed_events_in_their_scope() {
    let control = ControlPlane::start().await;
    let [unfiltered, filtered, other, deployment] = [(); 4].map(|()| Receiver::start_ok());
    let (unfiltered, filtered, other, deployment) = tokio::join!(unfiltered, filtered, other, deployment);
    let (service, key) = control.create_service(json!({ "name": "other" })).await;
    let unfiltered_target = Target::create(&control, &unfiltered.url).await;
    let filtered_target =
        Target::create_for(&control, &filtered.url, &["agent.role_revoked", "trust.feedback_received"]).await;
    let collection = format!("/services/{service}/webhooks");
    let other_target = Target::create_in(&control.api, &key, &collection, &other.url, &["*"]).await;
    let deployment_target = Target::create_for_deployment(&control, &deployment.url).await;
    assert_eq!(deployment_target.read().await["serviceId"], Value::Null);

    let source = EventSource::new(&control).await;
    source.cause_events(2).await;
    control.rate(control.key(), &source.agent.id, 10.0).await;
    source.agent.token_for(&service).await;
    for (target, receiver, count) in [
        (&unfiltered_target, &unfiltered, 3),
        (&filtered_target, &filtered, 2),
        (&other_target, &other, 1),
        (&deployment_target, &deployment, 4),
    ] {
        receiver.wait_for_requests(count).await;
        wait_for_all_events(target, receiver).await;
    }
    let kinds = |receiver: &Receiver| delivered(receiver).into_iter().map(|(kind, _)| kind).collect::<Vec<_>>();
    let [login, assigned, revoked, trust, test] =
        ["agent.authenticated", "agent.role_assigned", "agent.role_revoked", "trust.feedback_received", "webhook.test"];
    assert_eq!(kinds(&unfiltered), [assigned, revoked, trust, test]);
    assert_eq!(kinds(&filtered), [revoked, trust, test]);
    assert_eq!(kinds(&other), [login, test]);
    assert_eq!(kinds(&deployment), [login, assigned, revoked, trust, test]);
    // All webhook targets get the same event with the same id.
    let ids = |receiver: &Receiver| {
        let ids = receiver.received().into_iter().filter(|request| request.json()["event"] == revoked);
        ids.map(|request| (request.id().to_owned(), request.body)).collect::<Vec<_>>()
    };
    assert_eq!(ids(&unfiltered), ids(&deployment));
    assert_eq!(ids(&unfiltered), ids(&filtered));
}

#[tokio::test]
async fn failed_login_events_have_the_reason() {
    let clock = WrongClock::new(0);
    let control = ControlPlane::start_in(&clock.environment(), &[]).await;
    let receiver = Receiver::start_ok().await;
    let target = Target::create_for(&control, &receiver.url, &["agent.authentication_failed"]).await;
    let source = EventSource::new(&control).await;
    let service = Some(control.service());
    source.agent.token_for(control.service()).await;

    let challenge = source.challenge(service).await;
    let signature = source.sign(&challenge);
    source.authenticate(&challenge, &signature).await.expect(200);
    assert_eq!(source.authenticate(&challenge, &signature).await.error().2, "challenge_used");
    let challenge = source.challenge(service).await;
    let signature = source.sign(&challenge);
    clock.set(AFTER_A_CHALLENGE);
    assert_eq!(source.authenticate(&challenge, &signature).await.error().2, "challenge_expired");

    let pair = source.agent.api().login(&source.agent.key, &source.agent.id, service).await.unwrap();
    let refresh = json!({ "refreshToken": pair.refresh_token.expose_secret() });
    control.api.post("/auth/refresh", refresh.clone()).await.expect(200);
    assert_eq!(control.api.post("/auth/refresh", refresh).await.error().2, "refresh_reused");
    let challenge = source.challenge(service).await;
    control.set_status(&source.agent.id, "suspended").await.expect(200);
    let signature = source.sign(&challenge);
    assert_eq!(source.authenticate(&challenge, &signature).await.error().2, "agent_suspended");
    receiver.wait_for_requests(4).await;
    wait_for_all_events(&target, &receiver).await;

    let mut delivered = delivered(&receiver);
    delivered.retain(|(kind, _)| kind != "webhook.test");
    let reasons = ["challenge_used", "challenge_expired", "refresh_reused", "agent_suspended"];
    let failed = reasons.map(|reason| {
        let agent_data =
            json!({ "agentId": source.agent.id, "serviceId": service, "reason": reason, "ipAddress": "127.0.0.1" });
        ("agent.authentication_failed", agent_data)
    });
    assert_eq!(delivered, expected(&failed));
}
