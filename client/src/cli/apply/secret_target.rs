//! The file of a secret that the control plane makes and shows only once.
//!
//! Invariant: a secret that was requested is in its file, or the file `PATH.pending` tells that it was lost. One run at a time makes the
//! secret of a file, because it locks `PATH.pending`.

use crate::cli::error::CliError;
use secrecy::{ExposeSecret, SecretString};
use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Whether the file of a secret exists.
pub enum SecretState {
    Kept,
    /// A run was interrupted after it began to make the secret.
    Interrupted,
    Missing,
    /// There can be no file: the path is that of a directory, or its directory does not exist.
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

/// The file of a secret that is about to be requested.
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

    /// Writes the secret and gives the file its name.
    pub fn write(mut self, secret: &SecretString) -> Result<(), CliError> {
        let written = writeln!(self.file, "{}", secret.expose_secret()).and_then(|()| self.file.sync_all());
        let renamed = written.and_then(|()| fs::rename(pending(&self.path), &self.path));
        renamed.map_err(|error| CliError::file("secretFile", &self.path, error.to_string()))
    }

    /// Removes the trace, because no secret was made.
    pub fn discard(self) {
        let _ignored: io::Result<()> = fs::remove_file(pending(&self.path));
    }
}

/// Opens the file of a secret that is being made; `None` if another run has locked it. The lock ends with the run.
fn lock_pending(path: &Path) -> io::Result<Option<File>> {
    loop {
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Another run may have given the file its name, or removed it, before this run locked it.
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
