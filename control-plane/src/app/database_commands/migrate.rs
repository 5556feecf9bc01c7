//! `migrate`: runs the schema migrations, before a new version is started.

use super::{CommandReport, DatabaseCommandError};
use crate::{
    app::{
        AppError,
        database::{location, lock_shared},
        install_crypto, make_folder,
    },
    config::{Config, DatabasePlace},
    files,
    store::schema::{AppliedMigrations, migrate_postgres, migrate_sqlite},
};

/// Migrates the schema of the configured database. Replicas of the previous version may keep serving it.
pub async fn migrate(config: &Config) -> Result<CommandReport, DatabaseCommandError> {
    install_crypto();
    let AppliedMigrations { from, to } = match location(config)? {
        DatabasePlace::Postgres(url) => migrate_postgres(&url).await?,
        DatabasePlace::File(path) => {
            make_folder(config)?;
            let _lock = lock_shared(config)?;
            files::make_private_file(&path).map_err(AppError::folder(&path))?;
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
