//! Tests of snapshots in pages: many changed agents, changes and deletions while a snapshot is sent, streams that end within a
//! snapshot, and the limit of pings.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_client::PrivateKey;
use countersign_control_plane::Dependencies;
use countersign_proto::v1::{
    AgentChanges, AgentStatus, Hello, Ping, SnapshotPage, SnapshotProgress, follow_request::Message as ClientMessage,
    follow_response::Message as ServerMessage,
};
use countersign_tests::{
    Agent, ControlPlane, Database, Follower, InProcessServer, Sidecar,
    bulk::{BulkInserts, copy_id},
    control_plane::text,
    eventually,
    follower::{channel, follow_request, hello},
};
use serde_json::json;
use std::collections::BTreeMap;

/// Number of changed agents. Their snapshot is much larger than what the queues between server and client hold.
const AGENTS: usize = 20_000;

/// A control plane with many agents that changed.
struct Fixture {
    control: ControlPlane,
    database: Database,
    /// An agent that changed before all others.
    agent: Agent,
    /// The revision before the changes of the other agents.
    base: i64,
}

impl Fixture {
    async fn new(changed: usize) -> Self {
        let control = ControlPlane::start().await;
        let database = Database::connect_to_write(&control).await;
        let agent = Agent::register(&control, "agent").await;
        agent.token_for(control.service()).await;
        control.set_status(&agent.id, "suspended").await.expect(200);
        let mut fixture = Self { control, database, agent, base: 0 };
        fixture.base = fixture.revision().await;
        fixture.insert_changed_agents(changed).await;
        fixture.wait_until_distributed().await;
        fixture
    }

    async fn revision(&mut self) -> i64 {
        self.database.number("SELECT revision FROM feed").await
    }

    /// In one transaction, writes agents and changes of their status with different revisions, as many transactions would have
    /// done. Every second agent is suspended.
    async fn insert_changed_agents(&mut self, count: usize) {
        let (base, agents) = (self.base, (1, i64::try_from(count).unwrap()));
        let mut bulk = BulkInserts::connect(&self.control.database_url(), &self.agent.id).await;
        bulk.execute("BEGIN").await;
        bulk.agents(agents, "active").await;
        let number = "CAST(substr(id, 17) AS BIGINT)";
        bulk.execute(&format!(
            "UPDATE agents SET cutoff = {base} + {number}, status = CASE WHEN {number} % 2 = 0 THEN 'active' ELSE 'suspended' END \
             WHERE superseded_at IS NOT NULL"
        ))
        .await;
        bulk.changes(agents, "status", self.control.service()).await;
        bulk.execute("COMMIT").await;
    }

    /// Waits until the server has read the changes for live streams. If a test deleted the changes earlier, live streams would end.
    async fn wait_until_distributed(&mut self) {
        let revision = self.revision().await;
        // Reads the metric as an integer, because a float does not represent the revision exactly.
        let distributed = async || {
            let metrics = self.control.admin().get("/metrics").await.body;
            let read = metrics.as_str()?.lines().find_map(|line| line.strip_prefix("countersign_feed_revision "))?;
            (read.parse::<i64>().ok()? >= revision).then_some(())
        };
        eventually("the changes are distributed", distributed, || self.control.log()).await;
    }

    /// Raises the revision floor and deletes the changes at or below it, as housekeeping does.
    async fn raise_floor(&mut self, floor: i64) {
        self.database.execute(&format!("UPDATE feed SET floor = {floor}")).await;
        self.database.execute(&format!("DELETE FROM changes WHERE revision <= {floor}")).await;
    }

    async fn follow(&self, hello: Hello) -> Follower {
        Follower::open_with_hello(channel(&self.control).await, self.control.key(), hello).await.unwrap()
    }

    /// The id of the agent with a number.
    fn id(&self, number: usize) -> String {
        copy_id(&self.agent.id, i64::try_from(number).unwrap())
    }

