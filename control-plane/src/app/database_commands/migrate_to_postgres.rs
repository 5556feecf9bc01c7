//! `migrate --to`: from the embedded database to PostgreSQL.

use super::{MovingError, Report};
use crate::{
    app::{
        database::{belongs, hold_alone, master_key, place, warn_of_strangers},
        install_crypto,
    },
    config::{Config, DatabasePlace},
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

/// Copies everything in the embedded database to an empty one of PostgreSQL, with nobody serving it, and says what it compared.
/// Nothing is settled: it is the same state in another place.
pub async fn move_to(config: &Config, target: &SecretString) -> Result<Report, MovingError> {
    install_crypto();
    let DatabasePlace::File(database) = place(config)? else {
        return MovingError::refused(
            "--to moves an embedded database, and database.url is one of PostgreSQL, which moves by pg_dump and pg_restore",
        );
    };
    if !["postgres://", "postgresql://"].iter().any(|scheme| target.expose_secret().starts_with(scheme)) {
        return MovingError::refused("--to: must be postgres://<user>@<host>/<database>");
    }
    let there = DatabasePlace::Postgres(target.clone());
    if let Some(problem) = there.problem() {
        return MovingError::refused(problem.replacen("database.url", "--to", 1));
    }
    warn_of_strangers(&there);
    let master = master_key(config)?;
    if !database.exists() {
        return MovingError::refused(format!("{}: there is no database to move", database.display()));
    }
    let _lock = hold_alone(&database)?;
    let found = sqlite_file::validate(&database).await.map_err(MovingError::flaw(&database))?;
    belongs(config, &master, &found.deployment)?;
    refuse_unready(&found)?;
    let arrived = transfer::transfer((&database, found.quarantine), target, SystemClock.now()).await?;
    Ok(tell(config, &database, &arrived))
}

fn refuse_unready(found: &SqliteFileInfo) -> Result<(), MovingError> {
    let SqliteFileInfo { schema, deployment: _, quarantine } = found;
    if *schema != schema::latest_version() {
        return MovingError::refused(format!(
            "the schema of the embedded database is at step {schema}, and this program brings {}: run `migrate` without --to \
             first",
            schema::latest_version()
        ));
    }
    match quarantine.map(|mark| mark.reason) {
        // One that was interrupted goes on.
        None | Some(QuarantineReason::Migrating) => Ok(()),
        Some(QuarantineReason::Migrated) => MovingError::refused(
            "everything in this database moved before: whoever would use it again runs `restore` without a file first",
        ),
        Some(QuarantineReason::Backup) => {
            MovingError::refused("this database is a backup: run `restore` without a file first, which settles it")
        }
    }
}

fn tell(config: &Config, database: &Path, arrived: &TransferResult) -> Report {
    let TransferResult { tables: moved, already_copied, resumed } = arrived;
    let mut report = Report::default();
    let width = moved.iter().map(|moved| moved.table.len()).max().unwrap_or(0);
    report.line(format!("{:width$}  {:>9}  sum of SHA-256", "table", "rows"));
    for TransferredTable { table, rows, digest } in moved {
        report.line(format!("{table:width$}  {rows:>9}  {digest}"));
    }
    let rows: u64 = moved.iter().map(|moved| moved.rows).sum();
    let done = if *already_copied { "were there already" } else { "were copied" };
    report.line(format!("{} tables with {rows} rows {done}, and are the same there as here.", moved.len()));
    if *resumed && !already_copied {
        report.line(
            "A move of before was interrupted. If it went to another database than this one, take that one away: everything \
             may be there too.",
        );
    }
    report.line(format!(
        "{}: stays as it is, but for a mark, so that no control plane serves it by mistake.",
        database.display()
    ));
    let master = match config.secrets.master_key.expose_secret() {
        "" => format!(", and secrets.master_key to what is in {}", config.data_dir.join("master.key").display()),
        _ => String::new(),
    };
    report.line(format!("Next: set database.url to where it is now{master}; then start."));
    report
}
