//! Tests that a stream contains only what concerns agents that may have a live token for its service, and that a stream does
//! not reveal the ids of agents.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_proto::v1::{AgentChanges, Delta, SnapshotPage, revocation::Subject};
use countersign_tests::{Agent, ControlPlane, Follower, jwt};
use prost::Message as _;
use secrecy::ExposeSecret;
use serde_json::json;

/// A service with an open stream.
struct Tenant {
    id: String,
    key: String,
    stream: Follower,
    pings: u64,
}

impl Tenant {
    async fn create(control: &ControlPlane, name: &str, accepts_unbound: bool) -> Self {
        let (id, key) = control.create_service(json!({ "name": name, "acceptsUnboundTokens": accepts_unbound })).await;
        let mut stream = Follower::start(control, &key, 0).await.unwrap();
        assert!(stream.snapshot().await.last);
        Self { id, key, stream, pings: 0 }
    }

    /// Receives everything up to the present revision.
    async fn receive(&mut self) -> Vec<Delta> {
        self.pings += 1;
        self.stream.ping(self.pings).await.unwrap().0
    }

    /// The changes of agents that arrive up to the present revision.
    async fn receive_agents(&mut self) -> Vec<AgentChanges> {
        self.receive().await.into_iter().flat_map(|delta| delta.agents).collect()
    }

    /// The changes of the status of agents that arrive up to the present revision. Ignores changes of trust, which may arrive with
    /// any of them, because trust is published later.
    async fn receive_status_changes(&mut self) -> Vec<AgentChanges> {
        let mut changes = self.receive_agents().await;
        changes.retain(|record| record.status.is_some());
        changes
    }

    async fn set_accepts_unbound(&self, control: &ControlPlane, accepts: bool) {
        let body = json!({ "acceptsUnboundTokens": accepts });
        control.api.send_as(control.human(), "PATCH", &format!("/services/{}", self.id), body).await.expect(200);
    }

    /// Gives feedback about an agent, which changes the agent's trust.
    async fn give_feedback(&self, control: &ControlPlane, agent: &Agent) {
        let body = json!({ "agentId": agent.id, "score": 5, "reason": "test" });
        control.api.send_as(&self.key, "POST", "/trust/feedback", body).await.expect(200);
    }
}

async fn three_tenants(control: &ControlPlane) -> [Tenant; 3] {
    [
        Tenant::create(control, "bound", false).await,
        Tenant::create(control, "other bound", false).await,
        Tenant::create(control, "accepts unbound tokens", true).await,
    ]
}

/// The snapshot of a new stream, in one page.
async fn whole_snapshot(control: &ControlPlane, key: &str) -> (Follower, SnapshotPage) {
    let mut stream = Follower::start(control, key, 0).await.unwrap();
    let mut whole = stream.snapshot().await;
    while !whole.last {
        let page = stream.snapshot().await;
        whole.agents.extend(page.agents);
        whole.revocations.extend(page.revocations);
        whole.last = page.last;
    }
    (stream, whole)
}

#[tokio::test]
async fn changes_of_an_agent_go_to_the_audiences_of_its_tokens() {
    let control = ControlPlane::start().await;
    let [mut bound, mut other, mut unbound] = three_tenants(&control).await;
    let agent = Agent::register(&control, "agent").await;
    control.set_status(&agent.id, "suspended").await.expect(200);
    control.set_status(&agent.id, "active").await.expect(200);
    for tenant in [&mut bound, &mut other, &mut unbound] {
        assert_eq!(tenant.receive().await, [], "the agent has no token");
    }
    agent.token_for(&bound.id).await;
    bound.give_feedback(&control, &agent).await;
    control.set_status(&agent.id, "suspended").await.expect(200);
    let received = bound.receive_agents().await;
    assert!(received.iter().all(|record| record.agent_hash == bound.stream.agent_hash(&agent.id)));
    assert!(received.iter().any(|record| record.status.is_some()));
    assert_eq!((other.receive().await, unbound.receive().await), (vec![], vec![]));

    control.set_status(&agent.id, "active").await.expect(200);
    let login = agent.api().login(&agent.key, &agent.id, None).await.unwrap();
    assert!(!jwt::claims(login.access_token.expose_secret())["aud"].as_str().unwrap().starts_with("svc_"));
    let _ = (bound.receive().await, unbound.receive().await);
    control.set_status(&agent.id, "suspended").await.expect(200);
    assert_eq!(bound.receive_status_changes().await.len(), 1, "its earlier token is still live");
    let received = unbound.receive_status_changes().await;
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].agent_hash, unbound.stream.agent_hash(&agent.id));
    assert_ne!(received[0].agent_hash, bound.stream.agent_hash(&agent.id), "services cannot compare hashes");
    assert_eq!(other.receive().await, []);
}