    /// Asserts that the received changes of the agents with these numbers are those in the database.
    fn check_agents(&self, follower: &Follower, received: &Received, numbers: std::ops::RangeInclusive<usize>) {
        for number in numbers {
            let status = received.agents[&follower.agent_hash(&self.id(number))].status.as_ref().unwrap();
            let expected = if number % 2 == 0 { AgentStatus::Active } else { AgentStatus::Suspended };
            let revision = self.base + i64::try_from(number).unwrap();
            assert_eq!((status.status(), status.revision, status.cutoff), (expected, revision, revision));
        }
    }
}

/// The pages of a snapshot.
#[derive(Default)]
struct Received {
    pages: usize,
    agents: BTreeMap<Vec<u8>, AgentChanges>,
    revision: i64,
    floor: i64,
    cursor: i64,
    last: bool,
}

impl Received {
    fn add(&mut self, page: SnapshotPage) {
        assert!(!self.last && (self.pages == 0 || page.revision == self.revision));
        assert!(page.floor >= self.floor && page.cursor >= self.cursor);
        (self.pages, self.revision, self.floor) = (self.pages + 1, page.revision, page.floor);
        (self.cursor, self.last) = (page.cursor, page.last);
        for changes in page.agents {
            self.agents.insert(changes.agent_hash.clone(), changes);
        }
    }

    async fn receive(&mut self, follower: &mut Follower, pages: usize) {
        while !self.last && self.pages < pages {
            self.add(follower.snapshot().await);
        }
    }
}

#[tokio::test]
async fn snapshot_of_many_agents_is_complete_and_changes_during_it_follow() {
    let fixture = Fixture::new(AGENTS).await;
    let (control, agent) = (&fixture.control, &fixture.agent);
    let (mut follower, mut received) = (fixture.follow(hello(0)).await, Received::default());
    received.receive(&mut follower, 4).await;
    control.set_status(&agent.id, "active").await.expect(200);
    let changed = fixture.id(7);
    control.set_status(&changed, "revoked").await.expect(200);
    received.receive(&mut follower, usize::MAX).await;
    assert!(received.pages > 20 && received.agents.len() == AGENTS + 1);
    fixture.check_agents(&follower, &received, 8..=AGENTS);

    let (deltas, pong) = follower.ping(1).await.unwrap();
    assert!(pong.revision > received.revision && deltas.last().unwrap().revision == pong.revision);
    let records: Vec<_> = deltas.iter().flat_map(|delta| &delta.agents).collect();
    let hash = follower.agent_hash(&agent.id);
    let status = records.iter().find(|record| record.agent_hash == hash).unwrap().status.as_ref().unwrap();
    assert_eq!(status.status(), AgentStatus::Active);
    control.set_status(&agent.id, "suspended").await.expect(200);
    assert_eq!(follower.ping(2).await.unwrap().0.len(), 1, "the stream continues with live changes");
}

#[tokio::test]
async fn floor_of_a_snapshot_rises_while_it_is_sent() {
    let mut fixture = Fixture::new(AGENTS).await;
    let (mut follower, mut received) = (fixture.follow(hello(0)).await, Received::default());
    received.receive(&mut follower, 4).await;
    let floor = fixture.base + 19_000;
    fixture.raise_floor(floor).await;
    received.receive(&mut follower, usize::MAX).await;
    assert_eq!(received.floor, floor);
    fixture.check_agents(&follower, &received, 19_001..=AGENTS);
    assert!(received.agents.len() < AGENTS, "deleted changes cannot be sent");
    let (deltas, pong) = follower.ping(1).await.unwrap();
    assert_eq!((deltas.len(), pong.floor, pong.revision), (0, floor, received.revision));
}

