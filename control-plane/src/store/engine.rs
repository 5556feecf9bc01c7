//! The store, which opens the database and runs transactions. This file chooses what differs between SQLite and PostgreSQL.

use super::{
    commit_signals::CommitSignals,
    conn::{Conn, INSPECT_TIMEOUT, TRANSACTION_TIMEOUT, deadline_after, timeout_error},
    connection_pool::{ConnectionFailures, ConnectionPool},
    deployment,
    failure::{StoreError, StoreFailure},
    feed,
    group_commit::{GroupCommit, PendingCommit, Sharing},
    pools, postgres, schema,
    statements::statements,
    transaction::{CommittedTransaction, ReadTransaction, WriteTransaction},
    transaction_timer::TransactionTimer,
};
use crate::{
    domain::audit::keys::AuditKeyRing,
    metrics::{PoolStatus, StoreMetrics, TransactionKind, TransactionOutcome},
};
use countersign_identity::{Revision, Timestamp};
use countersign_process::Clock;
use secrecy::{ExposeSecret, SecretString};
use sqlx::any::AnyPoolOptions;
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, oneshot, watch},
    time::{Instant, timeout, timeout_at},
};

statements! { SQLITE_STATEMENTS:
    BEGIN_READ_SQLITE = "BEGIN";
}

statements! { POSTGRES_STATEMENTS:
    /// Each statement of a write transaction on PostgreSQL sees all commits before the statement. A transaction whose writes
    /// depend on its reads must first lock a row.
    BEGIN_WRITE_POSTGRES = "BEGIN ISOLATION LEVEL READ COMMITTED";
    BEGIN_READ_POSTGRES = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
}

/// Maximum number of reruns of a transaction after conflicts with other transactions.
const MAX_RERUNS: u32 = 5;

/// Maximum time that [`Store::close`] waits for open transactions.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy)]
enum Engine {
    Sqlite,
    Postgres,
}

/// The purpose for which a database is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// To serve the database. Creates a missing database and runs the migrations.
    Serve,
    /// To read the database, possibly while a server uses it.
    Inspect,
}

pub struct StoreOptions {
    pub clock: Arc<dyn Clock>,
    /// MAC keys of the audit log. [`OpenMode::Serve`] fails if none of them belongs to the current master key of the database.
    pub audit_keys: Arc<AuditKeyRing>,
    pub metrics: StoreMetrics,
}

/// A database with its connection pools.
#[derive(Clone)]
pub struct Store {
    engine: Engine,
    writer: ConnectionPool,
    reader: ConnectionPool,
    clock: Arc<dyn Clock>,
    audit_keys: Arc<AuditKeyRing>,
    /// The queue of write transactions on SQLite.
    pub(super) group_commit: GroupCommit,
    signals: CommitSignals,
    metrics: StoreMetrics,
    transaction_timeout: Duration,
}

impl Store {
    /// Opens the SQLite database in a file.
    pub async fn open_sqlite(mode: OpenMode, file: &Path, options: StoreOptions) -> Result<Self, StoreError> {
        let access = if mode == OpenMode::Serve { "rwc" } else { "ro" };
        let url = format!("sqlite://{}?mode={access}", file.display());
        let (writer, reader) = (pools::sqlite_writer_pool(), pools::sqlite_reader_pool());
        Self::open(Engine::Sqlite, mode, &url, writer, reader, options).await
    }

    /// Opens the PostgreSQL database at a URL, with at most `connections` connections, half of them for writing.
    pub async fn open_postgres(
        mode: OpenMode,
        url: &SecretString,
        connections: u32,
        options: StoreOptions,
    ) -> Result<Self, StoreError> {
        // One connection stays free for `try_connection`.
        let pooled = connections.saturating_sub(1);
        let writers = pooled / 2;
        let (writer, reader) = (pools::postgres_pool(writers, mode), pools::postgres_pool(pooled - writers, mode));
        Self::open(Engine::Postgres, mode, url.expose_secret(), writer, reader, options).await
    }

