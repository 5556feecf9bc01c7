//! `migrate --to`: copies the embedded database to PostgreSQL.

use super::{AppError, CommandReport};
use crate::{
    app::{
        database::{check_existing_deployment, location, lock_exclusive, master_keys, warn_if_server_unauthenticated},
        install_crypto_provider,
    },
    config::{Config, DatabaseLocation},
    store::{
        deployment::QuarantineReason,
        schema,
        sqlite_file::{self, SqliteFileInfo},
        transfer::{self, TransferResult, TransferredTable},
    },
};
use countersign_process::{Clock, SystemClock};
use secrecy::{ExposeSecret, SecretString};
use std::path::Path;

/// Copies the embedded database to an empty PostgreSQL database, compares both databases, and quarantines the embedded one (marks
/// it so that no server serves it). No server may run during the migration. Credentials stay valid, because no state is lost.
pub async fn migrate_to_postgres(config: &Config, target: &SecretString) -> Result<CommandReport, AppError> {
    install_crypto_provider();
    let DatabaseLocation::File(database) = location(config)? else {
        return AppError::refuse(
            "--to migrates an embedded database, but database.url is PostgreSQL: move that with pg_dump and pg_restore",
        );
    };
    if !["postgres://", "postgresql://"].iter().any(|scheme| target.expose_secret().starts_with(scheme)) {
        return AppError::refuse("--to: must be postgres://<user>@<host>/<database>");
    }
    let target_location = DatabaseLocation::Postgres(target.clone());
    if let Some(problem) = target_location.problem() {
        return AppError::refuse(format!("--to: {problem}"));
    }
    warn_if_server_unauthenticated(&target_location);
    let master = master_keys(config)?;
    if !database.exists() {
        return AppError::refuse(format!("{}: there is no database to migrate", database.display()));
    }
    let _lock = lock_exclusive(&database)?;
    let info = sqlite_file::validate(&database).await.map_err(AppError::invalid_database(&database))?;
    check_existing_deployment(config, &master, &info.deployment)?;
    check_preconditions(&info)?;
    let result = transfer::transfer(&database, info.quarantine, target, SystemClock.now()).await?;
    Ok(report(config, &database, &result))
}

fn check_preconditions(info: &SqliteFileInfo) -> Result<(), AppError> {
    let SqliteFileInfo { schema, deployment: _, previous_master_keys: _, quarantine } = info;
    if *schema != schema::latest_version() {
        return AppError::refuse(format!(
            "the schema version of the embedded database is {schema}, and this program needs {}: run `migrate` without --to first",
            schema::latest_version()
        ));
    }
    match quarantine.map(|mark| mark.reason) {
        // An interrupted migration is resumed.
        None | Some(QuarantineReason::Migrating) => Ok(()),
        Some(QuarantineReason::Migrated) => {
            AppError::refuse("this database was already migrated: to use it again, run `restore` without a file first")
        }
        Some(QuarantineReason::Backup) => {
            AppError::refuse("this database is a backup: run `restore` without a file first")
        }
    }
}

fn report(config: &Config, database: &Path, result: &TransferResult) -> CommandReport {
    let TransferResult { tables, already_copied, resumed } = result;
    let mut report = CommandReport::default();
    let width = tables.iter().map(|table| table.table.len()).max().unwrap_or(0);
    report.line(format!("{:width$}  {:>9}  sum of SHA-256", "table", "rows"));
    for TransferredTable { table, rows, digest } in tables {
        report.line(format!("{table:width$}  {rows:>9}  {digest}"));
    }
    let rows: u64 = tables.iter().map(|table| table.rows).sum();
    let outcome = if *already_copied { "had already been copied" } else { "were copied" };
    report.line(format!("{} tables with {rows} rows {outcome}, and are equal in both databases.", tables.len()));
    if *resumed && !already_copied {
        report.line(
            "A previous migration was interrupted. If it had another target, delete the other target: it may be a complete \
             copy, too.",
        );
    }
    report.line(format!(
        "{}: unchanged, except for a mark that prevents a control plane from serving it.",
        database.display()
    ));
    let and_master_key = match config.secrets.master_key.expose_secret() {
        "" => format!(", and secrets.master_key to the content of {}", config.data_dir.join("master.key").display()),
        _ => String::new(),
    };
    report.line(format!("Next: set database.url to the new database{and_master_key}; then start the control plane."));
    report
}