#[tokio::test]
async fn snapshot_continues_on_the_next_stream() {
    let mut fixture = Fixture::new(AGENTS).await;
    let (mut follower, mut received) = (fixture.follow(hello(0)).await, Received::default());
    received.receive(&mut follower, 10).await;
    drop(follower);
    let progress = SnapshotProgress { revision: received.revision, cursor: received.cursor };
    let partial = Hello { partial_snapshot: Some(progress), ..hello(0) };
    fixture.control.set_status(&fixture.agent.id, "active").await.expect(200);

    let mut follower = fixture.follow(partial.clone()).await;
    let first = follower.snapshot().await;
    assert!(first.info.is_some() && first.keys.is_none() && first.roles.is_none());
    let received_before = received.agents.len();
    received.add(first);
    received.receive(&mut follower, usize::MAX).await;
    assert!(received.last && received_before > 1000);
    fixture.check_agents(&follower, &received, 1..=AGENTS);
    let (deltas, pong) = follower.ping(1).await.unwrap();
    assert_eq!((deltas.len(), deltas[0].agents.len(), deltas[0].revision), (1, 1, pong.revision));
    drop(follower);

    // The server does not continue an unknown snapshot, or one whose changes were deleted.
    let unknown = SnapshotProgress { revision: progress.revision + 1, ..progress };
    let mut follower = fixture.follow(Hello { partial_snapshot: Some(unknown), ..hello(0) }).await;
    assert!(follower.snapshot().await.keys.is_some());
    let mut follower = fixture.follow(Hello { partial_snapshot: Some(progress), ..hello(pong.revision) }).await;
    assert!(follower.snapshot().await.keys.is_none(), "the rest of a snapshot is preferred");
    fixture.raise_floor(pong.revision).await;
    let mut follower = fixture.follow(partial).await;
    let page = follower.snapshot().await;
    assert!(page.keys.is_some() && page.last);
}

#[tokio::test]
async fn missed_changes_are_sent_in_pages_from_which_a_sidecar_can_resume() {
    let fixture = Fixture::new(AGENTS).await;
    let (mut revision, mut agents) = (fixture.base, BTreeMap::new());
    let mut follower = fixture.follow(hello(revision)).await;
    for message in 1.. {
        let delta = follower.delta().await;
        assert!(delta.revision >= revision);
        revision = delta.revision;
        agents.extend(delta.agents.into_iter().map(|changes| (changes.agent_hash.clone(), changes)));
        if agents.len() == AGENTS {
            break;
        }
        if message % 10 == 0 {
            follower = fixture.follow(hello(revision)).await;
        }
    }
    let received = Received { agents, ..Received::default() };
    fixture.check_agents(&follower, &received, 1..=AGENTS);
    assert_eq!(follower.ping(1).await.unwrap().1.revision, revision);
}

/// Each commit of the test changes the roles of one agent. So after a pong, the received roles must not be older than the revision
/// of the pong. They may be newer, because the server reads the revision of a pong before it sends the last changes.
#[tokio::test]
async fn no_change_is_missed_between_pages_and_live_changes() {
    let folder = tempfile::tempdir().unwrap();
    let dependencies = Dependencies { changes_per_read: 2, ..Dependencies::default() };
    let server = InProcessServer::start_with(folder.path(), &[], dependencies).await;
    let [service, key] = ["SERVICE_ID", "SERVICE_KEY"].map(|name| InProcessServer::env(folder.path(), name));
    let pem = PrivateKey::generate().public_pem().unwrap();
    let body = json!({ "email": "owner@example.org", "name": "agent", "publicKey": pem });
    let agent = text(&server.api.post("/auth/register", body).await.expect(201)["agentId"]);
    let body = json!({ "name": "reader", "description": "", "permissions": ["read"] });
    let role = server.api.send_as(&key, "POST", &format!("/services/{service}/roles"), body).await.expect(201);
    let (role, roles) = (text(&role["roleId"]), format!("/services/{service}/agents/{agent}/roles"));
    let write = async {
        for _ in 0..150 {
            server.api.send_as(&key, "POST", &roles, json!({ "roleId": role })).await.expect(200);
            server.api.send_as(&key, "DELETE", &format!("{roles}/{role}"), json!({})).await.expect(200);
        }
    };
    let follow = async {
        let (mut revision, mut newest) = (0, 0);
        for number in 1..=100_u64 {
            // Every third stream asks for a snapshot. The others resume from the last revision of the stream before.
            let since = if number % 3 == 0 { 0 } else { revision };
            let mut follower = Follower::open(server.sync_channel(folder.path()).await, &key, since).await.unwrap();
            let mut received = if number % 3 == 0 { 0 } else { newest };
            follower.send_ping(number).await;
            let pong = loop {
                let agents = match follower.next().await.unwrap() {
                    ServerMessage::Snapshot(page) => page.agents,
                    ServerMessage::Delta(delta) => delta.agents,
                    ServerMessage::Pong(pong) => break pong,
                };
                received =
                    agents.iter().filter_map(|agent| Some(agent.roles.as_ref()?.revision)).fold(received, i64::max);
            };
            assert!(number < 4 || received >= pong.revision, "{received} {}", pong.revision);
            (revision, newest) = (pong.revision, received);
        }
    };
    tokio::join!(write, follow);
}

