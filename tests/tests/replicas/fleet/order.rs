//! Tests that followers (clients of the sync stream) miss no change when transactions of several replicas commit in any
//! order, and that every change of the change feed is sent with its revision before any later change.

use super::{FleetAgent, Replicas, lock_load, now};
use countersign_identity::{AgentHashKey, AgentId};
use countersign_proto::v1::{AgentChanges, Delta, follow_response::Message, revocation::Subject};
use countersign_tests::{ControlPlane, Database, Follower};
use futures_util::future::join_all;
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{sync::mpsc, task::JoinHandle};

const WRITERS: usize = 50;

/// Duration of the writes in seconds, unless `FLEET_SECONDS` is set.
const DEFAULT_SECONDS: u64 = 15;

/// Revision of the newest change of each facet (kind of data that changed) and subject.
type Changes = BTreeMap<(String, String), i64>;

/// The changes of one batch, and the revision before it.
struct Batch {
    since: i64,
    revision: i64,
    changes: Changes,
}

/// Everything that a follower (a client of the sync stream) received, and the resulting roles of each agent.
struct ReceivedChanges {
    agent_hash_key: AgentHashKey,
    batches: Vec<Batch>,
    roles: BTreeMap<String, BTreeSet<String>>,
    reconnects: u32,
}

impl ReceivedChanges {
    /// The name of an agent in the stream.
    fn agent_name(&self, agent: &str) -> String {
        hex::encode(self.agent_hash_key.hash(agent.parse().unwrap()).to_bytes())
    }

    /// The subject of a change as in the stream, where hashes name agents.
    fn subject_name(&self, subject: &str) -> String {
        if subject.starts_with(AgentId::PREFIX) { self.agent_name(subject) } else { subject.to_owned() }
    }

    fn newest_revision(&self) -> i64 {
        self.batches.last().unwrap().revision
    }

    /// Adds a message to `unfinished`, the batch in progress. Only the last message of a batch advances the revision.
    fn add(&mut self, unfinished: &mut Changes, delta: &Delta) {
        for record in &delta.agents {
            unfinished.extend(changes_of(record));
            if let Some(facet) = &record.roles {
                let role_ids = facet.grants.iter().map(|grant| grant.role_id.clone());
                self.roles.insert(hex::encode(&record.agent_hash), role_ids.collect());
            }
        }
        for revocation in &delta.revocations {
            let (facet, subject) = match revocation.subject.as_ref().unwrap() {
                Subject::TokenId(token) => ("token", token),
                Subject::SessionId(session) => ("session", session),
            };
            unfinished.insert((facet.to_owned(), subject.clone()), revocation.revision);
        }
        let since = self.newest_revision();
        assert!(delta.revision >= since, "{} after {since}", delta.revision);
        if delta.revision > since {
            self.batches.push(Batch { since, revision: delta.revision, changes: std::mem::take(unfinished) });
        }
    }
}

fn changes_of(record: &AgentChanges) -> impl Iterator<Item = ((String, String), i64)> {
    let AgentChanges { agent_hash, roles, trust, status } = record;
    let revisions = [
        ("roles", roles.as_ref().map(|facet| facet.revision)),
        ("trust", trust.as_ref().map(|facet| facet.revision)),
        ("status", status.as_ref().map(|facet| facet.revision)),
    ];
    let id = hex::encode(agent_hash);
    revisions.into_iter().filter_map(move |(facet, revision)| Some(((facet.to_owned(), id.clone()), revision?)))
}

/// Follows the change feed up to the revision `end_revision`, and reports its first snapshot to `connected`. With
/// `reconnect_after`, the follower reconnects after `reconnect_after` messages.
fn follow(
    control: Arc<ControlPlane>,
    key: String,
    (end_revision, connected): (Arc<AtomicI64>, mpsc::Sender<()>),
    reconnect_after: Option<u32>,
) -> JoinHandle<ReceivedChanges> {
    tokio::spawn(async move {
        let mut follower = Follower::start(&control, &key, 0).await.unwrap();
        let page = follower.snapshot().await;
        assert!(page.last && page.agents.is_empty());
        connected.send(()).await.unwrap();
        let start = Batch { since: 0, revision: page.revision, changes: Changes::new() };
        let agent_hash_key = follower.agent_hash_key();
        let mut received =
            ReceivedChanges { agent_hash_key, batches: vec![start], roles: BTreeMap::new(), reconnects: 0 };
        let (mut unfinished, mut messages) = (Changes::new(), 0);
        while received.newest_revision() < end_revision.load(Ordering::SeqCst) {
            let next = tokio::time::timeout(Duration::from_millis(300), follower.next()).await;
            match next.map(Result::unwrap) {
                Ok(Message::Delta(delta)) => received.add(&mut unfinished, &delta),
                Ok(message) => panic!("{message:?}"),
                Err(_) => continue,
            }
            messages += 1;
            if reconnect_after.is_some_and(|count| messages % count == 0) {
                // A reconnection may interrupt a batch, which the server then sends again.
                unfinished.clear();
                follower = Follower::start(&control, &key, received.newest_revision()).await.unwrap();
                received.reconnects += 1;
            }
        }
        received
    })
}

