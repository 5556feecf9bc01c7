//! The commands `migrate`, `backup` and `restore`, which work on a whole database. Each command returns a report for the operator.

mod backup;
mod migrate_to_postgres;
mod restore;

pub use backup::{backup, backup_to_directory};
pub use migrate_to_postgres::migrate_to_postgres;
pub use restore::restore;

use super::{
    AppError, create_data_dir,
    database::{location, lock_shared},
    install_crypto_provider,
};
use crate::{
    config::{Config, DatabaseLocation},
    files,
    store::schema::{AppliedMigrations, migrate_postgres, migrate_sqlite},
};
use std::{fmt, io::Write};

/// The lines that a command prints when it has succeeded.
#[derive(Debug, Default)]
#[must_use]
pub struct CommandReport {
    lines: Vec<String>,
}

impl CommandReport {
    pub(super) fn line(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    /// Writes the report. If writing fails, the error contains the report, because the operator must not conclude that nothing was
    /// done.
    pub fn write_to(self, mut out: impl Write) -> Result<(), AppError> {
        let result = writeln!(out, "{self}").and_then(|()| out.flush());
        result.map_err(|error| AppError::ReportNotWritten { report: self, error })
    }
}

impl fmt::Display for CommandReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

/// Migrates the schema of the configured database. Control planes of the previous release may keep serving the database.
pub async fn migrate(config: &Config) -> Result<CommandReport, AppError> {
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
