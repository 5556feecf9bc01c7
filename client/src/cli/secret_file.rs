//! Where a secret goes that is to be had once: a new file, for its owner only.

use super::Failure;
use secrecy::{ExposeSecret, SecretString};
use std::{
    fs::{File, OpenOptions},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// A file for a secret, made before there is one, and gone again if there never is.
pub struct SecretFile {
    path: PathBuf,
    file: File,
    filled: bool,
}

impl SecretFile {
    /// Makes it; one that exists is left alone.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|error| Failure::file("--out", path, error.to_string()))?;
        Ok(Self { path: path.to_owned(), file, filled: false })
    }

    /// Writes the secret, and gives the path.
    pub fn keep(mut self, secret: &SecretString) -> Result<PathBuf, Failure> {
        let written = writeln!(self.file, "{}", secret.expose_secret());
        self.filled = written.is_ok();
        written.map(|()| self.path.clone()).map_err(|error| Failure::file("--out", &self.path, error.to_string()))
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        if !self.filled {
            let _left = std::fs::remove_file(&self.path);
        }
    }
}
