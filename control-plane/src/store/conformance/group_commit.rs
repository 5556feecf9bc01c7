//! Tests of group commit on SQLite.

use super::{insert_text, read_texts};
use crate::{
    domain::change::Change,
    store::{
        OpenMode, Store, StoreError, StoreOptions, WriteTransaction,
        deployment::{self, Deployment},
        group_commit::MAX_MEMBERS,
        transaction,
    },
};
use countersign_identity::AgentId;
use countersign_process::SystemClock;
use futures_util::future::join_all;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tempfile::TempDir;
use tokio::{sync::watch, task::JoinHandle, time::sleep};

/// What a transaction does after it has inserted its text.
#[derive(Debug, Clone, Copy)]
enum Then {
    Commit,
    ReturnError,
    /// Ends the transaction of the engine. The store then cannot complete the savepoint, and closes the connection. A rerun
    /// commits.
    BreakConnection,
    /// Makes the commit of the group fail, because of a foreign key.
    BreakCommit,
    /// Runs a statement that takes some time.
    RunSlowly,
}

/// A transaction in a task of its own, which waits after its insert until it may end.
struct Transaction {
    task: JoinHandle<Result<(), StoreError>>,
    may_end: watch::Sender<bool>,
    runs: Arc<AtomicU32>,
}

impl Transaction {
    fn start(store: &Store, text: &'static str, then: Then) -> Self {
        let (may_end, allowed) = watch::channel(false);
        let runs = Arc::new(AtomicU32::new(0));
        let (store, counter) = (store.clone(), Arc::clone(&runs));
        let work = move |tx| {
            let is_rerun = counter.fetch_add(1, Ordering::Relaxed) > 0;
            let then = if is_rerun && matches!(then, Then::BreakConnection) { Then::Commit } else { then };
            run(tx, text, then, allowed.clone())
        };
        Self { task: tokio::spawn(async move { store.write("test", work).await }), may_end, runs }
    }

    async fn end(self) -> Result<(), StoreError> {
        self.may_end.send_replace(true);
        self.task.await.unwrap()
    }

    async fn wait_until_running(&self) {
        wait_until(|| self.runs.load(Ordering::Relaxed) > 0).await;
    }
}

async fn run(
    mut tx: WriteTransaction,
    text: &'static str,
    then: Then,
    mut allowed: watch::Receiver<bool>,
) -> Result<transaction::CommittedTransaction<()>, StoreError> {
    insert_text(&mut tx, text).await?;
    tx.record_change(Change::Status(AgentId::from_bits(1)));
    allowed.wait_for(|allowed| *allowed).await.unwrap();
    match then {
        Then::Commit => {}
        Then::ReturnError => return Err(StoreError::AuditAfterRevision), // any error
        Then::BreakConnection => {
            tx.conn().execute("ROLLBACK").await?;
        }
        Then::BreakCommit => {
            tx.conn().execute("PRAGMA defer_foreign_keys = ON").await?;
            let orphan =
                "INSERT INTO assignments (agent_id, role_id, service_id, assigned_at) VALUES ('a', 'b', 'c', 0)";
            tx.conn().execute(orphan).await?;
        }
        Then::RunSlowly => {
            let count =
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000) SELECT max(i) FROM n";
            tx.conn().execute(count).await?;
        }
    }
    tx.commit(()).await
}

async fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        sleep(Duration::from_millis(1)).await;
    }
}

/// A store on SQLite. Each test lets a first transaction run until others wait for it.
struct Fixture {
    store: Store,
    _folder: TempDir,
}

