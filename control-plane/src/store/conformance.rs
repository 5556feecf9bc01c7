//! Tests that the store behaves the same on SQLite and PostgreSQL. [`StoreFixture`] has two stores on one database, like two
//! replicas.

mod group_commit;
mod query_plans;
mod round_trip;
mod sources;
mod statements;

use super::{
    OpenMode, ReadTransaction, Store, StoreError, StoreFailure, StoreOptions, WriteTransaction,
    changed_data::{self, ReadLimit},
    deployment::{self, Deployment},
    feed,
    query::params,
    row,
};
use crate::{
    domain::{
        audit::{
            AuditAction, Initiator, NewAuditEntry,
            keys::{AuditKeyRing, AuditKeys},
        },
        change::{Change, RevisionRange},
    },
    metrics::{LabelValues, Metrics},
};
use countersign_identity::{AgentId, Revision, Timestamp};
use countersign_process::{Clock, SystemClock};
use countersign_test_engines::Postgres;
use futures_util::future::join_all;
use std::{collections::BTreeSet, future::pending, sync::Arc, time::Duration};
use tokio::time::timeout;

/// Number of concurrent transactions, which is higher than the number of connections.
const CONCURRENCY: u128 = 30;

const CONNECTION_WAIT: Duration = Duration::from_secs(10);

