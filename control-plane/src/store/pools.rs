//! Connection pools: their sizes, and the settings of each new connection.

use super::{OpenMode, StoreError, conn::TRANSACTION_TIMEOUT, statements::statements};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor, Row, any::AnyPoolOptions};
use std::time::Duration;

statements! { SQLITE_STATEMENTS:
    SET_BUSY_TIMEOUT = "PRAGMA busy_timeout = 3000";
    SET_JOURNAL_MODE = "PRAGMA journal_mode = WAL";
    SET_SYNCHRONOUS = "PRAGMA synchronous = FULL";
    SET_FOREIGN_KEYS = "PRAGMA foreign_keys = ON";
    SET_QUERY_ONLY = "PRAGMA query_only = ON";
}

statements! { POSTGRES_STATEMENTS:
    IS_STANDBY = "SELECT CASE WHEN pg_is_in_recovery() THEN 1 ELSE 0 END AS standby";
    /// How long a migration waits for the lock of a table.
    SET_LOCK_TIMEOUT = "SET lock_timeout = '1s'";
    /// Suppresses notices about existing objects.
    SET_CLIENT_MIN_MESSAGES = "SET client_min_messages = warning";
}

/// Connections for reading, beside the single writer of SQLite.
const SQLITE_READERS: u32 = 8;

/// How long the first connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Idle time within a transaction after which PostgreSQL ends the connection: the process that opened it may be gone.
const IDLE_IN_TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);

/// `application_name` of all connections to PostgreSQL.
pub const APPLICATION_NAME: &str = "countersign-control-plane";

/// The connection for writing. SQLite has one writer at a time; waiting in the queue of the pool is fairer and cheaper than
/// polling the lock of the file.
pub fn sqlite_writer() -> AnyPoolOptions {
    sqlite_pool(1).after_connect(|connection, _| {
        Box::pin(async move {
            connection.execute(SET_BUSY_TIMEOUT).await?;
            connection.execute(SET_JOURNAL_MODE).await?;
            connection.execute(SET_SYNCHRONOUS).await?;
            connection.execute(SET_FOREIGN_KEYS).await.map(drop)
        })
    })
}

/// The connections for reading. They do not set the journal mode, which the file stores: that is a write, and fails on a
/// restored file that is opened read-only.
pub fn sqlite_readers() -> AnyPoolOptions {
    sqlite_pool(SQLITE_READERS).after_connect(|connection, _| {
        Box::pin(async move {
            connection.execute(SET_BUSY_TIMEOUT).await?;
            connection.execute(SET_QUERY_ONLY).await.map(drop)
        })
    })
}

fn sqlite_pool(connections: u32) -> AnyPoolOptions {
    AnyPoolOptions::new().max_connections(connections).acquire_timeout(TRANSACTION_TIMEOUT)
}

/// Connections to a PostgreSQL primary.
pub fn postgres_pool(connections: u32, mode: OpenMode) -> AnyPoolOptions {
    let options = AnyPoolOptions::new().max_connections(connections).acquire_timeout(TRANSACTION_TIMEOUT);
    options.after_connect(move |connection, _| {
        Box::pin(async move {
            // A server becomes a standby only by a restart, so one check per connection is enough.
            if is_standby(connection).await? {
                return Err(sqlx::Error::Configuration("the server is a standby".into()));
            }
            configure(connection, &pool_settings(mode)).await
        })
    })
}

/// The settings of pooled connections. [`OpenMode::Inspect`] has no limits, because an export takes as long as its reader.
fn pool_settings(mode: OpenMode) -> Vec<String> {
    let (statement, idle) = (TRANSACTION_TIMEOUT.as_millis(), IDLE_IN_TRANSACTION_TIMEOUT.as_millis());
    let mut settings = vec![set_application_name()];
    if mode == OpenMode::Serve {
        settings.push(format!("SET statement_timeout = {statement}"));
        settings.push(format!("SET idle_in_transaction_session_timeout = {idle}"));
    }
    settings
}

/// The settings of the connection that runs migrations: no limit for statements, but a short wait for locks.
fn migration_settings() -> Vec<String> {
    vec![SET_LOCK_TIMEOUT.to_owned(), SET_CLIENT_MIN_MESSAGES.to_owned(), set_application_name()]
}

fn set_application_name() -> String {
    format!("SET application_name = '{APPLICATION_NAME}'")
}

/// All settings, for the conformance tests.
#[cfg(test)]
pub(super) fn composed_statements() -> Vec<String> {
    [pool_settings(OpenMode::Serve), pool_settings(OpenMode::Inspect), migration_settings()].concat()
}

/// The single connection that runs migrations on SQLite.
pub fn sqlite_migration_pool() -> AnyPoolOptions {
    AnyPoolOptions::new().max_connections(1)
}

/// The single connection that runs migrations on PostgreSQL.
pub fn postgres_migration_pool() -> AnyPoolOptions {
    let options = AnyPoolOptions::new().max_connections(1);
    options.after_connect(|connection, _| Box::pin(async move { configure(connection, &migration_settings()).await }))
}

async fn configure(connection: &mut AnyConnection, settings: &[String]) -> Result<(), sqlx::Error> {
    connection.execute(AssertSqlSafe(settings.join("; "))).await.map(drop)
}

/// Opens the first connection. Unlike a pool, it does not retry until the timeout, and it returns the cause of the error.
pub async fn connect(url: &str) -> Result<AnyConnection, StoreError> {
    sqlx::any::install_default_drivers();
    let timed_out = |_| Err(sqlx::Error::PoolTimedOut);
    let result = tokio::time::timeout(CONNECT_TIMEOUT, AnyConnection::connect(url)).await;
    result.unwrap_or_else(timed_out).map_err(StoreError::Unreachable)
}

/// Opens the first connection to PostgreSQL; refuses a standby.
pub async fn connect_to_primary(url: &str) -> Result<AnyConnection, StoreError> {
    let mut connection = connect(url).await?;
    if is_standby(&mut connection).await? { Err(StoreError::Standby) } else { Ok(connection) }
}

/// Whether the server is a standby, whose data may be stale.
async fn is_standby(connection: &mut AnyConnection) -> Result<bool, sqlx::Error> {
    Ok(connection.fetch_one(IS_STANDBY).await?.try_get::<i32, _>("standby")? == 1)
}
