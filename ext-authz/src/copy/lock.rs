//! The lock of the directory with the copies: one process owns the directory until it ends.
//!
//! A process that gets the lock knows that earlier owners have ended, if they locked this very file on this machine. But if the
//! directory was copied, the owner of the original may still run. So the first owner writes a history into the file: which file
//! this is (boot, device and inode), and the time since boot. So later owners know that all owners since then locked this file.

use countersign_process::{BootId, Clock};
use nix::fcntl::OFlag;
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::Path,
    time::Duration,
};

/// The name of the file that is locked.
const NAME: &str = "lock";

/// The most bytes of the file that are read: more than a history has.
const MAX_CONTENT: u64 = 256;

/// Why this process cannot own a directory.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("another process uses this directory")]
    Held,
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The lock of a directory, until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
    history: Option<History>,
}

/// All owners of the directory since this time have locked this file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct History {
    boot: BootId,
    since_boot: Duration,
}

impl Lock {
    /// Whether the process that owned the directory at this time has certainly ended: it had locked this file, and now we have the
    /// lock.
    pub fn has_ended(&self, boot: Option<BootId>, since_boot: Duration) -> bool {
        self.history.is_some_and(|history| boot == Some(history.boot) && since_boot >= history.since_boot)
    }
}

/// Locks a directory. Creates it with mode 0700 if it does not exist.
pub fn lock(directory: &Path, clock: &dyn Clock) -> Result<Lock, LockError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let path = directory.join(NAME);
    // If others can write to the directory, a link must not make us write to another file, and a pipe must not make us wait for ever.
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags);
    let created = options.clone().write(true).create(true).truncate(false).mode(0o600).open(&path);
    // If the disk has become read-only, we can still lock an existing file. If there is none, the first error counts.
    let mut file = created.or_else(|error| options.open(&path).map_err(|_| error))?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!("`{}` is not a regular file: remove it", path.display())).into());
    }
    match file.try_lock() {
        Ok(()) => {
            // Without a history, no earlier owner counts as ended, which is safe.
            let history = read_history(&mut file, clock).unwrap_or(None);
            Ok(Lock { _file: file, history })
        }
        Err(TryLockError::WouldBlock) => Err(LockError::Held),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// Reads the history. If the history is about another file or another boot, this process is the first owner, and writes a new one.
/// If the boot is unknown, deletes the history, and returns `None`.
fn read_history(file: &mut File, clock: &dyn Clock) -> io::Result<Option<History>> {
    let (metadata, mut text) = (file.metadata()?, String::new());
    file.take(MAX_CONTENT).read_to_string(&mut text)?;
    let boot = clock.boot_id();
    let prefix = boot.map(|BootId(boot)| format!("{boot:032x} {} {} ", metadata.dev(), metadata.ino()));
    let since = prefix.as_deref().and_then(|prefix| text.strip_prefix(prefix)?.trim_end().parse().ok());
    if let (Some(boot), Some(micros)) = (boot, since) {
        return Ok(Some(History { boot, since_boot: Duration::from_micros(micros) }));
    }
    file.set_len(0)?;
    file.rewind()?;
    let (Some(boot), Some(prefix)) = (boot, prefix) else { return Ok(None) };
    let since_boot = Duration::from_micros(u64::try_from(clock.since_boot().as_micros()).unwrap_or(u64::MAX));
    file.write_all(format!("{prefix}{}\n", since_boot.as_micros()).as_bytes())?;
    Ok(Some(History { boot, since_boot }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::tests::FixedClock;

    /// The clock of a boot, some seconds after it.
    fn clock(boot: Option<u128>, seconds: u64) -> FixedClock {
        FixedClock(boot.map(BootId), seconds, 0)
    }

    /// Locks a directory at the time `now`. Returns whether the process that used the directory at `used_at` has ended.
    fn has_ended(directory: &Path, boot: Option<u128>, now: u64, used_at: u64) -> bool {
        lock(directory, &clock(boot, now)).unwrap().has_ended(boot.map(BootId), Duration::from_secs(used_at))
    }

    #[test]
    fn owner_of_the_same_file_in_the_same_boot_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("copies");
        assert!(!has_ended(&directory, Some(1), 100, 99), "there was no owner here");
        assert!(has_ended(&directory, Some(1), 200, 150));
        assert!(has_ended(&directory, Some(1), 300, 150), "also if later owners wrote nothing");
        assert!(!has_ended(&directory, Some(1), 300, 99));
        let held = lock(&directory, &clock(Some(1), 400)).unwrap();
        assert!(!held.has_ended(Some(BootId(2)), Duration::from_secs(399)) && !held.has_ended(None, Duration::MAX));
        assert!(matches!(lock(&directory, &clock(Some(1), 400)), Err(LockError::Held)));
        drop(held);
        assert!(!has_ended(&directory, Some(2), 500, 450), "the machine may be another one");
        assert!(has_ended(&directory, Some(2), 600, 550));
        assert!(!has_ended(&directory, None, 700, 650));
        assert!(!has_ended(&directory, Some(2), 800, 750), "the owner before knew no boot");
    }

    #[test]
    fn only_a_regular_file_is_locked() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join(NAME), folder.path().join("other"));
        let clock = clock(Some(1), 100);
        fs::write(&other, "content").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert!(matches!(lock(folder.path(), &clock), Err(LockError::Io(_))));
        assert_eq!(fs::read_to_string(&other).unwrap(), "content");
        fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = lock(folder.path(), &clock).unwrap_err();
        assert!(error.to_string().contains("is not a regular file"), "{error}");
    }

    #[test]
    fn owner_of_a_copied_directory_may_run() {
        let folder = tempfile::tempdir().unwrap();
        let [original, copied] = ["original", "copied"].map(|name| folder.path().join(name));
        has_ended(&original, Some(1), 100, 0);
        fs::create_dir(&copied).unwrap();
        fs::copy(original.join(NAME), copied.join(NAME)).unwrap();
        for now in [200, 300] {
            assert!(!has_ended(&copied, Some(1), now, 150), "the copy was written by the owner of the original");
        }
        fs::write(original.join(NAME), "x".repeat(1000)).unwrap();
        assert!(!has_ended(&original, Some(1), 400, 350));
        assert!(has_ended(&original, Some(1), 500, 450));
    }
}
