//! The schema: the steps that this process knows, and how far a database has come.

use super::{StoreError, pools};
use secrecy::{ExposeSecret, SecretString};
use sqlx::{
    AnyPool, Connection as _,
    any::AnyPoolOptions,
    migrate::{Migrate, Migrator},
};
use std::{path::Path, time::Duration};

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

/// After a step that had to give way.
const PAUSE: Duration = Duration::from_secs(2);

/// Brings the SQLite database in a file up to date; it is made if there is none.
pub async fn bring_sqlite(file: &Path) -> Result<Brought, StoreError> {
    bring(&format!("sqlite://{}?mode=rwc", file.display()), pools::alone()).await
}

/// Brings the PostgreSQL database at a URL up to date.
pub async fn bring_postgres(url: &SecretString) -> Result<Brought, StoreError> {
    let url = url.expose_secret();
    pools::connect_to_primary(url).await?.close().await?;
    bring(url, pools::alone_at_postgres()).await
}

/// Brings a database up to date. Whatever holds a table, as a dump does to its end, would make everybody who comes after a
/// waiting step wait too: so a step waits for a moment only, gives way, and comes again.
pub(super) async fn bring(url: &str, alone: AnyPoolOptions) -> Result<Brought, StoreError> {
    sqlx::any::install_default_drivers();
    let alone = alone.connect(url).await.map_err(StoreError::Unreachable)?;
    loop {
        match climb(&alone).await {
            Err(error) if error.is_in_the_way() => {
                tracing::warn!(
                    "the schema waits to be brought up to date: another replica is at it, or somebody holds a table (a dump?); trying again"
                );
                tokio::time::sleep(PAUSE).await;
            }
            done => {
                alone.close().await;
                return done;
            }
        }
    }
}

/// All steps that are missing, under a lock that others who do the same wait for: ten may begin at once.
async fn climb(alone: &AnyPool) -> Result<Brought, StoreError> {
    // It is the only connection, which goes on holding the lock.
    alone.acquire().await?.lock().await?;
    alone.acquire().await?.ensure_migrations_table(STEPS).await?;
    let from = reached(alone).await?;
    SCHEMA.run(alone).await?;
    let to = reached(alone).await?;
    alone.acquire().await?.unlock().await?;
    Ok(Brought { from, to })
}

async fn reached(alone: &AnyPool) -> Result<i64, StoreError> {
    let steps = alone.acquire().await?.list_applied_migrations(STEPS).await?;
    Ok(steps.iter().map(|step| step.version).max().unwrap_or(0))
}
