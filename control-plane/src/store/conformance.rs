//! What the store must do on every engine: asked of two stores on one database, as two replicas have it.

use super::{OpenMode, Read, Store, StoreError, StoreFailure, StoreOptions, Write, deployment::Deployment, feed, row};
use crate::{
    domain::{
        audit::{AuditAction, Initiator, NewAuditEntry, chain::AuditKeys},
        change::{Change, RevisionRange},
    },
    metrics::{Labels, Metrics},
};
use countersign_identity::{AgentId, Revision};
use countersign_process::SystemClock;
use countersign_tests::Postgres;
use futures_util::future::join_all;
use std::{collections::BTreeSet, future::pending, sync::Arc, time::Duration};
use tokio::time::timeout;

/// How many ask at once: more than there are connections.
const CROWD: u128 = 30;

/// In which nobody waits for a connection that another one kept.
const SOON: Duration = Duration::from_secs(10);

/// Two stores on one database.
struct Stage {
    one: Store,
    other: Store,
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("countersign.db");
    conforms(async |equipment| Store::open_sqlite(OpenMode::Serve, &file, equipment).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgresql() {
    let server = Postgres::start().await;
    let url = server.database().await.into();
    conforms(async |equipment| Store::open_postgres(OpenMode::Serve, &url, 8, equipment).await).await;
}

async fn conforms(open: impl AsyncFn(StoreOptions) -> Result<Store, StoreError>) {
    let (one, other) = (open(equipment("ours")).await.unwrap(), open(equipment("ours")).await.unwrap());
    let stage = Stage { one, other };
    stage.a_deployment_is_made_once().await;
    stage.what_is_committed_is_there_and_what_is_dropped_is_not().await;
    stage.a_read_sees_one_moment_and_changes_nothing().await;
    stage.after_a_refused_statement_nothing_is_kept().await;
    stage.a_place_is_taken_once().await;
    stage.revisions_come_in_the_order_of_commits().await;
    stage.an_act_comes_before_the_revision().await;
    stage.what_is_given_up_keeps_no_connection().await;
    stage.texts_and_numbers_come_back_as_they_were().await;
    let refused = open(equipment("another")).await.err().unwrap();
    assert!(matches!(refused, StoreError::WrongMasterKey), "{refused}");
}

fn equipment(master_key_fingerprint: &str) -> StoreOptions {
    let metrics = Metrics::new(&Labels { codes: &[], limits: &[], failures: &[] }).unwrap();
    StoreOptions {
        clock: Arc::new(SystemClock),
        audit_keys: Arc::new(AuditKeys::derive(&[7; 32])),
        metrics: metrics.store,
        master_key_fingerprint: master_key_fingerprint.to_owned(),
    }
}

/// Puts a text into a table that holds nothing else.
async fn mark(tx: &mut Write, text: &str) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO trust_marks (agent_id) VALUES ($1)").bind(text.to_owned()).execute(tx.conn()).await?;
    Ok(())
}

/// What is in that table, in order.
async fn marks(read: &mut Read) -> Vec<String> {
    let rows = sqlx::query("SELECT agent_id FROM trust_marks ORDER BY agent_id").fetch_all(read.conn()).await.unwrap();
    rows.iter().map(|found| row::get(found, "agent_id").unwrap()).collect()
}

impl Stage {
    async fn both_read(&self) -> [Read; 2] {
        [self.one.read().await.unwrap(), self.other.read().await.unwrap()]
    }

    /// Empties that table.
    async fn forget(&self) {
        let work = async |mut tx: Write| {
            sqlx::query("DELETE FROM trust_marks").execute(tx.conn()).await.map_err(StoreError::from)?;
            tx.commit(()).await
        };
        self.one.write("forget", work).await.unwrap();
    }

    async fn keep(&self, text: &str) -> Result<(), StoreError> {
        let work = async |mut tx: Write| {
            mark(&mut tx, text).await?;
            tx.commit(()).await
        };
        self.one.write("keep", work).await
    }

    async fn a_deployment_is_made_once(&self) {
        let wanted = |name: &str| Deployment { master_key_fingerprint: name.to_owned(), dev_since: None };
        let (ours, theirs) = (wanted("ours"), wanted("theirs"));
        assert_eq!(self.one.find_or_create_deployment(&ours).await.unwrap(), ours);
        assert_eq!(self.other.find_or_create_deployment(&theirs).await.unwrap(), ours);
    }

    async fn what_is_committed_is_there_and_what_is_dropped_is_not(&self) {
        self.keep("kept").await.unwrap();
        let given_up = async |mut tx: Write| {
            mark(&mut tx, "dropped").await?;
            Err(StoreError::AuditAfterRevision)
        };
        self.one.write::<(), _, _, _>("dropped", given_up).await.unwrap_err();
        for mut read in self.both_read().await {
            assert_eq!(marks(&mut read).await, ["kept"]);
        }
        self.forget().await;
    }

    async fn a_read_sees_one_moment_and_changes_nothing(&self) {
        let mut read = self.other.read().await.unwrap();
        assert!(marks(&mut read).await.is_empty());
        self.keep("later").await.unwrap();
        assert!(marks(&mut read).await.is_empty());
        let written = sqlx::query("INSERT INTO trust_marks (agent_id) VALUES ('x')").execute(read.conn()).await;
        assert!(StoreError::from(written.unwrap_err()).is_unwritable());
        let mut next = self.other.read().await.unwrap();
        assert_eq!(marks(&mut next).await, ["later"]);
        self.forget().await;
    }

