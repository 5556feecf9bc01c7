//! Tests of what one read for snapshots, missed changes and live changes contains: data that changed often once per page, a bounded
//! number of roles, and the content of every change up to the revision of each page.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_proto::v1::{AgentChanges, RolesFacet, follow_response::Message};
use countersign_tests::{
    Agent, ControlPlane, Follower, HttpClient,
    follower::{channel, hello},
};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor, Row};
use std::collections::BTreeMap;

/// A control plane with agents that hold many roles at its service.
struct Fixture {
    control: ControlPlane,
    database: AnyConnection,
    agents: usize,
    roles: usize,
    /// The revision before the changes of the roles.
    base: i64,
}

fn numbers(name: &str, count: usize) -> String {
    format!("{name} (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM {name} WHERE i < {count})")
}

/// SQL for the id of an agent or a role with a number.
fn id(prefix: &str, number: &str) -> String {
    format!("'{prefix}_000000000000000000' || CAST(10000000 + {number} AS TEXT)")
}

impl Fixture {
    async fn new(agents: usize, roles: usize) -> Self {
        let control = ControlPlane::start().await;
        sqlx::any::install_default_drivers();
        let database = AnyConnection::connect(&control.database_url()).await.unwrap();
        let template = Agent::register(&control, "template").await.id;
        let role = control.create_role("template", &["read"]).await;
        let mut fixture = Self { control, database, agents, roles, base: 0 };
        let service = fixture.control.service().to_owned();
        fixture.execute("BEGIN".to_owned()).await;
        fixture
            .execute(format!(
                "WITH RECURSIVE {} INSERT INTO agents (id, owner_issuer, owner_subject, email, name, public_key, \
                 public_key_hash, status, cutoff, trust, metadata, created_at, updated_at) SELECT {}, owner_issuer, \
                 owner_subject, email, 'bulk ' || CAST(i AS TEXT), public_key, public_key_hash, status, cutoff, trust, \
                 metadata, created_at, updated_at FROM n, agents WHERE agents.id = '{template}'",
                numbers("n", agents),
                id("agent", "i")
            ))
            .await;
        fixture
            .execute(format!(
                "WITH RECURSIVE {} INSERT INTO roles (id, service_id, name, description, permissions, created_revision, \
                 created_at) SELECT {}, service_id, 'bulk-' || CAST(i AS TEXT), description, permissions, \
                 created_revision, created_at FROM n, roles WHERE roles.id = '{role}'",
                numbers("n", roles),
                id("role", "i")
            ))
            .await;
        fixture
            .execute(format!(
                "WITH RECURSIVE {}, {} INSERT INTO assignments (agent_id, role_id, service_id, assigned_at) \
                 SELECT {}, {}, '{service}', 0 FROM a, r",
                numbers("a", agents),
                numbers("r", roles),
                id("agent", "a.i"),
                id("role", "r.i")
            ))
            .await;
        fixture.execute("COMMIT".to_owned()).await;
        fixture.base = fixture.database.fetch_one("SELECT revision FROM feed").await.unwrap().get(0);
        fixture
    }

    async fn execute(&mut self, sql: String) {
        self.database.execute(AssertSqlSafe(sql)).await.unwrap();
    }

    /// Writes changes of the roles of the agents in turn, each with a revision of its own, as many transactions would.
    async fn change_roles(&mut self, count: usize) {
        self.insert_changes(count, ("i", "0")).await;
    }

    /// Writes one transaction that changes the roles of all agents.
    async fn change_roles_of_all_agents_at_once(&mut self) {
        self.insert_changes(self.agents, ("1", "i")).await;
    }

    async fn insert_changes(&mut self, count: usize, (revision, position): (&str, &str)) {
        let (base, agents, service) = (self.base, self.agents, self.control.service().to_owned());
        self.execute("BEGIN".to_owned()).await;
        self.execute(format!("UPDATE feed SET revision = {base} + {count}")).await;
        self.execute(format!(
            "WITH RECURSIVE {} INSERT INTO changes (revision, position, facet, subject, recipient, recorded_at) \
             SELECT {base} + {revision}, {position}, 'roles', {}, '{service}', {base} FROM n",
            numbers("n", count),
            id("agent", &format!("1 + (i - 1) % {agents}"))
        ))
        .await;
        self.execute("COMMIT".to_owned()).await;
    }

    async fn follow(&self, revision: i64) -> Follower {
        Follower::open_with_hello(channel(&self.control).await, self.control.key(), hello(revision)).await.unwrap()
    }

    /// The number of reads for pages so far.
    async fn reads(&self) -> u64 {
        let metrics = HttpClient::plain(self.control.env["ADMIN_URL"].clone()).get("/metrics").await.body;
        let lines = metrics.as_str().unwrap().lines();
        let values = lines.filter_map(|line| line.strip_prefix("countersign_sync_page_reads_total "));
        values.map(|value| value.parse::<u64>().unwrap()).sum()
    }

    /// Requires that the roles of an agent were received with this revision.
    fn check_roles(&self, received: &Received, follower: &Follower, (agent, revision): (usize, i64)) {
        let id = format!("agent_000000000000000000{}", 10_000_000 + agent);
        let roles = &received.roles[&follower.agent_hash(&id)];
        assert_eq!((roles.revision, roles.grants.len()), (revision, self.roles), "agent {agent}");
    }