impl Fixture {
    /// The time limits of a group are so long that the tests do not depend on the speed of the machine.
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = StoreOptions::for_tests(Arc::new(SystemClock), "ours");
        let file = folder.path().join("countersign.db");
        let mut store = Store::open_sqlite(OpenMode::Serve, &file, options).await.unwrap();
        store.group_commit.max_wait = Duration::from_hours(1);
        store.group_commit.rollback_timeout = Duration::from_hours(1);
        let ours = Deployment { master_key_fingerprint: "ours".to_owned(), dev_since: None };
        deployment::find_or_create(&store, &ours).await.unwrap();
        Self { store, _folder: folder }
    }

    /// Starts transactions. The first one runs, and the others queue behind it in this order.
    async fn start<const N: usize>(&self, transactions: [(&'static str, Then); N]) -> [Transaction; N] {
        let mut started = Vec::new();
        for (number, (text, then)) in transactions.into_iter().enumerate() {
            started.push(Transaction::start(&self.store, text, then));
            if number == 0 {
                started[0].wait_until_running().await;
            } else {
                wait_until(|| self.store.group_commit.waiting.load(Ordering::Relaxed) == number).await;
            }
        }
        started.try_into().ok().unwrap()
    }

    async fn texts(&self) -> Vec<String> {
        read_texts(&mut self.store.read().await.unwrap()).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_transactions_share_a_commit() {
    let fixture = Fixture::new().await;
    let [first, second, third] =
        fixture.start([("first", Then::Commit), ("second", Then::Commit), ("third", Then::Commit)]).await;
    first.may_end.send_replace(true);
    second.may_end.send_replace(true);
    third.wait_until_running().await;
    assert!(!first.task.is_finished() && !second.task.is_finished(), "a success was reported before the commit");
    assert!(fixture.texts().await.is_empty());
    third.end().await.unwrap();
    assert_eq!(fixture.texts().await, ["first", "second", "third"]);
    first.end().await.unwrap();
    second.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_fails_does_not_affect_its_group() {
    let fixture = Fixture::new().await;
    let [first, failing, third] =
        fixture.start([("first", Then::Commit), ("failing", Then::ReturnError), ("third", Then::Commit)]).await;
    first.may_end.send_replace(true);
    failing.may_end.send_replace(true);
    third.wait_until_running().await;
    assert!(!failing.task.is_finished(), "an error was reported that uncommitted data may have caused");
    third.end().await.unwrap();
    first.end().await.unwrap();
    assert!(matches!(failing.end().await, Err(StoreError::AuditAfterRevision)));
    assert_eq!(fixture.texts().await, ["first", "third"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_transaction_that_fails_is_rolled_back() {
    let fixture = Fixture::new().await;
    let [failing, second] = fixture.start([("failing", Then::ReturnError), ("second", Then::Commit)]).await;
    failing.end().await.unwrap_err();
    second.end().await.unwrap();
    assert_eq!(fixture.texts().await, ["second"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_run_again_if_the_connection_of_their_group_breaks() {
    let fixture = Fixture::new().await;
    let [first, failing, breaking] = fixture
        .start([("first", Then::Commit), ("failing", Then::ReturnError), ("breaking", Then::BreakConnection)])
        .await;
    let runs = Arc::clone(&first.runs);
    first.may_end.send_replace(true);
    failing.may_end.send_replace(true);
    breaking.end().await.unwrap();
    first.end().await.unwrap();
    failing.end().await.unwrap_err();
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    assert_eq!(fixture.texts().await, ["breaking", "first"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_run_again_alone_if_the_commit_of_their_group_fails() {
    let fixture = Fixture::new().await;
    let [first, failing, breaking] =
        fixture.start([("first", Then::Commit), ("failing", Then::ReturnError), ("breaking", Then::BreakCommit)]).await;
    let runs = [&first, &failing, &breaking].map(|transaction| Arc::clone(&transaction.runs));
    first.may_end.send_replace(true);
    failing.may_end.send_replace(true);
    let error = breaking.end().await.unwrap_err();
    assert!(matches!(error, StoreError::GroupCommit(_)) && !error.leaves_outcome_unknown(), "{error}");
    first.end().await.unwrap();
    assert!(matches!(failing.end().await, Err(StoreError::AuditAfterRevision)));
    assert_eq!(runs.map(|runs| runs.load(Ordering::Relaxed)), [2, 2, 2]);
    let [next] = fixture.start([("next", Then::Commit)]).await;
    next.end().await.unwrap();
    assert!(fixture.store.is_writable());
    assert_eq!(fixture.texts().await, ["first", "next"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_is_announced_although_its_caller_is_gone() {
    let fixture = Fixture::new().await;
    let mut newest = fixture.store.committed_revision();
    newest.borrow_and_update();
    let [first, second] = fixture.start([("first", Then::Commit), ("second", Then::ReturnError)]).await;
    first.may_end.send_replace(true);
    second.wait_until_running().await;
    assert!(!newest.has_changed().unwrap(), "a revision was announced before the commit");
    first.task.abort();
    second.end().await.unwrap_err();
    newest.changed().await.unwrap();
    assert_eq!(fixture.texts().await, ["first"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_transaction_does_not_affect_its_group() {
    let fixture = Fixture::new().await;
    let [first, cancelled, third, queued] = fixture
        .start([
            ("first", Then::Commit),
            ("cancelled", Then::Commit),
            ("third", Then::Commit),
            ("queued", Then::Commit),
        ])
        .await;
    first.may_end.send_replace(true);
    cancelled.wait_until_running().await;
    queued.task.abort();
    cancelled.task.abort();
    third.end().await.unwrap();
    first.end().await.unwrap();
    assert_eq!(fixture.texts().await, ["first", "third"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_cancelled_at_any_time_does_not_affect_its_group() {
    let fixture = Fixture::new().await;
    for microseconds in (0..20_000).step_by(500) {
        let [first, cancelled, third] = fixture
            .start([("first", Then::Commit), ("cancelled", Then::RunSlowly), ("third", Then::ReturnError)])
            .await;
        let runs = Arc::clone(&first.runs);
        first.may_end.send_replace(true);
        cancelled.may_end.send_replace(true);
        cancelled.wait_until_running().await;
        sleep(Duration::from_micros(microseconds)).await;
        cancelled.task.abort();
        third.end().await.unwrap_err();
        first.end().await.unwrap();
        assert_eq!(runs.load(Ordering::Relaxed), 1, "cancelled after {microseconds} us");
        let delete = async |mut tx: WriteTransaction| {
            tx.conn().execute("DELETE FROM changed_trust_scores").await?;
            tx.commit(()).await
        };
        fixture.store.write::<_, StoreError, _, _>("delete", delete).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_waits_too_long_is_committed() {
    let mut fixture = Fixture::new().await;
    fixture.store.group_commit.max_wait = Duration::ZERO;
    let [first, second, third] =
        fixture.start([("first", Then::Commit), ("second", Then::Commit), ("third", Then::Commit)]).await;
    first.may_end.send_replace(true);
    second.end().await.unwrap();
    first.end().await.unwrap();
    assert_eq!(fixture.texts().await, ["first", "second"]);
    third.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_waits_too_long_is_committed_although_others_fail() {
    let mut fixture = Fixture::new().await;
    fixture.store.group_commit.max_wait = Duration::from_millis(1);
    let [first, failing, third] =
        fixture.start([("first", Then::Commit), ("failing", Then::ReturnError), ("third", Then::Commit)]).await;
    first.may_end.send_replace(true);
    failing.wait_until_running().await;
    sleep(Duration::from_millis(2)).await;
    failing.end().await.unwrap_err();
    first.end().await.unwrap();
    assert_eq!(fixture.texts().await, ["first"]);
    third.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn background_work_waits_for_no_commit_of_others() {
    let fixture = Fixture::new().await;
    let [first, second] = fixture.start([("first", Then::Commit), ("second", Then::Commit)]).await;
    let alone = async |mut tx: WriteTransaction| {
        let mut read = fixture.store.read().await?;
        assert_eq!(read_texts(&mut read).await, ["first", "second"], "requests waited for background work");
        insert_text(&mut tx, "alone").await?;
        tx.commit(()).await
    };
    let alone = fixture.store.write_alone("alone", alone);
    first.may_end.send_replace(true);
    second.may_end.send_replace(true);
    alone.await.unwrap();
    first.end().await.unwrap();
    second.end().await.unwrap();
    assert_eq!(fixture.texts().await, ["alone", "first", "second"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_transactions_than_a_group_has_are_all_committed() {
    let fixture = Fixture::new().await;
    let revisions = join_all((0..10 * MAX_MEMBERS).map(|number| {
        let work = move |mut tx: WriteTransaction| async move {
            insert_text(&mut tx, &format!("{number:04}")).await?;
            let revision = tx.revision().await?;
            tx.commit(revision).await
        };
        fixture.store.write::<_, StoreError, _, _>("many", work)
    }))
    .await;
    let mut revisions: Vec<_> = revisions.into_iter().map(Result::unwrap).collect();
    assert_eq!(*fixture.store.committed_revision().borrow(), *revisions.iter().max().unwrap());
    revisions.sort_unstable();
    revisions.dedup();
    assert_eq!(revisions.len(), 10 * MAX_MEMBERS);
    assert_eq!(fixture.texts().await.len(), 10 * MAX_MEMBERS);
}