    /// Also if somebody goes on as if nothing had happened.
    async fn after_a_refused_statement_nothing_is_kept(&self) {
        let careless = async |mut tx: Write| {
            mark(&mut tx, "one").await?;
            mark(&mut tx, "one").await.unwrap_err();
            mark(&mut tx, "two").await.unwrap_err();
            tx.commit(()).await
        };
        self.one.write("careless", careless).await.unwrap_err();
        let mut read = self.one.read().await.unwrap();
        assert!(marks(&mut read).await.is_empty());
    }

    async fn a_place_is_taken_once(&self) {
        let take = async |store: &Store| {
            let work = async |mut tx: Write| {
                mark(&mut tx, "place").await?;
                tx.commit(()).await
            };
            store.write("take", work).await
        };
        let taken = join_all((0..CROWD).flat_map(|_| [take(&self.one), take(&self.other)])).await;
        assert_eq!(taken.iter().filter(|taken| taken.is_ok()).count(), 1);
        for error in taken.into_iter().filter_map(Result::err) {
            assert!(!error.is_unwritable() && !error.is_transient(), "{error}");
        }
        self.forget().await;
    }

    /// Whoever has read up to a revision has missed nothing, for ever.
    async fn revisions_come_in_the_order_of_commits(&self) {
        let agents = |store: u128| (0..CROWD).map(move |number| AgentId::from_bits(store * CROWD + number));
        let change = async |store: &Store, agent: AgentId| {
            let work = async |mut tx: Write| {
                tx.record_change(Change::Status(agent));
                tx.commit(()).await
            };
            store.write("change", work).await.unwrap();
        };
        let all = async {
            let (one, other) = (agents(0), agents(1));
            let of_one = join_all(one.map(|agent| change(&self.one, agent)));
            let of_other = join_all(other.map(|agent| change(&self.other, agent)));
            tokio::join!(of_one, of_other)
        };
        let follow = async {
            let (mut since, mut seen) = (Revision::default(), BTreeSet::new());
            while seen.len() < 2 * usize::try_from(CROWD).unwrap() {
                let mut read = self.other.read().await.unwrap();
                let until = feed::position(read.conn()).await.unwrap().revision;
                let found = feed::changes(read.conn(), RevisionRange { since, until }).await.unwrap();
                assert!(found.iter().all(|found| seen.insert(found.value)), "nothing comes twice");
                since = until;
            }
        };
        let mut newest = self.one.committed_revision();
        let before = *newest.borrow_and_update();
        timeout(Duration::from_mins(1), async { tokio::join!(all, follow) }).await.expect("a change was missed");
        assert!(*newest.borrow_and_update() > before, "whoever waits for one is woken");
    }

    async fn an_act_comes_before_the_revision(&self) {
        let work = async |mut tx: Write| {
            tx.revision().await?;
            tx.audit(&Initiator::SYSTEM, &NewAuditEntry::for_deployment(AuditAction::AuditBegan)).await?;
            tx.commit(()).await
        };
        assert!(matches!(self.one.write("late", work).await.unwrap_err(), StoreError::AuditAfterRevision));
    }

    async fn what_is_given_up_keeps_no_connection(&self) {
        for _ in 0..CROWD {
            let endless = async |mut tx: Write| {
                mark(&mut tx, "given up").await?;
                pending::<()>().await;
                tx.commit(()).await
            };
            let reading = async { drop((self.one.read().await.unwrap(), pending::<()>().await)) };
            let both = async { tokio::join!(self.one.write("endless", endless), reading) };
            timeout(Duration::from_millis(20), both).await.unwrap_err();
        }
        timeout(SOON, self.keep("after")).await.expect("a connection is free").unwrap();
        let mut read = timeout(SOON, self.one.read()).await.expect("a connection is free").unwrap();
        assert_eq!(marks(&mut read).await, ["after"]);
        drop(read);
        self.forget().await;
    }

    async fn texts_and_numbers_come_back_as_they_were(&self) {
        let texts = ["", " ", "'; --", "\"$1\\", "a\nb\tc", "Zoë 🦀", "e\u{301}", "\u{10ffff}"];
        for text in texts {
            self.keep(text).await.unwrap();
        }
        // In which order is each engine's affair, but for ids, which are made for it.
        let mut read = self.other.read().await.unwrap();
        assert_eq!(BTreeSet::from_iter(marks(&mut read).await), texts.map(str::to_owned).into());
        drop(read);
        self.forget().await;
        let mut ids = [9, 10, 31, 32, 33, u128::MAX, 0, 1 << 127].map(|bits| AgentId::from_bits(bits).to_string());
        for id in &ids {
            self.keep(id).await.unwrap();
        }
        let mut read = self.other.read().await.unwrap();
        ids.sort();
        assert_eq!(marks(&mut read).await, ids);
        for number in [i64::MIN, -1, 0, 1, i64::MAX] {
            let sql = "SELECT CAST($1 AS BIGINT) AS number";
            let found = sqlx::query(sql).bind(number).fetch_one(read.conn()).await.unwrap();
            assert_eq!(row::get::<i64>(&found, "number").unwrap(), number);
        }
    }
}
