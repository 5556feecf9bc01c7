//! The lock of the directory with the copies: one process owns the directory until it ends.
//!
//! The lock proves that the earlier owner has ended only if it locked this very file under the same kernel: a copied or cloned directory
//! may have an owner elsewhere. So each owner writes into the file which file it locked, and since which boot.

use countersign_process::BootId;
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::Path,
};

/// The name of the file that is locked.
const NAME: &str = "lock";

/// The largest content of the file that is read.
const MAX_CONTENT: u64 = 256;

/// Why a process does not own a directory.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process owns the directory.
    #[error("another process uses this directory")]
    Held,
    /// The directory or the file cannot be used.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The lock of a directory, until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
    /// Whether every process has certainly ended that owned the directory before.
    pub has_owner_ended: bool,
}

/// Locks a directory. Creates it with mode 0700 if it does not exist. `boot` is the current boot of the system.
pub fn lock(directory: &Path, boot: Option<BootId>) -> Result<Lock, LockError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let path = directory.join(NAME);
    let created = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    // On a disk that became read-only, the file of an earlier process can be locked.
    let mut file = created.or_else(|error| File::open(&path).map_err(|_| error))?;
    match file.try_lock() {
        Ok(()) => {
            let has_owner_ended = was_locked_here(&mut file, boot).unwrap_or(false);
            Ok(Lock { _file: file, has_owner_ended })
        }
        Err(TryLockError::WouldBlock) => Err(LockError::Held),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// Whether the earlier owner locked this file in this boot. Writes that this process has locked it. If that fails, a later process does
/// not know it.
fn was_locked_here(file: &mut File, boot: Option<BootId>) -> io::Result<bool> {
    let (metadata, mut earlier) = (file.metadata()?, String::new());
    file.take(MAX_CONTENT).read_to_string(&mut earlier)?;
    let Some(BootId(boot)) = boot else { return Ok(false) };
    let current = format!("{boot:032x} {} {}\n", metadata.dev(), metadata.ino());
    if earlier == current {
        return Ok(true);
    }
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(current.as_bytes())?;
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_owner_ended(directory: &Path, boot: Option<u128>) -> bool {
        lock(directory, boot.map(BootId)).unwrap().has_owner_ended
    }

    #[test]
    fn owner_of_the_same_file_in_the_same_boot_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("copies");
        assert!(!has_owner_ended(&directory, Some(1)), "there was none");
        assert!(has_owner_ended(&directory, Some(1)));
        let held = lock(&directory, Some(BootId(1))).unwrap();
        assert!(matches!(lock(&directory, Some(BootId(1))), Err(LockError::Held)));
        drop(held);
        assert!(!has_owner_ended(&directory, Some(2)), "the machine may be another one");
        assert!(has_owner_ended(&directory, Some(2)));
        assert!(!has_owner_ended(&directory, None));
    }

    #[test]
    fn owner_of_a_copied_directory_may_run() {
        let folder = tempfile::tempdir().unwrap();
        let [original, copied] = ["original", "copied"].map(|name| folder.path().join(name));
        has_owner_ended(&original, Some(1));
        fs::create_dir(&copied).unwrap();
        fs::copy(original.join(NAME), copied.join(NAME)).unwrap();
        assert!(!has_owner_ended(&copied, Some(1)));
        fs::write(original.join(NAME), "x".repeat(1000)).unwrap();
        assert!(!has_owner_ended(&original, Some(1)));
        assert!(has_owner_ended(&original, Some(1)));
    }
}