/// The changes in the change feed that a service which accepts unbound tokens receives, in commit order: revision, facet
/// (kind of data that changed) and subject.
async fn committed_changes(database: &str, service: &str) -> Vec<(i64, (String, String))> {
    let sql = format!(
        "SELECT CAST(revision AS TEXT) || ' ' || facet || ' ' || subject FROM changes \
         WHERE (recipient IS NULL OR recipient IN ('', '{service}')) AND facet IN ('roles', 'trust', 'status', 'token', 'session') \
         ORDER BY revision, position"
    );
    let rows = Database::connect(database).await.text_column(&sql).await;
    let parsed = rows.iter().map(|row| {
        let fields: Vec<_> = row.split(' ').collect();
        (fields[0].parse().unwrap(), (fields[1].to_owned(), fields[2].to_owned()))
    });
    parsed.collect()
}

/// Asserts that each batch contains all changes of its range with their newest revision.
fn assert_complete(name: &str, received: &ReceivedChanges, committed: &[(i64, (String, String))]) {
    let mut count = 0;
    for Batch { since, revision, changes } in &received.batches[1..] {
        let within = committed.iter().filter(|(changed_at, _)| changed_at > since && changed_at <= revision);
        let expected: Changes = within
            .map(|(changed_at, (facet, subject))| ((facet.clone(), received.subject_name(subject)), *changed_at))
            .collect();
        // A batch may repeat changes that an earlier one contained.
        let mut actual = changes.clone();
        actual.retain(|_, changed_at| *changed_at > *since);
        assert_eq!(actual, expected, "{name}: from {since} to {revision}");
        count += actual.len();
    }
    let last = committed.iter().map(|(revision, _)| *revision).max().unwrap();
    let newest = received.newest_revision();
    assert!(newest >= last, "{name} received changes up to {newest} of {last}");
    println!("{name}: {} batches with {count} changes, {} reconnects", received.batches.len(), received.reconnects);
}

/// Writes alternately at both replicas, with its own agent.
async fn write(replicas: [&ControlPlane; 2], roles: &[String], end: Duration, writes: &AtomicU64) {
    let agent = FleetAgent::register(replicas[0]).await;
    let assign = replicas[0].path(&format!("/agents/{}/roles", agent.id));
    let mut step = 0;
    while now() < end {
        let control = replicas[step % 2];
        match step % 8 {
            3 => drop(control.set_status(&agent.id, "suspended").await.expect(200)),
            4 => drop(control.set_status(&agent.id, "active").await.expect(200)),
            6 => control.revoke_token(&agent.token(control).await).await,
            0 | 2 | 5 => {
                let body = json!({ "roleId": roles[step % roles.len()] });
                drop(control.api.send_as(replicas[0].key(), "POST", &assign, body).await.expect(200));
            }
            _ => {
                let path = format!("{assign}/{}", roles[(step + 1) % roles.len()]);
                drop(control.api.send_as(replicas[0].key(), "DELETE", &path, json!({})).await.expect(200));
            }
        }
        step += 1;
        writes.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_miss_no_change_of_fifty_writers_at_two_replicas() {
    let _lock = lock_load().await;
    let seconds = std::env::var("FLEET_SECONDS").map_or(DEFAULT_SECONDS, |text| text.parse().unwrap());
    let Replicas { _postgres, database, first, second } = Replicas::start().await;
    let (first, second) = (Arc::new(first), Arc::new(second));
    let roles = [first.create_role("a", &["a"]).await, first.create_role("b", &["b"]).await];
    let key = first.create_key(first.service(), "sync").await;
    let end_revision = Arc::new(AtomicI64::new(i64::MAX));
    let (connected, mut connections) = mpsc::channel(3);
    let start = |control: &Arc<ControlPlane>, reconnect_after| {
        follow(control.clone(), key.clone(), (end_revision.clone(), connected.clone()), reconnect_after)
    };
    let followers = [
        ("first replica", start(&first, None)),
        ("second replica", start(&second, None)),
        ("reconnecting", start(&second, Some(25))),
    ];
    drop(connected);
    for _ in &followers {
        connections.recv().await.expect("every follower receives a snapshot before the first write");
    }
    let (writes, end) = (AtomicU64::new(0), now() + Duration::from_secs(seconds));
    join_all((0..WRITERS).map(|_| write([&first, &second], &roles, end, &writes))).await;
    let committed = committed_changes(&database, first.service()).await;
    end_revision.store(committed.last().unwrap().0, Ordering::SeqCst);
    println!("{} writes in {seconds} s, {} changes", writes.into_inner(), committed.len());
    let assignments = assignments(&database, first.service()).await;
    for (name, follower) in followers {
        let received = tokio::time::timeout(Duration::from_secs(20), follower).await;
        let received = received.expect("the follower receives all changes in time").unwrap();
        assert_complete(name, &received, &committed);
        let agents = received.roles.iter().filter(|(_, roles)| !roles.is_empty());
        let received_roles = agents.flat_map(|(agent, roles)| roles.iter().map(move |role| format!("{agent} {role}")));
        let received_roles: BTreeSet<_> = received_roles.collect();
        let assignments: BTreeSet<_> =
            assignments.iter().map(|(agent, role)| format!("{} {role}", received.agent_name(agent))).collect();
        assert_eq!(received_roles, assignments, "{name}");
    }
}

/// The role assignments in the database: agent and role.
async fn assignments(database: &str, service: &str) -> Vec<(String, String)> {
    let sql = format!("SELECT agent_id || ' ' || role_id FROM assignments WHERE service_id = '{service}'");
    let rows = Database::connect(database).await.text_column(&sql).await;
    let pairs = rows.iter().map(|row| row.split_once(' ').unwrap());
    pairs.map(|(agent, role)| (agent.to_owned(), role.to_owned())).collect()
}
