//! `backup --directory`: backups that are named after their time, of which the oldest are deleted.
//!
//! Only files with such a name are deleted, and only after a new backup was validated.

use super::{CommandReport, DatabaseCommandError, backup::backup};
use crate::config::Config;
use countersign_identity::Timestamp;
use countersign_process::{Clock, SystemClock};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The beginning and the end of a name, as in `countersign-20261126T031700Z.db`.
const PREFIX: &str = "countersign-";
const SUFFIX: &str = ".db";

/// The format of the time in a name. Names are in the order of their times.
const TIME_FORMAT: &str = "%Y%m%dT%H%M%SZ";

/// Copies the embedded database into a new file of the directory, and deletes all but the newest `keep` backups.
pub async fn backup_to_directory(
    config: &Config,
    directory: &Path,
    keep: Option<u32>,
) -> Result<CommandReport, DatabaseCommandError> {
    let mut report = backup(config, &directory.join(file_name(SystemClock.now()))).await?;
    if let Some(keep) = keep {
        for path in older_backups(directory, keep).map_err(DatabaseCommandError::file(directory))? {
            fs::remove_file(&path).map_err(DatabaseCommandError::file(&path))?;
            report.line(format!("{}: deleted, because {keep} newer backups are kept.", path.display()));
        }
    }
    Ok(report)
}

fn file_name(at: Timestamp) -> String {
    let at = jiff::Timestamp::from_microsecond(at.micros()).unwrap_or_default();
    format!("{PREFIX}{}{SUFFIX}", at.strftime(TIME_FORMAT))
}

/// The backups without the newest `keep`, the oldest first.
fn older_backups(directory: &Path, keep: u32) -> io::Result<Vec<PathBuf>> {
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
        assert_eq!(older_backups(directory.path(), 2).unwrap(), Vec::<PathBuf>::new());
        assert_eq!(older_backups(directory.path(), 1).unwrap(), [directory.path().join(older)]);
    }
}
