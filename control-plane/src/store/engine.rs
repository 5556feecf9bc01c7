//! All that differs between SQLite and PostgreSQL, and the two kinds of transaction.

use super::{
    conn::{Conn, LEISURE, PATIENCE, end_of},
    deployment::{self, Deployment},
    failure::{StoreError, StoreFailure},
    feed, pools, postgres_place, schema,
    transaction::{Committed, Read, Write},
    watch::Watch,
};
use crate::{
    domain::audit::chain::AuditKeys,
    metrics::{PoolStatus, StoreMetrics, TransactionKind, TransactionOutcome},
};
use countersign_identity::{Revision, Timestamp};
use countersign_process::Clock;
use secrecy::{ExposeSecret, SecretString};
use sqlx::{AnyPool, Connection, any::AnyPoolOptions};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};

/// How often a transaction that lost a race is tried again.
const RERUNS: u32 = 5;

/// How long the end waits for transactions that are under way.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// What the two engines do differently.
#[derive(Debug, Clone, Copy)]
enum Engine {
    Sqlite,
    Postgres,
}

impl Engine {
    /// SQLite takes the write lock at once, so that no later statement can lose a race. PostgreSQL sees what
    /// others committed in between: who reads, decides and writes locks a row first.
    const fn begin_write(self) -> &'static str {
        match self {
            Self::Sqlite => "BEGIN IMMEDIATE",
            Self::Postgres => "BEGIN ISOLATION LEVEL READ COMMITTED",
        }
    }

    /// Either way everything read in it belongs together.
    const fn begin_read(self) -> &'static str {
        match self {
            Self::Sqlite => "BEGIN",
            Self::Postgres => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        }
    }
}

/// What a database is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To serve: it is made if there is none, and its schema is brought up to date.
    Serve,
    /// To look at what is there, beside a server that runs.
    Inspect,
}

/// What a store works with.
pub struct Equipment {
    /// Says when a transaction is.
    pub clock: Arc<dyn Clock>,
    /// Bind the links of the audit chains.
    pub audit_keys: Arc<AuditKeys>,
    /// Where transactions are counted.
    pub metrics: StoreMetrics,
    /// Of the master key: a database of another one is not even brought up to date.
    pub master_key_fingerprint: String,
}

/// The database.
#[derive(Clone)]
pub struct Store {
    engine: Engine,
    writer: AnyPool,
    reader: AnyPool,
    clock: Arc<dyn Clock>,
    audit_keys: Arc<AuditKeys>,
    committed: watch::Sender<Revision>,
    told: Arc<Notify>,
    writable: Arc<AtomicBool>,
    metrics: StoreMetrics,
    /// How long a transaction may take.
    patience: Duration,
}

impl Store {
    /// Opens the SQLite database in the file.
    pub async fn open_sqlite(purpose: Purpose, file: &Path, equipment: Equipment) -> Result<Self, StoreError> {
        let mode = if purpose == Purpose::Serve { "rwc" } else { "ro" };
        let url = format!("sqlite://{}?mode={mode}", file.display());
        // One writing connection: SQLite has one writer at a time, and waiting in our queue is fairer
        // and cheaper than polling its lock.
        let (writer, reader) = (
            pools::sqlite_pool(1, "PRAGMA foreign_keys = ON"),
            pools::sqlite_pool(pools::READERS, "PRAGMA query_only = ON"),
        );
        Self::open((Engine::Sqlite, purpose), &url, (writer, reader), equipment).await
    }

    /// Opens the PostgreSQL database at the URL, with at most so many connections, half of them for writing.
    pub async fn open_postgres(
        purpose: Purpose,
        url: &SecretString,
        connections: u32,
        equipment: Equipment,
    ) -> Result<Self, StoreError> {
        let writers = connections / 2;
        let pools = (pools::postgres_pool(writers, purpose), pools::postgres_pool(connections - writers, purpose));
        Self::open((Engine::Postgres, purpose), url.expose_secret(), pools, equipment).await
    }

    async fn open(
        (engine, purpose): (Engine, Purpose),
        url: &str,
        (writer, reader): (AnyPoolOptions, AnyPoolOptions),
        equipment: Equipment,
    ) -> Result<Self, StoreError> {
        let mut first = match engine {
            Engine::Sqlite => pools::connect(url).await?,
            Engine::Postgres => pools::connect_to_primary(url).await?,
        };
        let sealed_by = deployment::sealed_by(&mut first).await;
        first.close().await?;
        let Equipment { clock, audit_keys, metrics, master_key_fingerprint } = equipment;
        if purpose == Purpose::Serve {
            if sealed_by.is_some_and(|kept| kept != master_key_fingerprint) {
                return Err(StoreError::Sealed);
            }
            let alone = match engine {
                Engine::Sqlite => pools::alone(),
                Engine::Postgres => pools::alone_at_postgres(),
            };
            schema::bring(url, alone).await?;
        }
        let (writer, reader) = (writer.connect(url).await?, reader.connect(url).await?);
        let committed = watch::Sender::new(Revision::default());
        let (writable, told) = (Arc::new(AtomicBool::new(true)), Arc::default());
        let patience = if purpose == Purpose::Serve { PATIENCE } else { LEISURE };
        let store = Self { engine, writer, reader, clock, audit_keys, committed, told, writable, metrics, patience };
        store.metrics.initialize(store.engine_name());
        let mut read = store.read().await?;
        if let Some(position) = feed::position_if_any(read.conn()).await? {
            store.committed.send_replace(position.revision);
        }
        Ok(store)
    }

