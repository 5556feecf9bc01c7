//! Connections: how many, and what each is told at its beginning.

use super::{Purpose, StoreError, conn::PATIENCE};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor, Row, any::AnyPoolOptions};
use std::time::Duration;

/// Readers beside the one writer of SQLite.
pub const READERS: u32 = 8;

/// How long a server may take to answer at the start.
const START: Duration = Duration::from_secs(10);

/// After what silence in a transaction the server may give up a process of ours that is gone.
const SILENCE: Duration = Duration::from_secs(10);

/// For how long a step of the schema waits for a table; and that something is there already is no news.
const GIVES_WAY: &str = "SET lock_timeout = '1s'; SET client_min_messages = warning; ";

/// What our connections to PostgreSQL are called there.
pub const APPLICATION: &str = "countersign-control-plane";

/// 1 if the server follows another one. A server becomes a standby by a restart only, so to ask once is enough.
const IS_STANDBY: &str = "SELECT CASE WHEN pg_is_in_recovery() THEN 1 ELSE 0 END AS standby";

/// Connections to SQLite.
pub fn sqlite_pool(connections: u32, pragma: &'static str) -> AnyPoolOptions {
    AnyPoolOptions::new().max_connections(connections).acquire_timeout(PATIENCE).after_connect(move |connection, _| {
        Box::pin(async move {
            connection.execute("PRAGMA busy_timeout = 3000").await?;
            connection.execute("PRAGMA journal_mode = WAL").await?;
            connection.execute("PRAGMA synchronous = FULL").await?;
            connection.execute(pragma).await.map(drop)
        })
    })
}

/// Connections to PostgreSQL, each to a primary.
pub fn postgres_pool(connections: u32, purpose: Purpose) -> AnyPoolOptions {
    AnyPoolOptions::new().max_connections(connections).acquire_timeout(PATIENCE).after_connect(move |connection, _| {
        Box::pin(async move {
            if is_standby(connection).await? {
                return Err(sqlx::Error::Configuration("the server is a standby".into()));
            }
            greet(connection, &bounds(purpose)).await
        })
    })
}

/// What a connection to PostgreSQL is told: how long a statement may take, which whoever waits for it knows too. Whoever only
/// looks may take as long as whoever reads what they print.
fn bounds(purpose: Purpose) -> String {
    let (statement, silence) = (PATIENCE.as_millis(), SILENCE.as_millis());
    match purpose {
        Purpose::Serve => {
            format!("SET statement_timeout = {statement}; SET idle_in_transaction_session_timeout = {silence}; ")
        }
        Purpose::Inspect => String::new(),
    }
}

/// The one connection on which the schema is brought up to date: it may take its time.
pub fn alone() -> AnyPoolOptions {
    AnyPoolOptions::new().max_connections(1)
}

/// The same at PostgreSQL: it may take its time, but not stand in anybody's way.
pub fn alone_at_postgres() -> AnyPoolOptions {
    alone().after_connect(|connection, _| Box::pin(greet(connection, GIVES_WAY)))
}

/// Tells a connection this, and who we are.
async fn greet(connection: &mut AnyConnection, greeting: &str) -> Result<(), sqlx::Error> {
    let greeting = format!("{greeting}SET application_name = '{APPLICATION}'");
    connection.execute(AssertSqlSafe(greeting)).await.map(drop)
}

/// The first connection: a pool would try again until its time is over, and not say what was wrong.
pub async fn connect(url: &str) -> Result<AnyConnection, StoreError> {
    sqlx::any::install_default_drivers();
    let too_late = |_| Err(sqlx::Error::PoolTimedOut);
    let connected = tokio::time::timeout(START, AnyConnection::connect(url)).await;
    connected.unwrap_or_else(too_late).map_err(StoreError::Unreachable)
}

/// The same at PostgreSQL, to a server that takes writes.
pub async fn connect_to_primary(url: &str) -> Result<AnyConnection, StoreError> {
    let mut first = connect(url).await?;
    if is_standby(&mut first).await? { Err(StoreError::Standby) } else { Ok(first) }
}

/// Whether the server only follows another one: what it says may be old.
async fn is_standby(connection: &mut AnyConnection) -> Result<bool, sqlx::Error> {
    Ok(connection.fetch_one(IS_STANDBY).await?.try_get::<i32, _>("standby")? == 1)
}