    async fn open(
        engine: Engine,
        mode: OpenMode,
        url: &str,
        writer: AnyPoolOptions,
        reader: AnyPoolOptions,
        options: StoreOptions,
    ) -> Result<Self, StoreError> {
        let mut connection = match engine {
            Engine::Sqlite => pools::connect(url).await?,
            Engine::Postgres => pools::connect_to_primary(url).await?,
        };
        let fingerprint = deployment::find_master_key_fingerprint(&mut connection).await;
        pools::close(connection).await?;
        let StoreOptions { clock, audit_keys, metrics } = options;
        if mode == OpenMode::Serve {
            if let Some(fingerprint) = fingerprint.filter(|fingerprint| audit_keys.find(fingerprint).is_none()) {
                let configured = audit_keys.configured().to_owned();
                return Err(StoreError::WrongMasterKey { needed: fingerprint, configured });
            }
            let pool = match engine {
                Engine::Sqlite => pools::sqlite_migration_pool(),
                Engine::Postgres => pools::postgres_migration_pool(),
            };
            schema::migrate(url, pool).await?;
        }
        let connect_options = pools::connect_options(url, matches!(engine, Engine::Postgres))?;
        let reader = ConnectionPool::new(reader.connect_with(connect_options.clone()).await?);
        let writer = match mode {
            OpenMode::Serve => ConnectionPool::new(writer.connect_with(connect_options).await?),
            // A store in the mode `Inspect` does not write. A read-only file could not even be opened for writing.
            OpenMode::Inspect => reader.clone(),
        };
        let store = Self {
            engine,
            group_commit: GroupCommit::new(writer.clone()),
            writer,
            reader,
            clock,
            audit_keys,
            signals: CommitSignals {
                committed_revision: watch::Sender::new(Revision::default()),
                events_committed: Arc::default(),
                writable: Arc::new(AtomicBool::new(true)),
            },
            metrics,
            transaction_timeout: if mode == OpenMode::Serve { TRANSACTION_TIMEOUT } else { INSPECT_TIMEOUT },
        };
        store.metrics.initialize(store.engine_name());
        let mut read = store.read().await?;
        if let Some(position) = feed::find_feed_position(read.conn()).await? {
            store.signals.committed_revision.send_replace(position.revision);
        }
        Ok(store)
    }

    /// Begins a read transaction. All reads in the transaction see the same snapshot.
    pub async fn read(&self) -> Result<ReadTransaction, StoreError> {
        self.read_for(self.transaction_timeout).await
    }

    /// Runs one statement as [`Self::read_one_for`] does, with the timeout of a transaction.
    pub async fn read_one<T>(
        &self,
        statement: impl AsyncFnOnce(&mut Conn) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.read_one_for(self.transaction_timeout, statement).await
    }

    /// Runs one statement without BEGIN and COMMIT, which would triple the messages: a single statement sees one snapshot anyway.
    pub async fn read_one_for<T>(
        &self,
        timeout: Duration,
        statement: impl AsyncFnOnce(&mut Conn) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut timer = self.start_timer(TransactionKind::Read);
        let mut conn = Conn::acquire(&self.reader, deadline_after(timeout), &timer).await?;
        timer.set_outcome(TransactionOutcome::Read);
        statement(&mut conn).await
    }

    /// Begins a read transaction with a timeout of its own. On PostgreSQL, each statement still has the usual timeout.
    pub async fn read_for(&self, timeout: Duration) -> Result<ReadTransaction, StoreError> {
        let mut timer = self.start_timer(TransactionKind::Read);
        let begin = match self.engine {
            Engine::Sqlite => BEGIN_READ_SQLITE,
            Engine::Postgres => BEGIN_READ_POSTGRES,
        };
        let conn = Conn::begin(&self.reader, begin, deadline_after(timeout), &timer).await?;
        timer.set_outcome(TransactionOutcome::Read);
        Ok(ReadTransaction::new(conn, timer))
    }

