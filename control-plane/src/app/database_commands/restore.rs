//! `restore`: replaces the embedded database with a backup, and revokes all credentials that may have changed since the backup.
//!
//! The copy of the backup is completed before it replaces the database. Invariant: the path of the database always refers to
//! the old database or to a complete new database.

use super::{AppError, CommandReport};
use crate::{
    app::{
        database::{
            REPLACED_INFIX, SQLITE_SUFFIXES, check_existing_deployment, location, lock_exclusive, master_keys,
            open_for_command, refuse_missing_master_keys,
        },
        install_crypto_provider,
    },
    config::{Config, DatabaseLocation},
    files,
    keyring::MasterKeyRing,
    operations::{RestoreReport, ensure_audit_started, invalidate_credentials_after_restore},
    store::{
        OpenMode,
        deployment::{self, Quarantine, QuarantineReason},
        postgres::{self, DatabaseUsage},
        sqlite_file,
    },
};
use countersign_process::{Clock, SystemClock, format_rfc3339};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Replaces the embedded database with a backup and revokes its credentials. Without a backup file, revokes the credentials in
/// the configured database, which the operator has restored without this command (for example with `pg_restore`).
pub async fn restore(config: &Config, file: Option<&Path>, replace: bool) -> Result<CommandReport, AppError> {
    install_crypto_provider();
    let location = location(config)?;
    let master = master_keys(config)?;
    match (&location, file) {
        (DatabaseLocation::Postgres(_), Some(_)) => AppError::refuse(
            "PostgreSQL is restored by its own tools: stop all control planes, `pg_restore` into an empty database, then \
             run `restore` without a file",
        ),
        (DatabaseLocation::Postgres(url), None) => {
            let DatabaseUsage { control_planes, has_deployment } = postgres::database_usage(url).await?;
            if control_planes > 0 {
                return AppError::refuse(
                    "control planes are connected to this database: stop all of them first, and start them afterwards",
                );
            }
            if !has_deployment {
                return AppError::refuse("this database is empty: restore a dump into it first (pg_restore)");
            }
            let result = revoke_credentials(config, location, &master).await?;
            Ok(report(["The database of database.url: restore completed.".to_owned()], &result))
        }
        (DatabaseLocation::File(database), Some(file)) => {
            let _lock = lock_exclusive(database)?;
            restore_file(config, &master, file, database, replace).await
        }
        (DatabaseLocation::File(database), None) => {
            let _lock = lock_exclusive(database)?;
            if !database.exists() {
                return AppError::refuse(format!(
                    "{}: there is no database; pass the backup to restore",
                    database.display()
                ));
            }
            let info = sqlite_file::validate(database).await.map_err(AppError::invalid_database(database))?;
            check_existing_deployment(config, &master, &info.deployment)?;
            let result = revoke_credentials(config, location.clone(), &master).await?;
            Ok(report([format!("{}: restore completed.", database.display())], &result))
        }
    }
}

async fn restore_file(
    config: &Config,
    master: &MasterKeyRing,
    file: &Path,
    database: &Path,
    replace: bool,
) -> Result<CommandReport, AppError> {
    // Refuse a pipe before it is opened: opening a pipe would block until another process writes to the pipe.
    if !fs::metadata(file).map_err(AppError::file(file))?.is_file() {
        return AppError::refuse(format!(
            "{}: not a regular file: pass a backup file written by `backup`",
            file.display()
        ));
    }
    let exists = database.exists();
    if exists && fs::canonicalize(file).ok() == fs::canonicalize(database).ok() {
        return AppError::refuse(format!(
            "{}: is the configured database; run `restore` without a file to complete its restore",
            file.display()
        ));
    }
    if exists && !replace {
        return AppError::refuse(format!(
            "{}: a database exists; --replace replaces it with the backup and keeps the old one under another name",
            database.display()
        ));
    }
    let copy = StagedCopy::create(file, database)?;
    let info = sqlite_file::validate(&copy.path).await.map_err(AppError::invalid_database(file))?;
    check_existing_deployment(config, master, &info.deployment)?;
    let result = revoke_credentials(config, DatabaseLocation::File(copy.path.clone()), master).await?;
    sqlite_file::merge_wal(&copy.path).await.map_err(AppError::invalid_database(&copy.path))?;
    files::chown_to_directory_owner(&copy.path)
        .and_then(|()| files::sync(&copy.path))
        .map_err(AppError::file(&copy.path))?;
    let old = if exists { Some(link_old_database(database).await?) } else { None };
    for companion in SQLITE_SUFFIXES.map(|suffix| files::with_suffix(database, suffix)) {
        files::remove_if_exists(&companion).map_err(AppError::file(&companion))?;
    }
    copy.replace(database)?;
    let restored_line = format!("{}: restored from {}.", database.display(), file.display());
    let old_line = old.map(|old| format!("The old database is kept as {}.", old.display()));
    Ok(report([restored_line].into_iter().chain(old_line), &result))
}

