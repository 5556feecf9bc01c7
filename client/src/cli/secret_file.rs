//! A new file of mode 0600 for a secret that the API returns only once.

use super::error::CliError;
use secrecy::{ExposeSecret, SecretString};
use std::{
    fs::{File, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// A file for a secret: created before the request, so that no secret is generated without a file; deleted if no secret is written.
pub struct SecretFile {
    path: PathBuf,
    file: File,
    written: bool,
}

impl SecretFile {
    /// Creates the file. Returns an error if the file exists.
    pub fn create(path: &Path) -> Result<Self, CliError> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|error| {
            let problem = match error.kind() {
                ErrorKind::AlreadyExists => {
                    let next = "no file is overwritten: use another path for --out";
                    return CliError::failed(format!("--out {}: the file exists", path.display())).with_next(next);
                }
                ErrorKind::NotFound => "its folder does not exist".to_owned(),
                _ => error.to_string(),
            };
            CliError::file("--out", path, problem)
        })?;
        Ok(Self { path: path.to_owned(), file, written: false })
    }

    pub fn write(mut self, secret: &SecretString) -> Result<PathBuf, CliError> {
        let result = writeln!(self.file, "{}", secret.expose_secret());
        self.written = result.is_ok();
        result.map(|()| self.path.clone()).map_err(|error| CliError::file("--out", &self.path, error.to_string()))
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        if !self.written {
            let _ignored = std::fs::remove_file(&self.path);
        }
    }
}