/// Two stores on one database.
struct StoreFixture {
    first: Store,
    second: Store,
    url: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn store_conforms_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("countersign.db");
    let url = format!("sqlite://{}", file.display());
    check_conformance(url, async |options| Store::open_sqlite(OpenMode::Serve, &file, options).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn store_conforms_on_postgresql() {
    let server = Postgres::start().await;
    let url = server.create_database().await;
    let secret = url.clone().into();
    check_conformance(url, async |options| Store::open_postgres(OpenMode::Serve, &secret, 8, options).await).await;
}

async fn check_conformance(url: String, open: impl AsyncFn(StoreOptions) -> Result<Store, StoreError>) {
    let (first, second) = (open(options("ours")).await.unwrap(), open(options("ours")).await.unwrap());
    let fixture = StoreFixture { first, second, url };
    fixture.engine_accepts_every_statement().await;
    fixture.deletions_in_batches_use_indexes().await;
    fixture.changes_of_a_recipient_are_read_by_their_index().await;
    fixture.creates_one_deployment().await;
    fixture.keeps_committed_writes_and_drops_others().await;
    fixture.read_sees_one_snapshot_and_cannot_write().await;
    fixture.failed_statement_prevents_the_commit().await;
    fixture.unique_key_is_inserted_once().await;
    fixture.follower_sees_every_change_once().await;
    fixture.audit_after_revision_is_refused().await;
    fixture.cancelled_transactions_release_their_connections().await;
    fixture.texts_and_numbers_are_stored_unchanged().await;
    fixture.every_table_returns_what_was_written().await;
    let error = open(options("another")).await.err().unwrap();
    assert!(
        matches!(&error, StoreError::WrongMasterKey { needed, configured } if needed == "ours" && configured == "another"),
        "{error}"
    );
}

fn options(master_key_fingerprint: &str) -> StoreOptions {
    StoreOptions::for_tests(Arc::new(SystemClock), master_key_fingerprint)
}

impl StoreOptions {
    /// A store with this clock, under a master key with this fingerprint.
    pub fn for_tests(clock: Arc<dyn Clock>, master_key_fingerprint: &str) -> Self {
        let audit_keys = AuditKeyRing::new(vec![(master_key_fingerprint.to_owned(), AuditKeys::derive(&[7; 32]))]);
        let metrics = Metrics::new(&LabelValues::default()).unwrap();
        Self { clock, audit_keys: Arc::new(audit_keys), metrics: metrics.store }
    }
}

/// Inserts a text into `changed_trust_scores`, a table with a single text column and no foreign key.
async fn insert_text(tx: &mut WriteTransaction, text: &str) -> Result<(), StoreError> {
    tx.conn().apply("INSERT INTO changed_trust_scores (agent_id) VALUES ($1)", params![text]).await
}

async fn read_texts(read: &mut ReadTransaction) -> Vec<String> {
    let sql = "SELECT agent_id FROM changed_trust_scores ORDER BY agent_id";
    read.conn().list_rows(sql, params![], |row| row::get(row, "agent_id")).await.unwrap()
}

impl StoreFixture {
    async fn read_both(&self) -> [ReadTransaction; 2] {
        [self.first.read().await.unwrap(), self.second.read().await.unwrap()]
    }

    async fn delete_all_texts(&self) {
        let work = async |mut tx: WriteTransaction| {
            tx.conn().apply("DELETE FROM changed_trust_scores", params![]).await?;
            tx.commit(()).await
        };
        self.first.write("delete_texts", work).await.unwrap();
    }

    async fn commit_text(&self, text: &str) -> Result<(), StoreError> {
        let work = async |mut tx: WriteTransaction| {
            insert_text(&mut tx, text).await?;
            tx.commit(()).await
        };
        self.first.write("commit_text", work).await
    }

    async fn creates_one_deployment(&self) {
        let dev_since = Some(Timestamp::from_seconds(1));
        let deployment = |name: &str| Deployment { master_key_fingerprint: name.to_owned(), dev_since };
        let (ours, theirs) = (deployment("ours"), deployment("theirs"));
        assert_eq!(deployment::find_or_create(&self.first, &ours).await.unwrap(), ours);
        assert_eq!(deployment::find_or_create(&self.second, &theirs).await.unwrap(), ours);
        for (store, generated) in [(&self.first, [1; 32]), (&self.second, [2; 32])] {
            let generated = &generated;
            let work = async |mut tx: WriteTransaction| {
                let secret = deployment::set_agent_hash_secret(tx.conn(), generated).await?;
                tx.commit(secret).await
            };
            assert_eq!(store.write("set_secret", work).await.unwrap(), [1; 32], "the first secret stays");
        }
    }

    async fn keeps_committed_writes_and_drops_others(&self) {
        self.commit_text("kept").await.unwrap();
        let failing = async |mut tx: WriteTransaction| {
            insert_text(&mut tx, "dropped").await?;
            Err(StoreError::AuditAfterRevision) // any error
        };
        self.first.write::<(), _, _, _>("failing", failing).await.unwrap_err();
        for mut read in self.read_both().await {
            assert_eq!(read_texts(&mut read).await, ["kept"]);
        }
        self.delete_all_texts().await;
    }

    async fn read_sees_one_snapshot_and_cannot_write(&self) {
        let mut read = self.second.read().await.unwrap();
        assert!(read_texts(&mut read).await.is_empty());
        self.commit_text("later").await.unwrap();
        assert!(read_texts(&mut read).await.is_empty());
        let insert = "INSERT INTO changed_trust_scores (agent_id) VALUES ('x')";
        assert!(read.conn().apply(insert, params![]).await.unwrap_err().is_unwritable());
        let mut next = self.second.read().await.unwrap();
        assert_eq!(read_texts(&mut next).await, ["later"]);
        self.delete_all_texts().await;
    }

    /// After a failed statement, the commit fails even if the caller ignores the error of the statement.
    async fn failed_statement_prevents_the_commit(&self) {
        let ignoring_error = async |mut tx: WriteTransaction| {
            insert_text(&mut tx, "one").await?;
            insert_text(&mut tx, "one").await.unwrap_err();
            insert_text(&mut tx, "two").await.unwrap_err();
            tx.commit(()).await
        };
        self.first.write("ignoring_error", ignoring_error).await.unwrap_err();
        let mut read = self.first.read().await.unwrap();
        assert!(read_texts(&mut read).await.is_empty());
    }

    async fn unique_key_is_inserted_once(&self) {
        let insert = async |store: &Store| {
            let work = async |mut tx: WriteTransaction| {
                insert_text(&mut tx, "unique").await?;
                tx.commit(()).await
            };
            store.write("insert", work).await
        };
        let results = join_all((0..CONCURRENCY).flat_map(|_| [insert(&self.first), insert(&self.second)])).await;
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        for error in results.into_iter().filter_map(Result::err) {
            assert!(!error.is_unwritable() && !error.is_transient(), "{error}");
        }
        self.delete_all_texts().await;
    }

    /// Revisions become visible in the order of commits, so a stream that has read up to a revision has missed no change.
    async fn follower_sees_every_change_once(&self) {
        let agents = |store: u128| (0..CONCURRENCY).map(move |number| AgentId::from_bits(store * CONCURRENCY + number));
        let change = async |store: &Store, agent: AgentId| {
            let work = async |mut tx: WriteTransaction| {
                tx.record_change(Change::Status(agent));
                tx.commit(()).await
            };
            // Both stores write to the same SQLite file. On a slow machine, a store may wait too long for the file lock, or the
            // transaction may exceed its time limit.
            while let Err(error) = store.write("change", work).await {
                assert!(error.is_transient() || error.to_string().contains("did not respond in time"), "{error}");
            }
        };
        let write = async {
            let first = join_all(agents(0).map(|agent| change(&self.first, agent)));
            let second = join_all(agents(1).map(|agent| change(&self.second, agent)));
            tokio::join!(first, second)
        };
        let follow = async {
            let (mut since, mut seen) = (Revision::default(), BTreeSet::new());
            while seen.len() < 2 * usize::try_from(CONCURRENCY).unwrap() {
                let mut read = self.second.read().await.unwrap();
                let until = feed::position(read.conn()).await.unwrap().revision;
                let limit = ReadLimit::entries(7);
                let range = RevisionRange { since, until };
                let changed = changed_data::read(read.conn(), range, None, limit).await.unwrap();
                assert!(
                    changed.changes.iter().all(|data| seen.insert(data.entry.change)),
                    "a change was returned twice"
                );
                since = changed.until;
            }
        };
        let mut newest = self.first.committed_revision();
        let before = *newest.borrow_and_update();
        timeout(Duration::from_mins(1), async { tokio::join!(write, follow) }).await.expect("a change was missed");
        assert!(*newest.borrow_and_update() > before, "the receiver of committed revisions was not notified");
    }

    async fn audit_after_revision_is_refused(&self) {
        let work = async |mut tx: WriteTransaction| {
            tx.revision().await?;
            tx.audit(&Initiator::SYSTEM, &NewAuditEntry::for_deployment(AuditAction::AuditBegan)).await?;
            tx.commit(()).await
        };
        assert!(matches!(self.first.write("late", work).await.unwrap_err(), StoreError::AuditAfterRevision));
    }

    async fn cancelled_transactions_release_their_connections(&self) {
        for _ in 0..CONCURRENCY {
            let never_ending = async |mut tx: WriteTransaction| {
                insert_text(&mut tx, "cancelled").await?;
                pending::<()>().await;
                tx.commit(()).await
            };
            let never_ending_read = async { drop((self.first.read().await.unwrap(), pending::<()>().await)) };
            let both = async { tokio::join!(self.first.write("never_ending", never_ending), never_ending_read) };
            timeout(Duration::from_millis(20), both).await.unwrap_err();
        }
        timeout(CONNECTION_WAIT, self.commit_text("after")).await.expect("no connection is free").unwrap();
        let mut read = timeout(CONNECTION_WAIT, self.first.read()).await.expect("no connection is free").unwrap();
        assert_eq!(read_texts(&mut read).await, ["after"]);
        drop(read);
        self.delete_all_texts().await;
    }

    async fn texts_and_numbers_are_stored_unchanged(&self) {
        let values = ["", " ", "'; --", "\"$1\\", "a\nb\tc", "Zoë 🦀", "e\u{301}", "\u{10ffff}"];
        for text in values {
            self.commit_text(text).await.unwrap();
        }
        // The database engines order texts differently, so we compare sets. Only ids have the same order everywhere.
        let mut read = self.second.read().await.unwrap();
        assert_eq!(BTreeSet::from_iter(read_texts(&mut read).await), values.map(str::to_owned).into());
        drop(read);
        self.delete_all_texts().await;
        let mut ids = [9, 10, 31, 32, 33, u128::MAX, 0, 1 << 127].map(|bits| AgentId::from_bits(bits).to_string());
        for id in &ids {
            self.commit_text(id).await.unwrap();
        }
        let mut read = self.second.read().await.unwrap();
        ids.sort();
        assert_eq!(read_texts(&mut read).await, ids);
        for number in [i64::MIN, -1, 0, 1, i64::MAX] {
            let sql = "SELECT CAST($1 AS BIGINT) AS number";
            let found = read.conn().read_row(sql, params![number], |row| row::get::<i64>(row, "number")).await;
            assert_eq!(found.unwrap(), number);
        }
        drop(read);
        self.delete_all_texts().await;
    }
}
