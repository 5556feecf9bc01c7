//! The errors of starting, running and maintaining the control plane.

use crate::{
    certificates::CertificateError, development::DevelopmentError, humans::OperatorKeyError, keyring::MasterKeyError,
    operations::OperationError, store::StoreError,
};
use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// Why the control plane cannot start, or why it stopped.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The value of a setting, or the file or address that it names, cannot be used.
    #[error("{setting}: {error}")]
    Setting {
        /// The key of the setting.
        setting: String,
        /// Description of the problem.
        error: String,
    },
    /// A file in the data directory cannot be created or read.
    #[error("{path}: {error}")]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The database must not be used; for example, it was created with --dev and --dev is not set.
    #[error("{0}")]
    DatabaseRejected(&'static str),
    /// Another server uses the embedded database.
    #[error(
        "{0}: another control plane uses this database, and SQLite supports only one. Stop the other one; if it is stopping \
         already, start again when it has ended, after at most 30 seconds. Several control planes need PostgreSQL: set \
         database.url"
    )]
    DatabaseInUse(PathBuf),
    /// The database returned an error.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An operation that runs at start-up failed.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// The master key cannot be loaded.
    #[error(transparent)]
    MasterKey(#[from] MasterKeyError),
    /// The operator key cannot be used.
    #[error(transparent)]
    OperatorKey(#[from] OperatorKeyError),
    /// The TLS certificate cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The setup of `--dev` failed.
    #[error(transparent)]
    Development(#[from] DevelopmentError),
    /// Metrics cannot be registered.
    #[error(transparent)]
    Metrics(#[from] prometheus::Error),
    /// A server stopped although no shutdown was requested.
    #[error("a server stopped: {0}")]
    Server(#[from] io::Error),
}

impl AppError {
    /// An error about the value of a setting.
    pub(super) fn setting(setting: impl Into<String>, error: impl fmt::Display) -> Self {
        Self::Setting { setting: setting.into(), error: error.to_string() }
    }

    /// An error about a file named by a setting.
    pub(super) fn setting_file(setting: impl Into<String>, path: &Path, error: impl fmt::Display) -> Self {
        Self::setting(setting, format_args!("{}: {error}", path.display()))
    }

    /// An error about a file whose path is derived from a setting.
    pub(super) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |error| Self::File { path: path.to_owned(), error }
    }
}
