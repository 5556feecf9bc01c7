//! Tests that the webhooks of a service are told nothing of logins that do not concern it: of agents that the service does not
//! know, for other services, for no service, and for services that do not exist.

use crate::events::{AFTER_A_CHALLENGE, delivered, wait_for_all_events};
use countersign_tests::{Agent, ControlPlane, EventSource, HttpResponse, Receiver, Target, Tenant, WrongClock};
use serde_json::{Value, json};

const LOGINS: [&str; 2] = ["agent.authenticated", "agent.authentication_failed"];

/// A service of another person, with a webhook for logins. The service has assigned a role to an agent that has never used it.
struct Stranger {
    service: String,
    target: Target,
    receiver: Receiver,
}

impl Stranger {
    async fn new(control: &ControlPlane, agent: &Agent) -> Self {
        let mallory = Tenant::new(control, "mallory").await;
        mallory.assign_new_role(&agent.id, "writer", &["write"]).await;
        let receiver = Receiver::start_ok().await;
        let target = mallory.create_target(&receiver.url, &LOGINS).await;
        Self { service: mallory.service, target, receiver }
    }

    /// Asserts that nothing but a test event was delivered, and that nothing else waits.
    async fn assert_told_nothing(&self) {
        wait_for_all_events(&self.target, &self.receiver).await;
        assert_eq!(self.receiver.count(), 1, "only the test event: {:?}", delivered(&self.receiver));
        let all = self.target.deliveries("").await;
        assert_eq!(all.len(), 1, "no event waits: {all:?}");
    }
}

/// The services in the events of one kind, sorted.
fn services(receiver: &Receiver, kind: &str) -> Vec<Value> {
    let mut services: Vec<_> = receiver.of_kind(kind).iter().map(|event| event.data()["serviceId"].clone()).collect();
    services.sort_by_key(Value::to_string);
    services
}

/// An agent has logged in for a service where it has a role. A role at another service (a stranger) does not make the next login
/// one for the stranger, and does not let the stranger learn the agent's address.
#[tokio::test]
async fn role_of_a_stranger_brings_it_no_logins() {
    let control = ControlPlane::start().await;
    let (used, source) = (Receiver::start_ok().await, EventSource::new(&control).await);
    Target::create_for(&control, &used.url, &LOGINS).await;
    source.assign().await;
    source.agent.token_for(control.service()).await;
    let stranger = Stranger::new(&control, &source.agent).await;
    for _ in 0..4 {
        let token = source.agent.token().await;
        assert_eq!(control.verify(&token).await.expect(200)["agent"]["roles"], json!(["reader"]));
    }
    used.wait_for_requests(5).await;
    assert_eq!(services(&used, "agent.authenticated"), vec![json!(control.service()); 5]);
    stranger.assert_told_nothing().await;
}

#[tokio::test]
async fn logins_that_are_not_for_a_service_are_told_to_the_deployment_only() {
    let control = ControlPlane::start().await;
    let (used, deployment) = tokio::join!(Receiver::start_ok(), Receiver::start_ok());
    let source = EventSource::new(&control).await;
    source.agent.token_for(control.service()).await;
    let used_target = Target::create_for(&control, &used.url, &LOGINS).await;
    let deployment_target = Target::create_for_deployment(&control, &deployment.url).await;
    let stranger = Stranger::new(&control, &source.agent).await;

    source.fail_login(None).await.expect(400);
    source.fail_login(Some(&stranger.service)).await.expect(400);
    source.fail_login(Some(control.service())).await.expect(400);
    let without_roles = Agent::register(&control, "No roles").await;
    without_roles.login().await;
    deployment.wait_for_requests(5).await;
    for (target, receiver) in [(&used_target, &used), (&deployment_target, &deployment)] {
        wait_for_all_events(target, receiver).await;
    }
    stranger.assert_told_nothing().await;
    let own = json!(control.service());
    assert_eq!(services(&used, "agent.authentication_failed"), std::slice::from_ref(&own));
    assert_eq!(services(&deployment, "agent.authentication_failed"), [own, Value::Null, Value::Null]);
    let unbound = deployment.of_kind("agent.authenticated").remove(0).data();
    assert_eq!(unbound, json!({ "agentId": without_roles.id, "serviceId": null, "ipAddress": "127.0.0.1" }));
}

/// Anybody can register an agent and let its logins at any service fail. This must not flood the webhooks of the service.
#[tokio::test]
async fn service_is_not_told_of_failed_logins_of_an_agent_that_it_does_not_know() {
    let clock = WrongClock::new(0);
    let control = ControlPlane::start_in(&clock.environment(), &[]).await;
    let deployment = Receiver::start_ok().await;
    Target::create_for_deployment(&control, &deployment.url).await;
    let source = EventSource::new(&control).await;
    let stranger = Stranger::new(&control, &source.agent).await;
    let service = stranger.service.as_str();
    // The service is named by the challenge, or only by the login.
    let expired = [source.challenge(Some(service)).await, source.challenge(None).await];
    // A burst of failures ends after about a minute of real time, so all failures must come after the change of the clock.
    clock.set(AFTER_A_CHALLENGE);
    let challenges = [source.challenge(Some(service)).await, source.challenge(None).await];
    let fail = async |challenge: &Value| -> HttpResponse {
        let signature = source.agent.key.sign("another nonce");
        let body = json!({ "challengeId": challenge["challengeId"], "signature": signature, "serviceId": service });
        control.api.post("/auth/authenticate", body).await
    };
    for challenge in &challenges {
        assert_eq!(fail(challenge).await.error().1, "INVALID_SIGNATURE");
    }
    for challenge in expired.iter().cycle().take(28) {
        assert_eq!(fail(challenge).await.error().2, "challenge_expired");
    }
    deployment.wait_for_requests(11).await;
    assert_eq!(
        services(&deployment, "agent.authentication_failed"),
        vec![Value::Null; 10],
        "the failures are one burst"
    );
    stranger.assert_told_nothing().await;
}

/// An expired challenge is refused before the service is looked up, so the service in the request need not exist.
#[tokio::test]
async fn failed_logins_for_services_that_do_not_exist_have_no_service() {
    let clock = WrongClock::new(0);
    let control = ControlPlane::start_in(&clock.environment(), &[]).await;
    let deployment = Receiver::start_ok().await;
    Target::create_for_deployment(&control, &deployment.url).await;
    let source = EventSource::new(&control).await;
    let challenge = source.challenge(None).await;
    clock.set(AFTER_A_CHALLENGE);
    for number in 0..30 {
        let service = format!("svc_{number:026}");
        let body = json!({ "challengeId": challenge["challengeId"], "signature": "00", "serviceId": service });
        let refused = control.api.post("/auth/authenticate", body).await;
        assert_eq!(refused.error().2, "challenge_expired");
    }
    deployment.wait_for_requests(10).await;
    for event in deployment.of_kind("agent.authentication_failed") {
        assert_eq!(event.data()["serviceId"], Value::Null);
    }
    assert_eq!(deployment.count(), 10, "the failures are one burst");
}