    /// Runs `work` in a write transaction, and runs it again after a conflict with another transaction. So `work` must not generate
    /// ids or secrets: a rerun would generate others. The transaction timeout applies to all runs of `work` together. The log names
    /// the transaction by `name`.
    pub async fn write<T, E, W, F>(&self, name: &'static str, work: W) -> Result<T, E>
    where
        W: Fn(WriteTransaction) -> F,
        F: Future<Output = Result<CommittedTransaction<T>, E>>,
        E: From<StoreError> + StoreFailure,
    {
        self.write_sharing(Sharing::Group, name, work).await
    }

    /// The deadline of a transaction that begins now.
    pub fn deadline(&self) -> Instant {
        deadline_after(self.transaction_timeout)
    }

    /// Runs `work` as [`Self::write`] does, but shares its commit with no other transaction. For background jobs: they may take
    /// long, and requests must not wait for them.
    pub async fn write_alone<T, E, W, F>(&self, name: &'static str, work: W) -> Result<T, E>
    where
        W: Fn(WriteTransaction) -> F,
        F: Future<Output = Result<CommittedTransaction<T>, E>>,
        E: From<StoreError> + StoreFailure,
    {
        self.write_sharing(Sharing::Alone, name, work).await
    }

    async fn write_sharing<T, E, W, F>(&self, sharing: Sharing, name: &'static str, work: W) -> Result<T, E>
    where
        W: Fn(WriteTransaction) -> F,
        F: Future<Output = Result<CommittedTransaction<T>, E>>,
        E: From<StoreError> + StoreFailure,
    {
        let (deadline, mut reruns_left, mut sharing) = (self.deadline(), MAX_RERUNS, sharing);
        loop {
            let mut timer = self.start_timer(TransactionKind::Write);
            let (tx, pending) = self.begin_write(sharing, deadline, &timer).await?;
            timer.set_outcome(TransactionOutcome::RolledBack);
            let mut result = work(tx).await;
            // `work` may have failed because of rows that earlier transactions of its group have written. If the commit of these
            // rows fails, we return its error instead. If the database accepts no writes, we need not wait for the commit.
            if let (Err(error), Some(pending)) = (&result, pending)
                && !error.is_unwritable()
                && let Err(error) = pending.wait(deadline).await
            {
                result = Err(error.into());
            }
            match result {
                Ok(committed) => {
                    timer.set_outcome(TransactionOutcome::Committed);
                    return Ok(committed.value);
                }
                Err(error)
                    if sharing == Sharing::Group && error.store_error().is_some_and(StoreError::may_succeed_alone) =>
                {
                    tracing::debug!(transaction = name, "rerunning a transaction alone after its group failed");
                    timer.set_outcome(TransactionOutcome::Rerun);
                    sharing = Sharing::Alone;
                }
                Err(error) if error.is_transient() && reruns_left > 0 => {
                    tracing::debug!(transaction = name, "rerunning a transaction after a conflict");
                    timer.set_outcome(TransactionOutcome::Rerun);
                    reruns_left -= 1;
                }
                Err(error) => {
                    self.record_failed_write(&mut timer, error.is_unwritable());
                    return Err(error);
                }
            }
        }
    }

    /// Whether other transactions can write at the same time. False on SQLite: there, a transaction needs no locks, and several
    /// statements cost little more than one.
    pub const fn has_concurrent_writers(&self) -> bool {
        matches!(self.engine, Engine::Postgres)
    }

    /// Runs one statement that writes only if what it depends on is unchanged. Returns whether it has written. A conflict with
    /// another transaction counts as a change. The statement is a transaction of its own, so it emits no changes and no events.
    pub async fn write_if_unchanged(
        &self,
        statement: impl AsyncFnOnce(&mut Conn) -> Result<bool, StoreError>,
    ) -> Result<bool, StoreError> {
        let mut timer = self.start_timer(TransactionKind::Write);
        let acquired = Conn::acquire(&self.writer, self.deadline(), &timer).await;
        let mut conn = acquired.inspect_err(|_| self.signals.writable.store(false, Ordering::Relaxed))?;
        match statement(&mut conn).await {
            Ok(has_written) => {
                timer.set_outcome(if has_written { TransactionOutcome::Committed } else { TransactionOutcome::Rerun });
                self.signals.writable.fetch_or(has_written, Ordering::Relaxed);
                Ok(has_written)
            }
            Err(error) if error.is_transient() => {
                timer.set_outcome(TransactionOutcome::Rerun);
                Ok(false)
            }
            Err(error) => {
                self.record_failed_write(&mut timer, error.is_unwritable());
                Err(error)
            }
        }
    }

    fn record_failed_write(&self, timer: &mut TransactionTimer, is_unwritable: bool) {
        if is_unwritable {
            timer.set_outcome(TransactionOutcome::Unwritable);
            self.signals.writable.store(false, Ordering::Relaxed);
        }
    }

    fn start_timer(&self, kind: TransactionKind) -> TransactionTimer {
        TransactionTimer::start(self.engine_name(), kind, &self.clock, &self.metrics)
    }

    /// The numbers of connections in the pools for reading and for writing.
    pub fn pool_statuses(&self) -> Vec<PoolStatus> {
        vec![self.reader.status(TransactionKind::Read), self.writer.status(TransactionKind::Write)]
    }

    /// The failures of transactions to get a connection.
    pub fn connection_failures(&self) -> ConnectionFailures {
        let [reader, writer] = [&self.reader, &self.writer].map(ConnectionPool::failures);
        ConnectionFailures { count: reader.count + writer.count, is_failing: reader.is_failing || writer.is_failing }
    }

    /// Opens and closes a connection, and returns its error. The pools retry after some errors, and then only return a timeout.
    pub async fn try_connection(&self) -> Result<(), StoreError> {
        pools::try_connection(&self.reader.connect_options(), matches!(self.engine, Engine::Postgres)).await
    }

    /// The newest revision that this process has committed, or found when it opened the database. [`Self::wake_followers`] also
    /// wakes the receivers.
    pub fn committed_revision(&self) -> watch::Receiver<Revision> {
        self.signals.committed_revision.subscribe()
    }

    /// Wakes the receivers of [`Self::committed_revision`]. Must be called when another process has committed a change.
    pub fn wake_followers(&self) {
        self.signals.committed_revision.send_modify(|_| {});
    }

    /// Notified when this process has committed an event for a webhook target.
    pub fn events_committed(&self) -> Arc<Notify> {
        self.signals.events_committed.clone()
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Whether the last write succeeded.
    pub fn is_writable(&self) -> bool {
        self.signals.writable.load(Ordering::Relaxed)
    }

    pub fn audit_keys(&self) -> &AuditKeyRing {
        &self.audit_keys
    }

    /// Name of the engine: `sqlite` or `postgresql`.
    pub const fn engine_name(&self) -> &'static str {
        match self.engine {
            Engine::Sqlite => "sqlite",
            Engine::Postgres => "postgresql",
        }
    }

    /// Returns a text that differs between the database and a restored dump of the database; `None` on SQLite.
    pub async fn instance_fingerprint(&self, read: &mut ReadTransaction) -> Result<Option<String>, StoreError> {
        match self.engine {
            Engine::Sqlite => Ok(None),
            Engine::Postgres => Ok(Some(postgres::instance_fingerprint(read.conn()).await?)),
        }
    }

    /// Waits for the result of a transaction that another task runs. Without a result at the deadline, or if the task drops the
    /// sender, returns the error of a timeout.
    pub async fn receive<T>(result: oneshot::Receiver<T>, deadline: Instant) -> Result<T, StoreError> {
        let result = timeout_at(deadline, result).await;
        result.ok().and_then(Result::ok).ok_or_else(|| timeout_error().into())
    }

    /// Waits for all open transactions that have appended an entry to the audit log. On SQLite, a later transaction sees their
    /// entries anyway, because transactions commit in the order in which they append.
    pub async fn wait_for_audit_appends(&self) -> Result<(), StoreError> {
        let work = async |mut tx: WriteTransaction| {
            postgres::lock_audit_heads(tx.conn()).await?;
            tx.commit(()).await
        };
        match self.engine {
            Engine::Sqlite => Ok(()),
            Engine::Postgres => self.write("wait_for_audit_appends", work).await,
        }
    }

    /// Locks a background job until the transaction ends. Returns false if another replica holds the lock (only on PostgreSQL).
    pub async fn try_begin_job(&self, tx: &mut WriteTransaction, job: &str) -> Result<bool, StoreError> {
        match self.engine {
            Engine::Sqlite => Ok(true),
            Engine::Postgres => postgres::try_begin_job(tx.conn(), job).await,
        }
    }

    /// Waits for open transactions and closes all connections: first those for reading, then those for writing. SQLite copies the
    /// write-ahead log into the file when the last connection closes. It skips the copy if two connections close at the same time,
    /// because each of them finds that the other is still open.
    pub async fn close(&self) {
        let closed = async {
            self.reader.close().await;
            self.writer.close().await;
        };
        if timeout(CLOSE_TIMEOUT, closed).await.is_err() {
            tracing::warn!("the database does not respond: its connections are dropped");
        }
    }

    /// Begins a write transaction. If it shares its commit with earlier transactions, also returns their commit.
    async fn begin_write(
        &self,
        sharing: Sharing,
        deadline: Instant,
        timer: &TransactionTimer,
    ) -> Result<(WriteTransaction, Option<PendingCommit>), StoreError> {
        let begun = match self.engine {
            Engine::Sqlite => Conn::join(&self.group_commit, sharing, deadline, timer).await,
            Engine::Postgres => {
                let conn = Conn::begin(&self.writer, BEGIN_WRITE_POSTGRES, deadline, timer).await;
                conn.map(|conn| (conn, None))
            }
        };
        let (conn, pending) = begun.inspect_err(|_| self.signals.writable.store(false, Ordering::Relaxed))?;
        Ok((WriteTransaction::new(conn, self.clock.now(), self.audit_keys.clone(), self.signals.clone()), pending))
    }

    /// Makes other write transactions on SQLite fail until the result is dropped.
    #[cfg(test)]
    pub async fn lock_writes(&self) -> WriteTransaction {
        let timer = self.start_timer(TransactionKind::Write);
        self.begin_write(Sharing::Group, deadline_after(TRANSACTION_TIMEOUT), &timer).await.unwrap().0
    }
}