    /// Requires the roles of all agents, of which each changed once.
    fn check_single_changes(&self, received: &Received, follower: &Follower) {
        assert_eq!(received.roles.len(), self.agents);
        for (agent, revision) in (1..=self.agents).zip(self.base + 1..) {
            self.check_roles(received, follower, (agent, revision));
        }
    }
}

/// The roles of agents in the messages of a stream.
#[derive(Default)]
struct Received {
    messages: usize,
    roles: BTreeMap<Vec<u8>, RolesFacet>,
}

impl Received {
    fn add(&mut self, agents: Vec<AgentChanges>) {
        self.messages += 1;
        for AgentChanges { agent_hash, roles, .. } in agents {
            self.roles.extend(roles.map(|roles| (agent_hash, roles)));
        }
    }

    async fn snapshot(follower: &mut Follower) -> Self {
        let mut received = Self::default();
        loop {
            let page = follower.snapshot().await;
            received.add(page.agents);
            if page.last {
                return received;
            }
        }
    }

    /// Everything that arrives before a pong.
    async fn before_pong(follower: &mut Follower) -> Self {
        let mut received = Self::default();
        follower.send_ping(1).await;
        loop {
            match follower.next().await.unwrap() {
                Message::Snapshot(page) => received.add(page.agents),
                Message::Delta(delta) => received.add(delta.agents),
                Message::Pong(_) => return received,
            }
        }
    }
}

#[tokio::test]
async fn roles_that_changed_often_are_sent_once_per_page() {
    const CHANGES: usize = 2000;
    let mut fixture = Fixture::new(1, 200).await;
    fixture.change_roles(CHANGES).await;
    let newest = fixture.base + 2000;
    let mut follower = fixture.follow(0).await;
    let received = Received::snapshot(&mut follower).await;
    fixture.check_roles(&received, &follower, (1, newest));
    assert!(received.messages < 5, "{} messages", received.messages);
    let mut follower = fixture.follow(fixture.base).await;
    let received = Received::before_pong(&mut follower).await;
    fixture.check_roles(&received, &follower, (1, newest));
    assert!(received.messages < 5, "{} messages", received.messages);
}

/// Twenty agents change in turn, more than the changes of a page, and then again.
#[tokio::test]
async fn no_page_lacks_the_content_of_a_change_up_to_its_revision() {
    const AGENTS: usize = 20;
    const CHANGES: usize = 1000;
    let mut fixture = Fixture::new(AGENTS, 200).await;
    fixture.change_roles(CHANGES).await;
    let mut follower = fixture.follow(fixture.base).await;
    let (mut received, mut revision) = (Received::default(), fixture.base);
    while revision < fixture.base + 1000 {
        let delta = follower.delta().await;
        revision = delta.revision;
        received.add(delta.agents);
        let last = usize::try_from(revision - fixture.base).unwrap();
        for change in last.saturating_sub(AGENTS)..last {
            let hash = follower.agent_hash(&format!("agent_000000000000000000{}", 10_000_001 + change % AGENTS));
            let roles = &received.roles[&hash];
            let noted = fixture.base + 1 + i64::try_from(change).unwrap();
            assert!(roles.revision >= noted && roles.grants.len() == 200, "{noted} {}", roles.revision);
        }
        if received.messages % 50 == 0 {
            follower = fixture.follow(revision).await;
        }
    }
    let before = fixture.reads().await;
    let mut follower = fixture.follow(0).await;
    let received = Received::snapshot(&mut follower).await;
    let reads = fixture.reads().await - before;
    assert!(reads > 3, "{reads} reads of 10 MB in total");
    for (agent, revision) in (1..=AGENTS).zip(fixture.base + 981..) {
        fixture.check_roles(&received, &follower, (agent, revision));
    }
}

#[tokio::test]
async fn reads_are_bounded_by_the_number_of_roles() {
    let mut fixture = Fixture::new(600, 100).await;
    let mut live = fixture.follow(0).await;
    assert!(Received::before_pong(&mut live).await.roles.is_empty());
    fixture.change_roles(600).await;
    let received = Received::before_pong(&mut live).await;
    fixture.check_single_changes(&received, &live);
    let before = fixture.reads().await;
    let mut follower = fixture.follow(0).await;
    let received = Received::snapshot(&mut follower).await;
    fixture.check_single_changes(&received, &follower);
    let reads = fixture.reads().await - before;
    assert!(reads >= 4, "{reads} reads: of the settings, and of the roles");
    let mut follower = fixture.follow(fixture.base).await;
    let received = Received::before_pong(&mut follower).await;
    fixture.check_single_changes(&received, &follower);
}

#[tokio::test]
async fn all_roles_that_one_transaction_changed_are_read_together() {
    let mut fixture = Fixture::new(600, 100).await;
    let mut live = fixture.follow(0).await;
    assert!(Received::before_pong(&mut live).await.roles.is_empty());
    fixture.change_roles_of_all_agents_at_once().await;
    let mut new = fixture.follow(0).await;
    for follower in [&mut live, &mut new] {
        let received = Received::before_pong(follower).await;
        assert_eq!(received.roles.len(), 600);
        for agent in 1..=600 {
            fixture.check_roles(&received, follower, (agent, fixture.base + 1));
        }
    }
}
