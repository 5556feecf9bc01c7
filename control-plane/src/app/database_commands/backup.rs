//! `backup`: copies the embedded database into one file, while a server runs.

use super::{CommandReport, DatabaseCommandError};
use crate::{
    app::database::{location, why_quarantined},
    config::{Config, DatabaseLocation},
    domain::timestamp::format_rfc3339,
    files::{self, FileLock},
    store::{
        deployment::{Quarantine, QuarantineReason},
        sqlite_file::{self, SqliteFileInfo},
    },
};
use countersign_process::{Clock, SystemClock};
use secrecy::ExposeSecret;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Copies the embedded database into a new file. The new file gets its final name only after the copy was validated.
pub async fn backup(config: &Config, file: &Path) -> Result<CommandReport, DatabaseCommandError> {
    let DatabaseLocation::File(database) = location(config)? else {
        return DatabaseCommandError::refused(
            "PostgreSQL is backed up by its own tools: `pg_dump --format=custom --file=FILE DATABASE`. How to restore the dump is in \
             the documentation, under backup and restore",
        );
    };
    if !database.exists() {
        return DatabaseCommandError::refused(format!("{}: there is no database to back up", database.display()));
    }
    if fs::symlink_metadata(file).is_ok() {
        return DatabaseCommandError::refused(format!("{}: already exists, and is not overwritten", file.display()));
    }
    let mut partial = PartialFile::create(file)?;
    let at = SystemClock.now();
    sqlite_file::copy(&database, &partial.path).await.map_err(DatabaseCommandError::invalid_database(&database))?;
    let mark = Quarantine { reason: QuarantineReason::Backup, at };
    let quarantined = sqlite_file::set_file_quarantine(&partial.path, mark).await;
    quarantined.map_err(DatabaseCommandError::invalid_database(&partial.path))?;
    let info = sqlite_file::validate(&partial.path).await.map_err(DatabaseCommandError::invalid_database(&database))?;
    if let Some(existing) = info.quarantine.filter(|existing| *existing != mark) {
        // A backup of an old copy would be taken for a backup of the database in use.
        return DatabaseCommandError::refused(format!("{}: {}", database.display(), why_quarantined(existing.reason)));
    }
    let bytes = fs::metadata(&partial.path).map_err(DatabaseCommandError::file(&partial.path))?.len();
    partial.finish(file)?;
    Ok(report(config, file, &info, bytes))
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
    /// Creates an empty file beside the final path.
    fn create(file: &Path) -> Result<Self, DatabaseCommandError> {
        let path = files::with_suffix(file, ".partial");
        let lock = FileLock::exclusive(&path).map_err(DatabaseCommandError::file(&path))?;
        let Some(lock) = lock else {
            return DatabaseCommandError::refused(format!("{}: another backup writes to this file", path.display()));
        };
        // A killed `backup` may have left a part of its copy under the temporary name.
        files::truncate_private_file(&path).map_err(DatabaseCommandError::file(&path))?;
        Ok(Self { path, is_finished: false, _lock: lock })
    }

    /// Renames the file to its final path. Fails if the final path exists.
    fn finish(&mut self, file: &Path) -> Result<(), DatabaseCommandError> {
        let renamed = files::sync(&self.path).and_then(|()| files::rename_without_replacing(&self.path, file));
        renamed.map_err(DatabaseCommandError::file(file))?;
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