#[tokio::test]
async fn streams_of_a_service_share_pages() {
    const STREAMS: usize = 15;
    let fixture = Fixture::new(AGENTS).await;
    let reads = async || fixture.control.metric("countersign_sync_page_reads_total ").await.unwrap();
    let follow = async || {
        let (mut follower, mut received) = (fixture.follow(hello(0)).await, Received::default());
        received.receive(&mut follower, usize::MAX).await;
        assert_eq!(received.agents.len(), AGENTS + 1);
    };
    let before = reads().await;
    futures_util::future::join_all((0..STREAMS).map(|_| follow())).await;
    let used = reads().await - before;
    // A read returns up to 4,000 changes, so without shared reads, each stream would cause at least 5 of them.
    assert!((6.0..30.0).contains(&used), "{used} reads");
}

#[tokio::test]
async fn sidecar_gets_a_view_of_many_changed_agents() {
    let fixture = Fixture::new(AGENTS).await;
    let control = &fixture.control;
    let (agent, _) = Agent::with_role(control, "reader", &["read"]).await;
    let token = agent.token().await;
    let sidecar = Sidecar::start(control).await;
    sidecar.wait_until_accepted(&token).await;
    let line = format!("countersign_authz_view_agents{{service=\"{}\"}}", control.service());
    assert!(sidecar.metric(&line).await.unwrap() >= 20_000.0);
}

#[tokio::test]
async fn flood_of_pings_does_not_disturb_other_keys() {
    const PINGS: u64 = 50_000;
    let control = ControlPlane::start().await;
    let flooding = Follower::start(&control, &control.create_key(control.service(), "sync").await, 0).await.unwrap();
    let (requests, mut messages) = flooding.split();
    // The server reads the pings slowly. So the client waits at some point, or the connection ends because too many frames are not
    // read.
    let flood = tokio::spawn(async move {
        for number in 1..=PINGS {
            if requests.send(follow_request(ClientMessage::Ping(Ping { number }))).await.is_err() {
                return number;
            }
        }
        PINGS
    });
    let answered = tokio::spawn(async move {
        let mut answered = 0;
        while let Ok(Some(response)) = messages.message().await {
            answered += u64::from(matches!(response.message, Some(ServerMessage::Pong(_))));
        }
        answered
    });
    let mut follower = Follower::start(&control, control.key(), 0).await.unwrap();
    follower.snapshot().await;
    for number in 1..=10 {
        assert_eq!(follower.ping(number).await.unwrap().1.number, number);
    }
    drop(control);
    assert!(flood.await.unwrap() < PINGS, "the server has read all pings");
    assert!(answered.await.unwrap() < PINGS / 100);
}
