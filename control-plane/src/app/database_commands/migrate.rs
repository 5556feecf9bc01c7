//! `migrate`: the schema brought up to date, before any new replica starts.

use super::{MovingError, Report};
use crate::{
    app::{
        AppError,
        database::{hold, place},
        install_crypto, make_folder,
    },
    config::{Config, DatabasePlace},
    files,
    store::schema::{AppliedMigrations, migrate_postgres, migrate_sqlite},
};

/// Brings the schema of the database up to date, beside replicas of before that serve, and says from which step to which.
pub async fn migrate(config: &Config) -> Result<Report, MovingError> {
    install_crypto();
    let AppliedMigrations { from, to } = match place(config)? {
        DatabasePlace::Postgres(url) => migrate_postgres(&url).await?,
        DatabasePlace::File(path) => {
            make_folder(config)?;
            let _lock = hold(config)?;
            files::make_private_file(&path).map_err(AppError::folder(&path))?;
            migrate_sqlite(&path).await?
        }
    };
    let mut report = Report::default();
    report.line(if from == to {
        format!("The schema was at step {to} already: nothing to do.")
    } else {
        format!("The schema was brought from step {from} to step {to}.")
    });
    Ok(report)
}
