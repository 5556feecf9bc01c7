//! Tests what the server reads at once for snapshots, missed changes and live changes. A page contains data that changed often only
//! once, and a limited number of roles, but the content of every change up to its revision.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_proto::v1::{AgentChanges, RolesFacet, follow_response::Message};
use countersign_tests::{
    Agent, ControlPlane, Database, Follower,
    bulk::{BulkInserts, copy_id, numbers},
    follower::{channel, hello},
};
use std::collections::BTreeMap;

/// A control plane with agents that hold many roles at its service.
struct Fixture {
    control: ControlPlane,
    database: Database,
    /// The agent of which the others are copies.
    template: String,
    agents: usize,
    roles: usize,
    /// The revision before the changes of the roles.
    base: i64,
}

impl Fixture {
    async fn new(agents: usize, roles: usize) -> Self {
        let control = ControlPlane::start().await;
        let template = Agent::register(&control, "template").await.id;
        let role = control.create_role("template", &["read"]).await;
        let start_of_role = &role[..role.len() - 8];
        let role_ids: Vec<_> = (1..=roles).map(|number| format!("{start_of_role}{number:08}")).collect();
        let mut bulk = BulkInserts::connect(&control.database_url(), &template).await;
        let copies = (1, i64::try_from(agents).unwrap());
        bulk.execute("BEGIN").await;
        bulk.agents(copies, "active").await;
        bulk.execute(&format!(
            "{} INSERT INTO roles (id, service_id, name, description, permissions, created_revision, created_at) SELECT \
             '{start_of_role}' || substr(CAST(100000000 + n AS TEXT), 2), service_id, 'bulk-' || CAST(n AS TEXT), description, \
             permissions, created_revision, created_at FROM numbers, roles WHERE roles.id = '{role}'",
            numbers(1, i64::try_from(roles).unwrap())
        ))
        .await;
        bulk.assignments(copies, control.service(), &role_ids).await;
        bulk.execute("COMMIT").await;
        let mut database = Database::connect_to_write(&control).await;
        let base = database.number("SELECT revision FROM feed").await;
        Self { control, database, template, agents, roles, base }
    }

    /// The id of the agent with a number.
    fn id(&self, number: usize) -> String {
        copy_id(&self.template, i64::try_from(number).unwrap())
    }

    /// Writes changes of the roles of the agents in turn, each with a revision of its own, as many transactions would.
    async fn change_roles(&mut self, count: usize) {
        self.insert_changes(count, ("n", "0")).await;
    }

    /// Writes one transaction that changes the roles of all agents.
    async fn change_roles_of_all_agents_at_once(&mut self) {
        self.insert_changes(self.agents, ("1", "n")).await;
    }

    async fn insert_changes(&mut self, count: usize, (revision, position): (&str, &str)) {
        let Self { base, agents, template, .. } = &*self;
        let (count, numbers) = (i64::try_from(count).unwrap(), numbers(1, i64::try_from(count).unwrap()));
        let (service, start) = (self.control.service(), &template[..16]);
        let statements = [
            "BEGIN".to_owned(),
            format!("UPDATE feed SET revision = {base} + {count}"),
            format!(
                "{numbers} INSERT INTO changes (revision, position, facet, subject, recipient, recorded_at) SELECT \
                 {base} + {revision}, {position}, 'roles', '{start}' || substr(CAST(10000000000000001 + (n - 1) % {agents} AS TEXT), 2), \
                 '{service}', {base} FROM numbers"
            ),
            "COMMIT".to_owned(),
        ];
        for statement in statements {
            self.database.execute(&statement).await;
        }
    }

    async fn follow(&self, revision: i64) -> Follower {
        Follower::open_with_hello(channel(&self.control).await, self.control.key(), hello(revision)).await.unwrap()
    }

    /// The number of reads for pages so far.
    async fn reads(&self) -> f64 {
        self.control.metric("countersign_sync_page_reads_total ").await.unwrap()
    }

    /// Asserts that the roles of an agent were received with this revision.
    fn check_roles(&self, received: &Received, follower: &Follower, (agent, revision): (usize, i64)) {
        let roles = &received.roles[&follower.agent_hash(&self.id(agent))];
        assert_eq!((roles.revision, roles.grants.len()), (revision, self.roles), "agent {agent}");
    }

    /// Asserts that the roles of all agents were received. The test must have changed the roles of each agent exactly once.
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

/// Twenty agents change in turn, fifty times each.
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
            let hash = follower.agent_hash(&fixture.id(1 + change % AGENTS));
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
    assert!(reads > 3.0, "{reads} reads of 10 MB in total");
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
    assert!(reads >= 4.0, "{reads} reads: of the settings, and of the roles");
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
