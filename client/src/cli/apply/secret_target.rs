//! The file of a secret that the control plane makes and shows only once.
//!
//! Invariant: every requested secret is in its file, or a file `PATH.pending` shows that it was lost. A run locks `PATH.pending`, so two
//! runs never make the secret of one file at the same time.

use crate::cli::error::CliError;
use secrecy::{ExposeSecret, SecretString};
use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// What we find at the path of a secret.
pub enum SecretState {
    /// The file exists.
    Kept,
    /// A run was interrupted after it began to make the secret.
    Interrupted,
    Missing,
    /// No file can be made: the path is a directory, or its parent does not exist.
    Impossible,
}

pub fn state(path: &Path) -> SecretState {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let is_possible = !path.is_dir() && directory.is_none_or(Path::is_dir);
    match (is_possible, path.exists(), pending(path).exists()) {
        (false, ..) => SecretState::Impossible,
        (true, true, _) => SecretState::Kept,
        (true, false, true) => SecretState::Interrupted,
        (true, false, false) => SecretState::Missing,
    }
}

/// The file for a secret that we are about to request: first `PATH.pending`, at last `PATH`.
pub struct SecretTarget {
    path: PathBuf,
    file: File,
}

impl SecretTarget {
    /// Creates and locks the file `PATH.pending`, so that an interruption leaves a trace.
    pub fn create(path: &Path) -> Result<Self, CliError> {
        let problem = |error: io::Error| CliError::file("secretFile", path, error.to_string());
        let file = lock_pending(&pending(path)).map_err(problem)?;
        let Some(file) = file else {
            return Err(CliError::failed(format!("another run is making the secret of {}", path.display())));
        };
        let target = Self { path: path.to_owned(), file };
        if path.exists() {
            target.discard();
            return Err(CliError::failed(format!("another run has made the secret of {} meanwhile", path.display())));
        }
        Ok(target)
    }

    /// Writes the secret to `PATH.pending`, and renames this file to its final path.
    pub fn write(mut self, secret: &SecretString) -> Result<(), CliError> {
        let written = writeln!(self.file, "{}", secret.expose_secret()).and_then(|()| self.file.sync_all());
        let renamed = written.and_then(|()| fs::rename(pending(&self.path), &self.path));
        renamed.map_err(|error| CliError::file("secretFile", &self.path, error.to_string()))
    }

    /// Removes `PATH.pending`. Callers use it if the control plane made no secret.
    pub fn discard(self) {
        let _ignored: io::Result<()> = fs::remove_file(pending(&self.path));
    }
}

/// Opens and locks `PATH.pending`; `None` if another run has locked it. The lock ends with the run.
fn lock_pending(path: &Path) -> io::Result<Option<File>> {
    loop {
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Between our open and our lock, another run may have renamed or removed the file: if so, we open the path again.
        let locked = file.metadata()?;
        let named = fs::metadata(path);
        if named.is_ok_and(|named| (named.dev(), named.ino()) == (locked.dev(), locked.ino())) {
            file.set_len(0)?;
            return Ok(Some(file));
        }
    }
}

fn pending(path: &Path) -> PathBuf {
    let mut name: OsString = path.into();
    name.push(".pending");
    name.into()
}
