//! Connections: how many, and what each is told at its beginning.

use sqlx::{Executor, any::AnyPoolOptions};
use std::time::Duration;

/// Readers beside the one writer of SQLite.
pub const READERS: u32 = 8;

/// Connections to PostgreSQL, half of them for writing.
pub const CONNECTIONS: u32 = 16;

/// How long a request may wait for a connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections to SQLite.
pub fn sqlite_pool(connections: u32, pragma: &'static str) -> AnyPoolOptions {
    AnyPoolOptions::new().max_connections(connections).acquire_timeout(ACQUIRE_TIMEOUT).after_connect(
        move |connection, _| {
            Box::pin(async move {
                connection.execute("PRAGMA busy_timeout = 5000").await?;
                connection.execute("PRAGMA journal_mode = WAL").await?;
                connection.execute("PRAGMA synchronous = FULL").await?;
                connection.execute(pragma).await.map(drop)
            })
        },
    )
}

/// Connections to PostgreSQL.
pub fn postgres_pool(connections: u32) -> AnyPoolOptions {
    AnyPoolOptions::new().max_connections(connections).acquire_timeout(ACQUIRE_TIMEOUT).after_connect(
        |connection, _| {
            Box::pin(async move {
                connection.execute("SET statement_timeout = '5s'").await?;
                connection.execute("SET idle_in_transaction_session_timeout = '10s'").await.map(drop)
            })
        },
    )
}
