//! The lock of the directory with the copies: one process owns the directory until it ends.
//!
//! The process that holds the lock knows that every process has ended that wrote a copy before.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

/// The name of the file that is locked.
const NAME: &str = "lock";

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

/// Locks a directory until the file is closed. Creates the directory with mode 0700 if it does not exist.
pub fn lock(directory: &Path) -> Result<File, LockError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let path = directory.join(NAME);
    let created = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    // On a disk that became read-only, the file of an earlier process can be locked.
    let file = created.or_else(|error| File::open(&path).map_err(|_| error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(LockError::Held),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}
