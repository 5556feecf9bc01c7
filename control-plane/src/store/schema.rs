//! Schema migrations.

use super::{StoreError, pools};
use secrecy::{ExposeSecret, SecretString};
use sqlx::{
    AnyPool, Connection as _, SqlSafeStr as _,
    any::AnyPoolOptions,
    migrate::{Migrate, Migration, MigrationType, Migrator},
};
use std::{path::Path, sync::LazyLock, time::Duration};

/// All migrations in order, each with its name and text. The first one has version 1. sqlx has a macro to embed them, but with it,
/// Cargo builds sqlx and both database drivers twice.
const FILES: [(&str, &str); 1] = [("0001_schema", include_str!("../../migrations/0001_schema.sql"))];

/// The migrations of this version. We accept unknown migrations in the database: a replica may restart during a rolling upgrade to
/// a version with another migration, and no migration removes what the previous version needs.
pub(super) static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    let migration = |(version, (name, sql)): (i64, (&'static str, &'static str))| {
        let description = name.split_once('_').map_or(name, |(_, description)| description).replace('_', " ");
        Migration::new(version, description.into(), MigrationType::Simple, sql.into_sql_str(), false)
    };
    let mut migrator = Migrator::with_migrations((1..).zip(FILES).map(migration).collect());
    migrator.set_ignore_missing(true);
    migrator
});

/// The table that lists the applied migrations.
pub(super) const MIGRATIONS_TABLE: &str = "_sqlx_migrations";

/// Delay before the retry of a migration that timed out waiting for a lock.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// The schema versions before and after a run of the migrations. Version 0 is an empty database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppliedMigrations {
    pub from: i64,
    pub to: i64,
}

/// The newest schema version that this program supports.
pub fn latest_version() -> i64 {
    MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// The checksum of the first migration, which no released version changes. It shows whether a database belongs to Countersign.
pub(super) fn first_checksum() -> Vec<u8> {
    MIGRATIONS.iter().next().map(|migration| migration.checksum.to_vec()).unwrap_or_default()
}

/// Migrates the SQLite database in a file, and creates it if there is none.
pub async fn migrate_sqlite(file: &Path) -> Result<AppliedMigrations, StoreError> {
    migrate(&format!("sqlite://{}?mode=rwc", file.display()), pools::sqlite_migration_pool()).await
}

/// Migrates the PostgreSQL database at a URL.
pub async fn migrate_postgres(url: &SecretString) -> Result<AppliedMigrations, StoreError> {
    let url = url.expose_secret();
    // Refuses a standby, before we wait for a lock there.
    pools::connect_to_primary(url).await?.close().await?;
    migrate(url, pools::postgres_migration_pool()).await
}

/// Runs the missing migrations. A dump may hold the lock of a table. A migration waits for the lock only for a second, then fails,
/// and we retry. If it waited longer, all later transactions on the table would wait behind it.
pub(super) async fn migrate(url: &str, pool: AnyPoolOptions) -> Result<AppliedMigrations, StoreError> {
    sqlx::any::install_default_drivers();
    let pool = pool.connect(url).await.map_err(StoreError::Unreachable)?;
    loop {
        match run_migrations(&pool).await {
            Err(error) if error.is_lock_timeout() => {
                tracing::warn!(
                    "a migration waits for a lock: another replica is migrating, or another session (a dump?) locks a table; retrying"
                );
                tokio::time::sleep(RETRY_DELAY).await;
            }
            result => {
                pool.close().await;
                return result;
            }
        }
    }
}

/// Runs the missing migrations under a lock, since several replicas may start at once.
async fn run_migrations(pool: &AnyPool) -> Result<AppliedMigrations, StoreError> {
    // The pool has a single connection, which holds the migration lock until `unlock`.
    pool.acquire().await?.lock().await?;
    pool.acquire().await?.ensure_migrations_table(MIGRATIONS_TABLE).await?;
    let from = applied_version(pool).await?;
    MIGRATIONS.run(pool).await?;
    let to = applied_version(pool).await?;
    pool.acquire().await?.unlock().await?;
    Ok(AppliedMigrations { from, to })
}

async fn applied_version(pool: &AnyPool) -> Result<i64, StoreError> {
    let applied = pool.acquire().await?.list_applied_migrations(MIGRATIONS_TABLE).await?;
    Ok(applied.iter().map(|migration| migration.version).max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_a_migration_and_its_number_is_the_version() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
        let mut files: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        files.sort();
        let embedded: Vec<_> = FILES.iter().map(|(name, _)| format!("{name}.sql")).collect();
        assert_eq!(embedded, files);
        let numbers = FILES.iter().map(|(name, _)| name.split_once('_').unwrap().0.parse::<i64>().unwrap());
        assert_eq!(
            numbers.collect::<Vec<_>>(),
            MIGRATIONS.iter().map(|migration| migration.version).collect::<Vec<_>>()
        );
    }
}
