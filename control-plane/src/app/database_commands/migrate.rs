//! `migrate`: runs the schema migrations, before a new version is started.

use super::{CommandReport, DatabaseCommandError};
use crate::{
    app::{
        AppError, create_data_dir,
        database::{location, lock_shared},
        install_crypto_provider,
    },
    config::{Config, DatabaseLocation},
    files,
    store::schema::{AppliedMigrations, migrate_postgres, migrate_sqlite},
};

/// Migrates the schema of the configured database. Replicas of the release before may keep serving the database.
pub async fn migrate(config: &Config) -> Result<CommandReport, DatabaseCommandError> {
    install_crypto_provider();
    let AppliedMigrations { from, to } = match location(config)? {
        DatabaseLocation::Postgres(url) => migrate_postgres(&url).await?,
        DatabaseLocation::File(path) => {
            create_data_dir(config)?;
            let _lock = lock_shared(config)?;
            files::create_private_file(&path).map_err(AppError::file(&path))?;
            migrate_sqlite(&path).await?
        }
    };
    let mut report = CommandReport::default();
    report.line(if from == to {
        format!("The schema version was already {to}: nothing to do.")
    } else {
        format!("The schema was migrated from version {from} to version {to}.")
    });
    Ok(report)
}
