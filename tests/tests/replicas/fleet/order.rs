//! Followers miss no change, in whatever order transactions end at several replicas: every change of the feed is sent
//! with its revision before any later change.

use super::{Member, alone, now, replica};
use countersign_proto::v1::{AgentChanges, Delta, follow_response::Message as Told, revocation::Subject};
use countersign_tests::{ControlPlane, Database, Follower, HttpResponse, Postgres};
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
use tokio::task::JoinHandle;

const WRITERS: usize = 50;

/// Duration of the writes in seconds, unless `FLEET_SECONDS` is set.
const SECONDS: u64 = 15;

/// Facet and subject with the revision of the newest change.
type Stamps = BTreeMap<(String, String), i64>;

/// The changes of one batch, and the revision before it.
struct Batch {
    since: i64,
    revision: i64,
    stamps: Stamps,
}

/// Everything that a follower received, and the roles that follow from it.
struct Heard {
    batches: Vec<Batch>,
    roles: BTreeMap<String, BTreeSet<String>>,
    resumed: u32,
}

impl Heard {
    fn newest(&self) -> i64 {
        self.batches.last().unwrap().revision
    }

    /// Adds a message. Only the last message of a batch advances the revision.
    fn take(&mut self, open: &mut Stamps, delta: &Delta) {
        for record in &delta.agents {
            open.extend(stamps(record));
            if let Some(facet) = &record.roles {
                let held = facet.grants.iter().map(|grant| grant.role_id.clone());
                self.roles.insert(record.agent_id.clone(), held.collect());
            }
        }
        for dead in &delta.revocations {
            let (facet, subject) = match dead.subject.as_ref().unwrap() {
                Subject::TokenId(token) => ("token", token),
                Subject::SessionId(session) => ("session", session),
            };
            open.insert((facet.to_owned(), subject.clone()), dead.revision);
        }
        let since = self.newest();
        assert!(delta.revision >= since, "{} after {since}", delta.revision);
        if delta.revision > since {
            self.batches.push(Batch { since, revision: delta.revision, stamps: std::mem::take(open) });
        }
    }
}

fn stamps(record: &AgentChanges) -> impl Iterator<Item = ((String, String), i64)> {
    let AgentChanges { agent_id, roles, trust, status } = record;
    let revisions = [
        ("roles", roles.as_ref().map(|facet| facet.revision)),
        ("trust", trust.as_ref().map(|facet| facet.revision)),
        ("status", status.as_ref().map(|facet| facet.revision)),
    ];
    let id = agent_id.clone();
    revisions.into_iter().filter_map(move |(facet, revision)| Some(((facet.to_owned(), id.clone()), revision?)))
}

/// Follows until the revision `until`. With `breaks`, reconnects after that many messages.
fn follow(at: Arc<ControlPlane>, key: String, until: Arc<AtomicI64>, breaks: Option<u32>) -> JoinHandle<Heard> {
    tokio::spawn(async move {
        let mut follower = Follower::start(&at, &key, 0).await.unwrap();
        let first = follower.snapshot().await;
        assert!(first.last && first.agents.is_empty());
        let begin = Batch { since: 0, revision: first.revision, stamps: Stamps::new() };
        let mut heard = Heard { batches: vec![begin], roles: BTreeMap::new(), resumed: 0 };
        let (mut open, mut messages) = (Stamps::new(), 0);
        while heard.newest() < until.load(Ordering::SeqCst) {
            let next = tokio::time::timeout(Duration::from_millis(300), follower.next()).await;
            match next.map(Result::unwrap) {
                Ok(Told::Delta(delta)) => heard.take(&mut open, &delta),
                Ok(other) => panic!("{other:?}"),
                Err(_) => continue,
            }
            messages += 1;
            if breaks.is_some_and(|breaks| messages % breaks == 0) {
                // In the middle of a batch too: the rest of the batch is sent again.
                open.clear();
                follower = Follower::start(&at, &key, heard.newest()).await.unwrap();
                heard.resumed += 1;
            }
        }
        heard
    })
}

/// Every change of a service in the feed, in commit order.
async fn noted(database: &str, service: &str) -> Vec<(i64, (String, String))> {
    let sql = format!(
        "SELECT CAST(revision AS TEXT) || ' ' || facet || ' ' || subject FROM changes \
         WHERE (service_id IS NULL OR service_id = '{service}') AND facet IN ('roles', 'trust', 'status', 'token', 'session') \
         ORDER BY revision, position"
    );
    let rows = Database::connect(database).await.texts(&sql).await;
    let parsed = rows.iter().map(|row| {
        let words: Vec<_> = row.split(' ').collect();
        (words[0].parse().unwrap(), (words[1].to_owned(), words[2].to_owned()))
    });
    parsed.collect()
}