/// Gives the old database a second name. We do not rename it, because its path would have no database for a moment.
async fn link_old_database(database: &Path) -> Result<PathBuf, AppError> {
    let timestamp: String = format_rfc3339(SystemClock.now()).chars().filter(char::is_ascii_alphanumeric).collect();
    let old = files::with_suffix(database, &format!("{REPLACED_INFIX}{timestamp}"));
    match sqlite_file::merge_wal(database).await {
        Ok(()) => {}
        Err(error) if error.is_busy() => {
            return AppError::refuse(format!(
                "{}: another process has opened this database: stop that process first",
                database.display()
            ));
        }
        // The old database is damaged, which may be the reason for the restore. So we keep SQLite's companion files, such as the
        // write-ahead log, as they are.
        Err(_) => {
            for suffix in SQLITE_SUFFIXES {
                let (from, to) = (files::with_suffix(database, suffix), files::with_suffix(&old, suffix));
                match fs::copy(&from, to) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(AppError::file(&from)(error));
                    }
                    _ => {}
                }
            }
        }
    }
    files::link_or_copy(database, &old).map_err(AppError::file(&old))?;
    Ok(old)
}

/// A copy of the backup beside the database. Dropping a `StagedCopy` before [`Self::replace`] deletes the copy.
struct StagedCopy {
    path: PathBuf,
}

impl StagedCopy {
    fn create(file: &Path, database: &Path) -> Result<Self, AppError> {
        files::create_private_directory(files::parent_directory(database)).map_err(AppError::file(database))?;
        let copy = Self { path: files::with_suffix(database, ".restoring") };
        copy.delete().map_err(AppError::file(&copy.path))?;
        files::copy_to_private_file(file, &copy.path).map_err(AppError::file(file))?;
        // If the backup was copied by hand, some of its changes may be only in the write-ahead log beside it, so copy the log, too.
        let (from, to) = (files::with_suffix(file, "-wal"), files::with_suffix(&copy.path, "-wal"));
        if from.is_file() {
            files::copy_to_private_file(&from, &to).map_err(AppError::file(&from))?;
        }
        Ok(copy)
    }

    fn replace(self, database: &Path) -> Result<(), AppError> {
        let replaced = fs::rename(&self.path, database).and_then(|()| files::sync(database));
        replaced.map_err(AppError::file(database))
    }

    fn delete(&self) -> io::Result<()> {
        files::remove_if_exists(&self.path)?;
        SQLITE_SUFFIXES.iter().try_for_each(|suffix| files::remove_if_exists(&files::with_suffix(&self.path, suffix)))
    }
}

impl Drop for StagedCopy {
    fn drop(&mut self) {
        let _ignored: io::Result<()> = self.delete();
    }
}

/// Migrates the schema, and revokes all credentials whose state may have changed since the backup.
async fn revoke_credentials(
    config: &Config,
    location: DatabaseLocation,
    master: &MasterKeyRing,
) -> Result<RestoreReport, AppError> {
    let store = open_for_command(location, config, OpenMode::Serve, master).await?;
    let stored = deployment::find(store.read().await?.conn()).await?;
    let stored = stored.ok_or(AppError::DatabaseRejected("this database is empty: restore a backup into it first"))?;
    check_existing_deployment(config, master, &stored)?;
    refuse_missing_master_keys(&store, master).await?;
    ensure_audit_started(&store).await?;
    let result = invalidate_credentials_after_restore(&store, config.max_staleness()).await?;
    store.close().await;
    Ok(result)
}

fn report(first_lines: impl IntoIterator<Item = String>, result: &RestoreReport) -> CommandReport {
    let RestoreReport { at, previous_quarantine, newest_change_at } = result;
    let (at, newest) = (format_rfc3339(*at), format_rfc3339(*newest_change_at));
    let mut report = CommandReport::default();
    first_lines.into_iter().for_each(|line| report.line(line));
    report.line(format!(
        "Access tokens, sessions and challenges issued before {at} are invalid: all agents log in again."
    ));
    report.line(match previous_quarantine {
        Some(Quarantine { reason: QuarantineReason::Backup, at }) => {
            format!("The backup was made at {}. Its newest change was at {newest}.", format_rfc3339(*at))
        }
        Some(Quarantine { reason: QuarantineReason::Migrating | QuarantineReason::Migrated, at: _ }) => {
            format!(
                "The newest change in the database was at {newest}. Make sure that no control plane serves the database to which \
                 it was migrated."
            )
        }
        None => format!("The newest change in the database was at {newest}."),
    });
    report.line(
        "Later changes are lost. Before clients can reach the control plane, repeat the changes that withdrew access: roles that were \
         revoked, agents that were suspended, revoked or deleted, services that were deleted, and API keys, signing keys and \
         webhook secrets that were revoked or replaced are valid again. A service that an agent left may assign roles to it \
         again, and a transferred service belongs to its earlier owner.",
    );
    report
}
