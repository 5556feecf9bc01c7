//! Connection pools: sizes, and settings of each new connection.

use super::{
    OpenMode, StoreError,
    conn::{TRANSACTION_TIMEOUT, timeout_error},
    statements::statements,
};
use sqlx::{
    AnyConnection, AssertSqlSafe, Connection, Executor, Row,
    any::{AnyConnectOptions, AnyPoolOptions},
};
use std::time::Duration;
use tokio::time::timeout;

statements! { SQLITE_STATEMENTS:
    SET_BUSY_TIMEOUT = "PRAGMA busy_timeout = 3000";
    SET_JOURNAL_MODE = "PRAGMA journal_mode = WAL";
    SET_SYNCHRONOUS = "PRAGMA synchronous = FULL";
    /// Copies the write-ahead log into the file after every 125 pages (500 KiB), an eighth of SQLite's default. Requests wait for
    /// the commit that copies the log, so it must not copy much.
    SET_WAL_AUTOCHECKPOINT = "PRAGMA wal_autocheckpoint = 125";
    /// Keeps 32 MiB of pages in memory. This is enough for the inner pages of the indexes of many gigabytes. The pages stay valid,
    /// because only this connection writes. With SQLite's default of 2 MB, each write would read them from the file again.
    SET_CACHE_SIZE = "PRAGMA cache_size = -32768";
    /// Keeps in memory what a rollback to a savepoint restores. With SQLite's default, a large transaction would write this data to
    /// a temporary file, and a container may have no folder for such files.
    SET_TEMP_STORE = "PRAGMA temp_store = MEMORY";
    SET_FOREIGN_KEYS = "PRAGMA foreign_keys = ON";
    /// Overwrites deleted content with zeros, so that the file does not contain what the deletion of an agent erases.
    SET_SECURE_DELETE = "PRAGMA secure_delete = ON";
    SET_QUERY_ONLY = "PRAGMA query_only = ON";
}

statements! { POSTGRES_STATEMENTS:
    IS_STANDBY = "SELECT CASE WHEN pg_is_in_recovery() THEN 1 ELSE 0 END AS standby";
    /// Maximum time that a migration waits for the lock of a table.
    SET_LOCK_TIMEOUT = "SET lock_timeout = '1s'";
    /// Makes PostgreSQL plan each statement once per connection, without the values of the parameters. Otherwise, it would plan
    /// some statements at each execution. This takes longer than the execution, and reads the start of indexes, where the entries
    /// of deleted rows remain until the next vacuum.
    ///
    /// Without values, PostgreSQL cannot estimate numbers of rows. A plan from a time when a table was small would read the whole
    /// table at each request, however large it is now. So only indexes and nested loops are allowed, which all statements can use.
    /// PostgreSQL thinks that such plans are expensive and would compile them, so we also switch that off.
    SET_PLANNER = "SELECT set_config('plan_cache_mode', 'force_generic_plan', false), set_config('enable_seqscan', 'off', false), \
         set_config('enable_hashjoin', 'off', false), set_config('enable_mergejoin', 'off', false), set_config('jit', 'off', false)";
    /// Suppresses PostgreSQL's notices that a table or an index already exists.
    SET_CLIENT_MIN_MESSAGES = "SET client_min_messages = warning";
}

/// Number of connections for reading from SQLite, besides the single connection for writing.
const SQLITE_READERS: u32 = 8;

/// Timeout of opening a connection outside of a pool, and of closing it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Idle time within a transaction after which PostgreSQL closes the connection, because the client may have died.
const IDLE_IN_TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);

/// `application_name` of all connections to PostgreSQL.
pub const APPLICATION_NAME: &str = "countersign-control-plane";

/// The pool with the only connection for writing to SQLite, which allows one writer at a time. Waiting in the queue of the pool is
/// fairer and cheaper than polling the lock of the file.
pub fn sqlite_writer_pool() -> AnyPoolOptions {
    const SETTINGS: &[&str] = &[
        SET_BUSY_TIMEOUT,
        SET_JOURNAL_MODE,
        SET_SYNCHRONOUS,
        SET_WAL_AUTOCHECKPOINT,
        SET_SECURE_DELETE,
        SET_CACHE_SIZE,
        SET_TEMP_STORE,
        SET_FOREIGN_KEYS,
    ];
    sqlite_pool(1, SETTINGS)
}

/// The pool of connections for reading from SQLite. They do not set the journal mode: this would write to the file, and fail if a
/// restored file is read-only.
pub fn sqlite_reader_pool() -> AnyPoolOptions {
    sqlite_pool(SQLITE_READERS, &[SET_BUSY_TIMEOUT, SET_QUERY_ONLY])
}

fn sqlite_pool(connections: u32, settings: &'static [&'static str]) -> AnyPoolOptions {
    pool(connections).after_connect(move |connection, _| {
        Box::pin(async move {
            for setting in settings {
                connection.execute(*setting).await?;
            }
            Ok(())
        })
    })
}

/// A pool that keeps its connections until they fail; [`ConnectionPool`] tests them. It has no idle timeout and no maximum
/// lifetime, so that sqlx starts no maintenance task. That task can loop for ever if somebody returns a connection while it reads
/// the number of idle ones (sqlx issue 3645, fixed after 0.9.0). It then occupies a worker thread, and the process does not exit.
///
/// [`ConnectionPool`]: super::connection_pool::ConnectionPool
#[expect(clippy::disallowed_methods, reason = "the only place that creates a pool")]
fn pool(connections: u32) -> AnyPoolOptions {
    let options = AnyPoolOptions::new().max_connections(connections).acquire_timeout(TRANSACTION_TIMEOUT);
    options.idle_timeout(None).max_lifetime(None).test_before_acquire(false)
}