/// Asserts that each batch contains all changes of its range with their newest revision.
fn compare(name: &str, heard: &Heard, noted: &[(i64, (String, String))]) {
    let mut told = 0;
    for Batch { since, revision, stamps } in &heard.batches[1..] {
        let within = noted.iter().filter(|(at, _)| at > since && at <= revision);
        let expected: Stamps = within.map(|(at, what)| (what.clone(), *at)).collect();
        // Earlier changes may be repeated.
        let news: Stamps = stamps.iter().filter(|(_, at)| *at > since).map(|(what, at)| (what.clone(), *at)).collect();
        assert_eq!(news, expected, "{name}: from {since} to {revision}");
        told += news.len();
    }
    let last = noted.iter().map(|(at, _)| *at).max().unwrap();
    assert!(heard.newest() >= last, "{name} heard up to {} of {last}", heard.newest());
    println!("{name}: {} batches with {told} records, taken up again {} times", heard.batches.len(), heard.resumed);
}

/// Writes at both replicas in turn, with its own agent.
async fn write(replicas: [&ControlPlane; 2], roles: &[String], end: Duration, done: &AtomicU64) {
    let agent = Member::register(replicas[0]).await;
    let assign = replicas[0].path(&format!("/agents/{}/roles", agent.id));
    let mut turn = 0;
    while now() < end {
        let at = replicas[turn % 2];
        match turn % 8 {
            3 => drop(at.set_status(&agent.id, "suspended").await.expect(200)),
            4 => drop(at.set_status(&agent.id, "active").await.expect(200)),
            6 => at.revoke_token(&agent.token(at).await).await,
            0 | 2 | 5 => {
                let body = json!({ "roleId": roles[turn % roles.len()] });
                drop(at.api.send_as(replicas[0].key(), "POST", &assign, body).await.expect(200));
            }
            _ => {
                let path = format!("{assign}/{}", roles[(turn + 1) % roles.len()]);
                let request = at.api.request("DELETE", &path).bearer_auth(replicas[0].key());
                HttpResponse::send(request).await.expect(200);
            }
        }
        turn += 1;
        done.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_miss_no_change_of_fifty_writers_at_two_replicas() {
    let _alone = alone().await;
    let seconds = std::env::var("FLEET_SECONDS").map_or(SECONDS, |text| text.parse().unwrap());
    let postgres = Postgres::start().await;
    let database = postgres.database().await;
    let (one, other) = tokio::join!(replica(&database), replica(&database));
    let (one, other) = (Arc::new(one), Arc::new(other));
    let roles = [one.create_role("a", &["a"]).await, one.create_role("b", &["b"]).await];
    let key = one.create_key(one.service(), "sync").await;
    let until = Arc::new(AtomicI64::new(i64::MAX));
    let followers = [("at one", &one, None), ("at the other", &other, None), ("taken up again", &other, Some(25))]
        .map(|(name, at, breaks)| (name, follow(at.clone(), key.clone(), until.clone(), breaks)));

    let (done, end) = (AtomicU64::new(0), now() + Duration::from_secs(seconds));
    join_all((0..WRITERS).map(|_| write([&one, &other], &roles, end, &done))).await;
    let noted = noted(&database, one.service()).await;
    until.store(noted.last().unwrap().0, Ordering::SeqCst);
    println!("{} writes in {seconds} s, {} changes", done.into_inner(), noted.len());
    let held = held(&database, one.service()).await;
    for (name, follower) in followers {
        let heard = tokio::time::timeout(Duration::from_secs(20), follower).await.expect("it hears all").unwrap();
        compare(name, &heard, &noted);
        let known = heard.roles.iter().filter(|(_, roles)| !roles.is_empty());
        let known = known.flat_map(|(agent, roles)| roles.iter().map(move |role| format!("{agent} {role}")));
        let known: BTreeSet<_> = known.collect();
        assert_eq!(known, held, "{name}");
    }
}

/// The role assignments in the database.
async fn held(database: &str, service: &str) -> BTreeSet<String> {
    let sql = format!("SELECT agent_id || ' ' || role_id FROM assignments WHERE service_id = '{service}'");
    Database::connect(database).await.texts(&sql).await.into_iter().collect()
}
