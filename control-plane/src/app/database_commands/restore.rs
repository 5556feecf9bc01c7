//! `restore`: a backup put into the place of the embedded database, and what it must forget.
//!
//! What happened between the backup and now is not in it. So the copy is settled before it comes into its place: whoever
//! looks there finds the database of before, or one that is good.

use super::{MovingError, Report};
use crate::{
    app::{
        AppError,
        database::{BESIDE, KEPT, belongs, hold_alone, master_key, open_at, place},
        install_crypto,
    },
    config::{Config, DatabasePlace},
    domain::timestamp::format_rfc3339,
    files,
    keyring::MasterKey,
    metrics::{Labels, Metrics},
    operations::{RestoreReport, ensure_audit_started, invalidate_credentials_after_restore},
    store::{
        OpenMode,
        deployment::{self, Quarantine, QuarantineReason},
        postgres::{self, DatabaseUsage},
        sqlite_file,
    },
};
use countersign_process::{Clock, SystemClock};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Puts a backup into the place of the embedded database and settles it; without a file, settles what is in its place.
pub async fn restore(config: &Config, file: Option<&Path>, replace: bool) -> Result<Report, MovingError> {
    install_crypto();
    let place = place(config)?;
    let master = master_key(config)?;
    match (&place, file) {
        (DatabasePlace::Postgres(_), Some(_)) => MovingError::refused(
            "PostgreSQL is restored by its own tools: stop all control planes, `pg_restore` into an empty database, then \
             run this without a file",
        ),
        (DatabasePlace::Postgres(url), None) => {
            let DatabaseUsage { control_planes, has_deployment } = postgres::database_usage(url).await?;
            if control_planes > 0 {
                return MovingError::refused(
                    "control planes are connected to this database: stop all of them first, and start them when this is done",
                );
            }
            if !has_deployment {
                return MovingError::refused("this database is empty: restore a dump into it first (pg_restore)");
            }
            let settled = settle(config, place, &master).await?;
            Ok(tell(["The database that database.url names is settled.".to_owned()], &settled))
        }
        (DatabasePlace::File(database), Some(file)) => {
            let _lock = hold_alone(database)?;
            put(config, &master, (file, database), replace).await
        }
        (DatabasePlace::File(database), None) => {
            let _lock = hold_alone(database)?;
            if !database.exists() {
                return MovingError::refused(format!(
                    "{}: there is no database; name the backup to put here",
                    database.display()
                ));
            }
            let found = sqlite_file::validate(database).await.map_err(MovingError::flaw(database))?;
            belongs(config, &master, &found.deployment)?;
            let settled = settle(config, place.clone(), &master).await?;
            Ok(tell([format!("{}: settled.", database.display())], &settled))
        }
    }
}

async fn put(
    config: &Config,
    master: &MasterKey,
    (file, database): (&Path, &Path),
    replace: bool,
) -> Result<Report, MovingError> {
    // To open a pipe would wait for whoever writes into it.
    if !fs::metadata(file).map_err(MovingError::file(file))?.is_file() {
        return MovingError::refused(format!(
            "{}: is no regular file: name a backup, as `backup` wrote it",
            file.display()
        ));
    }
    let is_there = database.exists();
    if is_there && fs::canonicalize(file).ok() == fs::canonicalize(database).ok() {
        return MovingError::refused(format!(
            "{}: is in its place; run this without a file to settle it",
            file.display()
        ));
    }
    if is_there && !replace {
        return MovingError::refused(format!(
            "{}: there is a database already; --replace puts the backup in its place and keeps that one beside it",
            database.display()
        ));
    }
    let staged = Staged::copy(file, database)?;
    let found = sqlite_file::validate(&staged.path).await.map_err(MovingError::flaw(file))?;
    belongs(config, master, &found.deployment)?;
    let settled = settle(config, DatabasePlace::File(staged.path.clone()), master).await?;
    sqlite_file::merge_wal(&staged.path).await.map_err(MovingError::flaw(&staged.path))?;
    files::give_to_owner_of_folder(&staged.path)
        .and_then(|()| files::make_lasting(&staged.path))
        .map_err(MovingError::file(&staged.path))?;
    let kept = if is_there { Some(keep(database).await?) } else { None };
    for stale in BESIDE.map(|suffix| files::beside(database, suffix)) {
        files::remove(&stale).map_err(MovingError::file(&stale))?;
    }
    staged.take_place(database)?;
    let restored = format!("{}: restored from {}.", database.display(), file.display());
    let kept = kept.map(|kept| format!("The database of before is kept as {}.", kept.display()));
    Ok(tell([restored].into_iter().chain(kept), &settled))
}

