//! `backup`: copies the embedded database into one file, while a server runs. With `--directory`, each backup is named after its
//! time. With `--keep`, the oldest backups are deleted after the new one was validated; files with other names stay.

use super::{AppError, CommandReport};
use crate::{
    app::database::{location, why_quarantined},
    config::{Config, DatabaseLocation},
    files::{self, FileLock},
    store::{
        deployment::{Quarantine, QuarantineReason},
        sqlite_file::{self, SqliteFileInfo},
    },
};
use countersign_identity::Timestamp;
use countersign_process::{Clock, SystemClock, format_rfc3339};
use secrecy::ExposeSecret;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The beginning and the end of the name of a backup, as in `countersign-20261126T031700Z.db`.
const PREFIX: &str = "countersign-";
const SUFFIX: &str = ".db";

/// The format of the time in the name of a backup: the alphabetical order of the names is the order of the times.
const TIME_FORMAT: &str = "%Y%m%dT%H%M%SZ";

/// Copies the embedded database into a new file. The new file gets its final name only after the copy was validated.
pub async fn backup(config: &Config, file: &Path) -> Result<CommandReport, AppError> {
    let DatabaseLocation::File(database) = location(config)? else {
        return AppError::refuse(
            "PostgreSQL is backed up by its own tools: `pg_dump --format=custom --file=FILE DATABASE`. How to restore the dump is in \
             the documentation, under backup and restore",
        );
    };
    if !database.exists() {
        return AppError::refuse(format!("{}: there is no database to back up", database.display()));
    }
    if fs::symlink_metadata(file).is_ok() {
        return AppError::refuse(format!("{}: already exists, and is not overwritten", file.display()));
    }
    let mut partial = PartialFile::create(file)?;
    let at = SystemClock.now();
    sqlite_file::copy(&database, &partial.path).await.map_err(AppError::invalid_database(&database))?;
    // With this mark, no control plane serves the backup before `restore` has revoked the credentials that may have changed.
    let mark = Quarantine { reason: QuarantineReason::Backup, at };
    let quarantined = sqlite_file::set_file_quarantine(&partial.path, mark).await;
    quarantined.map_err(AppError::invalid_database(&partial.path))?;
    // The copy has the content of the database, so an invalid copy means that the database is invalid.
    let info = sqlite_file::validate(&partial.path).await.map_err(AppError::invalid_database(&database))?;
    if let Some(existing) = info.quarantine.filter(|existing| *existing != mark) {
        // `set_file_quarantine` keeps a mark that the database already had. No control plane serves a database with a mark, so its
        // backup could be mistaken for a backup of the database that is served.
        return AppError::refuse(format!("{}: {}", database.display(), why_quarantined(existing.reason)));
    }
    let bytes = fs::metadata(&partial.path).map_err(AppError::file(&partial.path))?.len();
    partial.finish(file)?;
    Ok(report(config, file, &info, bytes))
}

/// Copies the embedded database into a new file of the directory, and deletes all but the newest `keep` backups.
pub async fn backup_to_directory(
    config: &Config,
    directory: &Path,
    keep: Option<u32>,
) -> Result<CommandReport, AppError> {
    let mut report = backup(config, &directory.join(file_name(SystemClock.now()))).await?;
    if let Some(keep) = keep {
        for path in backups_to_delete(directory, keep).map_err(AppError::file(directory))? {
            fs::remove_file(&path).map_err(AppError::file(&path))?;
            report.line(format!("{}: deleted, because {keep} newer backups are kept.", path.display()));
        }
    }
    Ok(report)
}

fn file_name(at: Timestamp) -> String {
    let at = jiff::Timestamp::from_microsecond(at.micros()).unwrap_or_default();
    format!("{PREFIX}{}{SUFFIX}", at.strftime(TIME_FORMAT))
}

/// All backups except for the newest `keep`, the oldest first.
fn backups_to_delete(directory: &Path, keep: u32) -> io::Result<Vec<PathBuf>> {
    let paths =
        fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    let mut backups: Vec<_> = paths.into_iter().filter(|path| is_backup(path)).collect();
    backups.sort();
    backups.truncate(backups.len().saturating_sub(keep as usize));
    Ok(backups)
}

fn is_backup(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let time = name.and_then(|name| name.strip_prefix(PREFIX)).and_then(|name| name.strip_suffix(SUFFIX));
    time.is_some_and(|time| jiff::civil::DateTime::strptime(TIME_FORMAT, time).is_ok())
}

fn report(config: &Config, file: &Path, info: &SqliteFileInfo, bytes: u64) -> CommandReport {
    let SqliteFileInfo { schema, deployment, previous_master_keys, quarantine } = info;
    let at = quarantine.map_or(String::new(), |mark| format!(" as of {}", format_rfc3339(mark.at)));
    let mut report = CommandReport::default();
    report.line(format!("{}: a backup{at}, {bytes} bytes, schema version {schema}, validated.", file.display()));
    let master = match config.secrets.master_key.expose_secret() {
        "" => config.data_dir.join("master.key").display().to_string(),
        _ => "secrets.master_key of your settings".to_owned(),
    };
    let previous = match config.secrets.previous().count() {
        0 => "",
        _ => " and the keys of secrets.previous_master_keys",
    };
    let current = &deployment.master_key_fingerprint;
    report.line(match previous_master_keys.as_slice() {
        [] => format!(
            "The backup does not contain the master key and is useless without it: keep {master}{previous} (fingerprint \
             {current}) elsewhere."
        ),
        previous_keys => format!(
            "A rotation of the master key is not complete. The backup does not contain the master keys and is useless without \
             them: keep {master}{previous} (fingerprints {current}, {}) elsewhere.",
            previous_keys.join(", ")
        ),
    });
    report
}

/// An incomplete backup under a temporary name. Dropping a `PartialFile` before [`Self::finish`] deletes the file.
struct PartialFile {
    path: PathBuf,
    is_finished: bool,
    _lock: FileLock,
}

impl PartialFile {
    fn create(file: &Path) -> Result<Self, AppError> {
        let path = files::with_suffix(file, ".partial");
        let lock = FileLock::exclusive(&path).map_err(AppError::file(&path))?;
        let Some(lock) = lock else {
            return AppError::refuse(format!("{}: another backup writes to this file", path.display()));
        };
        // A killed `backup` may have left a part of its copy under the temporary name.
        files::truncate_private_file(&path).map_err(AppError::file(&path))?;
        Ok(Self { path, is_finished: false, _lock: lock })
    }

    /// Renames the file to its final path. Fails if the final path exists.
    fn finish(&mut self, file: &Path) -> Result<(), AppError> {
        let renamed = files::sync(&self.path).and_then(|()| files::rename_without_replacing(&self.path, file));
        renamed.map_err(AppError::file(file))?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ignored: io::Result<()> = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_oldest_files_with_the_name_of_a_backup_are_deleted() {
        let directory = tempfile::tempdir().unwrap();
        let older = file_name(Timestamp::from_micros(1_700_000_000_000_000));
        assert_eq!(older, "countersign-20231114T221320Z.db");
        let newer = file_name(Timestamp::from_micros(1_800_000_000_000_000));
        let others = ["countersign.db", "countersign-yesterday.db", "countersign-20231114T221320Z.db.partial", "notes"];
        for name in others.into_iter().chain([newer.as_str(), older.as_str()]) {
            fs::write(directory.path().join(name), "").unwrap();
        }
        assert_eq!(backups_to_delete(directory.path(), 2).unwrap(), Vec::<PathBuf>::new());
        assert_eq!(backups_to_delete(directory.path(), 1).unwrap(), [directory.path().join(older)]);
    }
}
