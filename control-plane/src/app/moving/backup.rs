//! `backup`: the embedded database in one file, as it is in this moment, beside the server.

use super::{MovingError, Report};
use crate::{
    app::database::place,
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

/// Copies the embedded database into a file that must not be there, and has it when the copy is known to be good.
pub async fn back_up(config: &Config, file: &Path) -> Result<Report, MovingError> {
    let DatabaseLocation::File(database) = place(config)? else {
        return MovingError::refused(
            "PostgreSQL is backed up by its own tools: `pg_dump --format=custom --file=FILE DATABASE`. How to \
             restore it is in docs/run/backup-and-restore.md",
        );
    };
    if !database.exists() {
        return MovingError::refused(format!("{}: there is no database to back up", database.display()));
    }
    if fs::symlink_metadata(file).is_ok() {
        return MovingError::refused(format!("{}: is there already, and nothing is overwritten", file.display()));
    }
    let mut partial = Partial::begin(file)?;
    let at = SystemClock.now();
    sqlite_file::copy(&database, &partial.path).await.map_err(MovingError::flaw(&database))?;
    let quarantine = Quarantine { reason: QuarantineReason::Backup, at };
    sqlite_file::quarantine(&partial.path, quarantine).await.map_err(MovingError::flaw(&partial.path))?;
    let found = sqlite_file::validate(&partial.path).await.map_err(MovingError::flaw(&database))?;
    let bytes = fs::metadata(&partial.path).map_err(MovingError::file(&partial.path))?.len();
    partial.finish(file)?;
    Ok(tell(config, file, &found, bytes))
}

fn tell(config: &Config, file: &Path, found: &SqliteFileInfo, bytes: u64) -> Report {
    let SqliteFileInfo { schema, deployment, quarantine } = found;
    let at = quarantine.map_or(String::new(), |mark| format!(" as of {}", format_rfc3339(mark.at)));
    let mut report = Report::default();
    report.line(format!("{}: a backup{at}, {bytes} bytes, schema step {schema}, checked.", file.display()));
    let master = match config.secrets.master_key.expose_secret() {
        "" => config.data_dir.join("master.key").display().to_string(),
        _ => "secrets.master_key of your settings".to_owned(),
    };
    report.line(format!(
        "Without the master key it is worth nothing, and that is not in it: keep {master} (fingerprint {}) elsewhere.",
        deployment.master_key_fingerprint
    ));
    report
}

/// A file that has another name until it is whole. It goes if it does not become so.
struct Partial {
    path: PathBuf,
    is_done: bool,
    _lock: FileLock,
}

impl Partial {
    /// Begins with an empty file, beside what it shall become.
    fn begin(file: &Path) -> Result<Self, MovingError> {
        let path = files::with_suffix(file, ".partial");
        let lock = FileLock::exclusive(&path).map_err(MovingError::file(&path))?;
        let Some(lock) = lock else {
            return MovingError::refused(format!("{}: another backup writes here", path.display()));
        };
        // Of one that was killed.
        files::truncate_private_file(&path).map_err(MovingError::file(&path))?;
        Ok(Self { path, is_done: false, _lock: lock })
    }

    /// Gives it its name, unless somebody else has that by now.
    fn finish(&mut self, file: &Path) -> Result<(), MovingError> {
        let named = files::sync(&self.path).and_then(|()| files::rename_without_replacing(&self.path, file));
        named.map_err(MovingError::file(file))?;
        self.is_done = true;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_done {
            let _gone_already: io::Result<()> = fs::remove_file(&self.path);
        }
    }
}