/// Gives the database of before another name too, so that there is always one in its place.
async fn keep(database: &Path) -> Result<PathBuf, MovingError> {
    let stamp: String = format_rfc3339(SystemClock.now()).chars().filter(char::is_ascii_alphanumeric).collect();
    let kept = files::beside(database, &format!("{KEPT}{stamp}"));
    match sqlite_file::merge_wal(database).await {
        Ok(()) => {}
        Err(flaw) if flaw.is_busy() => {
            return MovingError::refused(format!("{}: somebody has it open: end that first", database.display()));
        }
        // It may be the reason for all this. So what lies beside it is kept as it is.
        Err(_) => {
            for suffix in BESIDE {
                let (from, to) = (files::beside(database, suffix), files::beside(&kept, suffix));
                match fs::copy(&from, to) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(MovingError::file(&from)(error));
                    }
                    _ => {}
                }
            }
        }
    }
    files::name_also(database, &kept).map_err(MovingError::file(&kept))?;
    Ok(kept)
}

/// A copy of the backup, until it takes its place. It goes if it does not.
struct Staged {
    path: PathBuf,
}

impl Staged {
    fn copy(file: &Path, database: &Path) -> Result<Self, MovingError> {
        files::make_private_folder(files::folder_of(database)).map_err(MovingError::file(database))?;
        let staged = Self { path: files::beside(database, ".restoring") };
        staged.clear().map_err(MovingError::file(&staged.path))?;
        files::copy_private(file, &staged.path).map_err(MovingError::file(file))?;
        // A database that was copied while nobody served it may have this beside it.
        let (from, to) = (files::beside(file, "-wal"), files::beside(&staged.path, "-wal"));
        if from.is_file() {
            files::copy_private(&from, &to).map_err(MovingError::file(&from))?;
        }
        Ok(staged)
    }

    fn take_place(self, database: &Path) -> Result<(), MovingError> {
        let placed = fs::rename(&self.path, database).and_then(|()| files::make_lasting(database));
        placed.map_err(MovingError::file(database))
    }

    fn clear(&self) -> io::Result<()> {
        files::remove(&self.path)?;
        BESIDE.iter().try_for_each(|suffix| files::remove(&files::beside(&self.path, suffix)))
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let _gone_already: io::Result<()> = self.clear();
    }
}

/// Brings it up to date, and makes it forget what may not be so any more.
async fn settle(config: &Config, place: DatabasePlace, master: &MasterKey) -> Result<RestoreReport, MovingError> {
    let metrics = Metrics::new(&Labels { codes: &[], limits: &[], failures: &[] }).map_err(AppError::from)?;
    let store = open_at(place, config, (OpenMode::Serve, master), Arc::new(SystemClock), &metrics).await?;
    let found = deployment::find(store.read().await?.conn()).await?;
    belongs(
        config,
        master,
        &found.ok_or(AppError::Foreign("this database is empty: restore something into it first"))?,
    )?;
    ensure_audit_started(&store).await.map_err(AppError::Audit)?;
    let settled = invalidate_credentials_after_restore(&store).await.map_err(AppError::Audit)?;
    store.close().await;
    Ok(settled)
}

fn tell(done: impl IntoIterator<Item = String>, settled: &RestoreReport) -> Report {
    let RestoreReport { at, was, newest } = settled;
    let (at, newest) = (format_rfc3339(*at), format_rfc3339(*newest));
    let mut report = Report::default();
    done.into_iter().for_each(|line| report.line(line));
    report.line(format!("No access token, login or challenge of before {at} is good: all agents log in again."));
    report.line(match was {
        Some(Quarantine { reason: QuarantineReason::Backup, at }) => {
            format!("It is as of {}. The newest change in it is of {newest}.", format_rfc3339(*at))
        }
        Some(Quarantine { reason: QuarantineReason::Migrating | QuarantineReason::Migrated, at: _ }) => {
            format!("The newest change in it is of {newest}. See that nobody serves the database that it moved to.")
        }
        None => format!("The newest change in it is of {newest}."),
    });
    report.line(
        "What happened after that is not known here, and somebody must know it: roles that were taken away, agents that were \
         suspended or revoked, and API keys, signing keys and webhook secrets that were revoked or replaced since then are good \
         again. Undo that before you let it serve.",
    );
    report
}