#[tokio::test]
async fn refresh_for_a_service_makes_the_service_a_recipient() {
    let control = ControlPlane::start().await;
    let [mut bound, mut other, _] = three_tenants(&control).await;
    let agent = Agent::register(&control, "agent").await;
    let login = agent.login().await;
    let body = json!({ "refreshToken": login.refresh_token.expose_secret(), "serviceId": other.id });
    let refreshed = control.api.post("/auth/refresh", body).await.expect(200);
    other.give_feedback(&control, &agent).await;
    control.set_status(&agent.id, "suspended").await.expect(200);
    assert!(other.receive_agents().await.iter().any(|record| record.status.is_some()));
    assert_eq!(bound.receive().await, []);

    control.revoke_token(refreshed["refreshToken"].as_str().unwrap()).await;
    let ended: Vec<_> = other.receive().await.into_iter().flat_map(|delta| delta.revocations).collect();
    assert!(matches!(ended[0].subject, Some(Subject::SessionId(_))), "{ended:?}");
    assert_eq!(bound.receive().await, []);
}

#[tokio::test]
async fn revoked_tokens_and_ended_sessions_go_to_their_own_audience() {
    let control = ControlPlane::start().await;
    let [mut bound, mut other, mut unbound] = three_tenants(&control).await;
    let agent = Agent::register(&control, "agent").await;
    let unbound_token = agent.token().await;
    let of_bound = agent.api().login(&agent.key, &agent.id, Some(&bound.id)).await.unwrap();
    let of_other = agent.token_for(&other.id).await;
    let revocations = async |tenant: &mut Tenant| -> usize {
        tenant.receive().await.iter().map(|delta| delta.revocations.len()).sum()
    };
    for (token, expected) in [
        (unbound_token.as_str(), [0, 0, 1]),
        (of_other.as_str(), [0, 1, 0]),
        (of_bound.access_token.expose_secret(), [1, 0, 0]),
        (of_bound.refresh_token.expose_secret(), [1, 0, 0]),
    ] {
        control.revoke_token(token).await;
        let received = [revocations(&mut bound).await, revocations(&mut other).await, revocations(&mut unbound).await];
        assert_eq!(received, expected);
    }
}

#[tokio::test]
async fn service_that_begins_to_accept_unbound_tokens_receives_a_snapshot() {
    let control = ControlPlane::start().await;
    let mut tenant = Tenant::create(&control, "service", false).await;
    let agent = Agent::register(&control, "agent").await;
    agent.login().await;
    control.set_status(&agent.id, "suspended").await.expect(200);
    assert_eq!(tenant.receive().await, []);
    let revision = tenant.stream.ping(100).await.unwrap().1.revision;

    tenant.set_accepts_unbound(&control, true).await;
    let (page, agents) = (tenant.stream.snapshot().await, tenant.stream.snapshot().await);
    assert!(page.info.unwrap().accepts_unbound_tokens && agents.last);
    assert_eq!(agents.agents[0].agent_hash, tenant.stream.agent_hash(&agent.id));
    control.set_status(&agent.id, "active").await.expect(200);
    assert_eq!(tenant.receive_agents().await.len(), 1, "the stream goes on after the snapshot");

    let mut resumed = Follower::start(&control, &tenant.key, revision).await.unwrap();
    assert!(resumed.snapshot().await.info.is_some(), "a stream that resumes receives a snapshot as well");
    tenant.set_accepts_unbound(&control, false).await;
    assert!(!tenant.stream.delta().await.info.unwrap().accepts_unbound_tokens);
    control.set_status(&agent.id, "suspended").await.expect(200);
    assert_eq!(tenant.receive().await, []);
}

#[tokio::test]
async fn snapshot_contains_only_what_concerns_the_service_and_no_ids() {
    let control = ControlPlane::start().await;
    let [bound, other, unbound] = three_tenants(&control).await;
    let mut agents = Vec::new();
    for (name, service) in [("first", Some(&bound)), ("second", Some(&other)), ("third", None)] {
        let agent = Agent::register(&control, name).await;
        agent.api().login(&agent.key, &agent.id, service.map(|tenant| tenant.id.as_str())).await.unwrap();
        control.set_status(&agent.id, "suspended").await.expect(200);
        agents.push(agent);
    }
    for (tenant, expected) in [(bound, 0), (other, 1), (unbound, 2)] {
        let (stream, snapshot) = whole_snapshot(&control, &tenant.key).await;
        let hashes: Vec<_> = snapshot.agents.iter().map(|record| record.agent_hash.clone()).collect();
        assert_eq!(hashes, [stream.agent_hash(&agents[expected].id)]);
        let bytes = snapshot.encode_to_vec();
        for agent in &agents {
            assert!(!bytes.windows(agent.id.len()).any(|window| window == agent.id.as_bytes()));
        }
    }
}