    /// The deployment that the database belongs to: `wanted`, if it belongs to none yet.
    pub async fn settle_deployment(&self, wanted: &Deployment) -> Result<Deployment, StoreError> {
        let work = async |mut tx: Write| {
            if let Some(kept) = deployment::find(tx.conn()).await? {
                return tx.commit(kept).await;
            }
            let now = tx.now();
            if !deployment::create(tx.conn(), wanted, now).await? {
                // Another replica began in this moment.
                let made = deployment::find(tx.conn()).await?.ok_or(StoreError::Rows("deployment"))?;
                return tx.commit(made).await;
            }
            feed::create(tx.conn(), now).await?;
            tx.commit(wanted.clone()).await
        };
        self.write("settle_deployment", work).await
    }

    /// Begins a read transaction: everything read in it belongs together.
    pub async fn read(&self) -> Result<Read, StoreError> {
        let mut watch = self.watch(TransactionKind::Read);
        let conn = Conn::begin(&self.reader, self.engine.begin_read(), end_of(self.patience), &watch).await?;
        watch.ends(TransactionOutcome::Read);
        Ok(Read::new(conn, watch))
    }

    /// Runs a write transaction, again if another one was in the way. So `work` must make its ids and
    /// secrets before. However often it runs, it ends in time.
    pub async fn write<T, E, W, F>(&self, name: &'static str, work: W) -> Result<T, E>
    where
        W: Fn(Write) -> F,
        F: Future<Output = Result<Committed<T>, E>>,
        E: From<StoreError> + StoreFailure,
    {
        let (mut runs_left, ends) = (RERUNS, end_of(self.patience));
        loop {
            let mut watch = self.watch(TransactionKind::Write);
            let begun = self.begin(ends, &watch).await?;
            watch.ends(TransactionOutcome::RolledBack);
            match work(begun).await {
                Ok(committed) => {
                    watch.ends(TransactionOutcome::Committed);
                    return Ok(self.announce(committed));
                }
                Err(error) if error.is_transient() && runs_left > 0 => {
                    tracing::debug!(transaction = name, "run again");
                    watch.ends(TransactionOutcome::Rerun);
                    runs_left -= 1;
                }
                Err(error) => {
                    if error.is_unwritable() {
                        self.writable.store(false, Ordering::Relaxed);
                    }
                    return Err(error);
                }
            }
        }
    }

    fn watch(&self, kind: TransactionKind) -> Watch {
        Watch::begin(self.engine_name(), kind, &self.clock, &self.metrics)
    }

    /// The revision of the newest change committed by this process.
    pub fn committed(&self) -> watch::Receiver<Revision> {
        self.committed.subscribe()
    }

    /// Wakes whoever waits for a change, since another process has committed one.
    pub fn wake(&self) {
        self.committed.send_modify(|_| {});
    }

    /// Rung when this process has committed an event that somebody gets.
    pub fn told(&self) -> Arc<Notify> {
        self.told.clone()
    }

    /// What time it is, by the clock of transactions.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Whether the last write could be made.
    pub fn is_writable(&self) -> bool {
        self.writable.load(Ordering::Relaxed)
    }

    /// The keys under which acts are recorded.
    pub fn audit_keys(&self) -> &AuditKeys {
        &self.audit_keys
    }

    /// The open connections of both pools.
    pub fn connection_pools(&self) -> Vec<PoolStatus> {
        let pools = [(TransactionKind::Read, &self.reader), (TransactionKind::Write, &self.writer)];
        let status = |(kind, pool): (TransactionKind, &AnyPool)| {
            let (size, idle) = (pool.size(), u32::try_from(pool.num_idle()).unwrap_or(u32::MAX));
            let max = pool.options().get_max_connections();
            PoolStatus { kind, in_use: size.saturating_sub(idle), idle, max }
        };
        pools.map(status).into()
    }

    /// What the database is called.
    pub const fn engine_name(&self) -> &'static str {
        match self.engine {
            Engine::Sqlite => "sqlite",
            Engine::Postgres => "postgresql",
        }
    }

    /// How the server numbers the tables, which no dump keeps; `None` on SQLite.
    pub async fn table_numbers(&self, read: &mut Read) -> Result<Option<String>, StoreError> {
        match self.engine {
            Engine::Sqlite => Ok(None),
            Engine::Postgres => Ok(Some(postgres_place::table_numbers(read.conn()).await?)),
        }
    }

    /// Waits for what is under way and closes all connections.
    pub async fn close(&self) {
        let closed = async { tokio::join!(self.reader.close(), self.writer.close()) };
        if timeout(LAST_WAIT, closed).await.is_err() {
            tracing::warn!("the database does not answer: its connections are cut");
        }
    }

    async fn begin(&self, ends: Instant, watch: &Watch) -> Result<Write, StoreError> {
        let begun = Conn::begin(&self.writer, self.engine.begin_write(), ends, watch).await;
        let conn = begun.inspect_err(|_| self.writable.store(false, Ordering::Relaxed))?;
        Ok(Write::new(conn, self.clock.now(), self.audit_keys.clone(), self.writable.clone()))
    }

    fn announce<T>(&self, committed: Committed<T>) -> T {
        if let Some(revision) = committed.revision {
            self.committed.send_if_modified(|newest| revision > std::mem::replace(newest, revision.max(*newest)));
        }
        if committed.told {
            self.told.notify_one();
        }
        committed.value
    }
}
