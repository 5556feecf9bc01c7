//! The errors of starting and running the control plane, and of its commands.

use super::CommandReport;
use crate::{
    certificates::DevelopmentCertificateError,
    humans::OperatorKeyError,
    keyring::MasterKeyError,
    operations::OperationError,
    store::{StoreError, sqlite_file::SqliteFileError, transfer::TransferError},
};
use countersign_process::certificates::CertificateError;
use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// Why the control plane cannot start, why it stopped, or why a command failed.
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
    /// A file cannot be read or written.
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
    /// An operation that the start or a command runs has failed.
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
    /// The TLS certificate of --dev cannot be generated.
    #[error(transparent)]
    DevelopmentCertificate(#[from] DevelopmentCertificateError),
    /// Metrics cannot be registered.
    #[error(transparent)]
    Metrics(#[from] prometheus::Error),
    /// A server stopped although no shutdown was requested.
    #[error("a server stopped: {0}")]
    Server(io::Error),
    /// The signals that end the process cannot be received.
    #[error(transparent)]
    Signals(io::Error),
    /// A precondition of a command is not met, or the command found something wrong.
    #[error("{0}")]
    Refused(String),
    /// A file is not a valid database.
    #[error("{path}: {error}")]
    InvalidDatabase {
        /// The file.
        path: PathBuf,
        /// Why the file is not a valid database.
        error: SqliteFileError,
    },
    /// The database could not be copied to PostgreSQL.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// Standard output cannot be written: it is closed or full.
    #[error("standard output: {0}")]
    Output(io::Error),
    /// The command succeeded, but its report cannot be written.
    #[error("the command succeeded, but standard output cannot be written ({error}). The report is:\n{report}")]
    ReportNotWritten {
        /// The report of the command.
        report: CommandReport,
        /// Error of the operating system.
        error: io::Error,
    },
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

    /// An error about a file.
    pub(super) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |error| Self::File { path: path.to_owned(), error }
    }

    pub(super) fn invalid_database(path: &Path) -> impl FnOnce(SqliteFileError) -> Self {
        |error| Self::InvalidDatabase { path: path.to_owned(), error }
    }

    /// Fails with [`Self::Refused`].
    pub(super) fn refuse<T>(reason: impl Into<String>) -> Result<T, Self> {
        Err(Self::Refused(reason.into()))
    }
}
