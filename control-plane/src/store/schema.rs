//! The schema: the steps that this process knows, and how far a database has come.

use super::{StoreError, pools};
use secrecy::{ExposeSecret, SecretString};
use sqlx::{
    AnyConnection, Connection, Executor,
    migrate::{Migrate, Migrator},
};
use std::path::Path;

/// The schema, step by step. One that is newer than this process is fine: in a rolling upgrade a replica of before may
/// start again, and no step takes away what the version before it needs.
pub(super) const SCHEMA: Migrator = Migrator { ignore_missing: true, ..sqlx::migrate!("./migrations") };

/// Where the steps that were done are kept.
pub(super) const STEPS: &str = "_sqlx_migrations";

/// From which step to which a database was brought; 0 is before the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Brought {
    /// How far it had come.
    pub from: i64,
    /// How far it has come.
    pub to: i64,
}

/// The newest step that this process knows.
pub fn newest() -> i64 {
    SCHEMA.iter().map(|step| step.version).max().unwrap_or(0)
}

/// Brings the SQLite database in a file up to date; it is made if there is none.
pub async fn bring_sqlite(file: &Path) -> Result<Brought, StoreError> {
    bring(connect(&format!("sqlite://{}?mode=rwc", file.display())).await?).await
}

/// Brings the PostgreSQL database at a URL up to date.
pub async fn bring_postgres(url: &SecretString) -> Result<Brought, StoreError> {
    let mut conn = connect(url.expose_secret()).await?;
    if pools::is_standby(&mut conn).await? {
        return Err(StoreError::Standby);
    }
    // That something is there already is no news.
    conn.execute("SET client_min_messages = warning").await?;
    bring(conn).await
}

async fn connect(url: &str) -> Result<AnyConnection, StoreError> {
    sqlx::any::install_default_drivers();
    pools::connect(url).await
}

async fn bring(mut conn: AnyConnection) -> Result<Brought, StoreError> {
    // Also around the question, which makes the table that it asks: ten may begin at once.
    conn.lock().await?;
    conn.ensure_migrations_table(STEPS).await?;
    let from = reached(&mut conn).await?;
    SCHEMA.run(&mut conn).await?;
    let to = reached(&mut conn).await?;
    conn.unlock().await?;
    conn.close().await?;
    Ok(Brought { from, to })
}

async fn reached(conn: &mut AnyConnection) -> Result<i64, StoreError> {
    Ok(conn.list_applied_migrations(STEPS).await?.iter().map(|step| step.version).max().unwrap_or(0))
}
