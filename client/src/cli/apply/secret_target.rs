//! The file of a secret that the control plane makes and shows only once.
//!
//! Invariant: a secret that was requested is in its file, or the file `PATH.pending` tells that it was lost.

use crate::cli::CliError;
use countersign_client::declared::SecretState;
use secrecy::{ExposeSecret, SecretString};
use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Whether the file of a secret exists.
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
    /// Creates the file `PATH.pending`, so that an interruption leaves a trace.
    pub fn create(path: &Path) -> Result<Self, CliError> {
        let pending = pending(path);
        let created = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&pending);
        let file = created.map_err(|error| CliError::file("secretFile", path, error.to_string()))?;
        Ok(Self { path: path.to_owned(), file })
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

fn pending(path: &Path) -> PathBuf {
    let mut name: OsString = path.into();
    name.push(".pending");
    name.into()
}