/// A pool of connections to a PostgreSQL primary.
pub fn postgres_pool(connections: u32, mode: OpenMode) -> AnyPoolOptions {
    pool(connections).after_connect(move |connection, _| {
        Box::pin(async move {
            // A PostgreSQL server becomes a standby only by a restart, which ends connections. So one check per connection is enough.
            if is_standby(connection).await? {
                return Err(sqlx::Error::Configuration("the server is a standby".into()));
            }
            configure(connection, &pool_settings(mode)).await
        })
    })
}

/// The settings of pooled connections. Connections in the mode [`OpenMode::Inspect`] have no time limits: an export takes as long
/// as whoever reads it needs.
fn pool_settings(mode: OpenMode) -> Vec<String> {
    let (statement, idle) = (TRANSACTION_TIMEOUT.as_millis(), IDLE_IN_TRANSACTION_TIMEOUT.as_millis());
    let mut settings = vec![set_application_name(), SET_PLANNER.to_owned()];
    if mode == OpenMode::Serve {
        settings.push(format!("SET statement_timeout = {statement}"));
        settings.push(format!("SET idle_in_transaction_session_timeout = {idle}"));
    }
    settings
}

/// The settings of the connection that runs migrations. The statements of migrations have no time limit, but wait only briefly
/// for locks.
fn migration_settings() -> Vec<String> {
    vec![SET_LOCK_TIMEOUT.to_owned(), SET_CLIENT_MIN_MESSAGES.to_owned(), set_application_name()]
}

fn set_application_name() -> String {
    format!("SET application_name = '{APPLICATION_NAME}'")
}

/// All settings of connections to PostgreSQL, for the conformance tests.
#[cfg(test)]
pub(super) fn dynamic_statements() -> Vec<String> {
    [pool_settings(OpenMode::Serve), pool_settings(OpenMode::Inspect), migration_settings()].concat()
}

/// The pool with the only connection that runs migrations on SQLite.
pub fn sqlite_migration_pool() -> AnyPoolOptions {
    pool(1)
}

/// The pool with the only connection that runs migrations on PostgreSQL.
pub fn postgres_migration_pool() -> AnyPoolOptions {
    pool(1).after_connect(|connection, _| Box::pin(async move { configure(connection, &migration_settings()).await }))
}

async fn configure(connection: &mut AnyConnection, settings: &[String]) -> Result<(), sqlx::Error> {
    connection.execute(AssertSqlSafe(settings.join("; "))).await.map(drop)
}

/// How the pools connect. The cache of a connection must have room for all statements. If a statement leaves the cache, sqlx
/// prepares it and PostgreSQL plans it again.
pub fn connect_options(url: &str, is_postgres: bool) -> Result<AnyConnectOptions, StoreError> {
    const STATEMENT_CACHE: &str = "statement-cache-capacity";
    let mut options: AnyConnectOptions = url.parse().map_err(StoreError::Unreachable)?;
    let url = &mut options.database_url;
    if is_postgres && url.query_pairs().all(|(name, _)| name != STATEMENT_CACHE) {
        url.query_pairs_mut().append_pair(STATEMENT_CACHE, "1000");
    }
    Ok(options)
}

/// Opens the first connection to a database. Unlike a pool, it does not retry until a timeout, but returns the error.
pub async fn connect(url: &str) -> Result<AnyConnection, StoreError> {
    sqlx::any::install_default_drivers();
    connect_with(&url.parse().map_err(StoreError::Unreachable)?).await
}

/// Like [`connect`], with the options of a pool.
async fn connect_with(options: &AnyConnectOptions) -> Result<AnyConnection, StoreError> {
    let result = timeout(CONNECT_TIMEOUT, AnyConnection::connect_with(options)).await;
    result.unwrap_or_else(|_| Err(timeout_error())).map_err(StoreError::Unreachable)
}

/// Closes a connection that belongs to no pool.
pub async fn close(connection: AnyConnection) -> Result<(), StoreError> {
    let result = timeout(CONNECT_TIMEOUT, connection.close()).await;
    result.unwrap_or_else(|_| Err(timeout_error())).map_err(StoreError::Unreachable)
}

/// Opens the first connection to PostgreSQL. Refuses a standby.
pub async fn connect_to_primary(url: &str) -> Result<AnyConnection, StoreError> {
    let mut connection = connect(url).await?;
    if is_standby(&mut connection).await? { Err(StoreError::Standby) } else { Ok(connection) }
}

/// Opens a connection to PostgreSQL as [`postgres_pool`] does, with its checks and settings.
async fn connect_as_pool(options: &AnyConnectOptions) -> Result<AnyConnection, StoreError> {
    let mut connection = connect_with(options).await?;
    let prepare = async {
        if is_standby(&mut connection).await? {
            return Err(StoreError::Standby);
        }
        configure(&mut connection, &pool_settings(OpenMode::Serve)).await.map_err(StoreError::Unreachable)
    };
    timeout(CONNECT_TIMEOUT, prepare).await.unwrap_or_else(|_| Err(StoreError::Unreachable(timeout_error())))?;
    Ok(connection)
}

/// Opens and closes a connection outside of the pools.
pub async fn try_connection(options: &AnyConnectOptions, is_postgres: bool) -> Result<(), StoreError> {
    close(if is_postgres { connect_as_pool(options).await? } else { connect_with(options).await? }).await
}

/// Whether the server is a standby, whose data may be stale.
async fn is_standby(connection: &mut AnyConnection) -> Result<bool, sqlx::Error> {
    Ok(connection.fetch_one(IS_STANDBY).await?.try_get::<i32, _>("standby")? == 1)
}
