//! The commands `migrate`, `backup` and `restore`, which work on a whole database. Each command returns a report for the
//! operator.

mod backup;
mod backup_directory;
mod migrate;
mod migrate_to_postgres;
mod report;
mod restore;

pub use backup::backup;
pub use backup_directory::backup_to_directory;
pub use migrate::migrate;
pub use migrate_to_postgres::migrate_to_postgres;
pub use report::CommandReport;
pub use restore::restore;

use super::AppError;
use crate::store::{StoreError, sqlite_file::SqliteFileError, transfer::TransferError};
use std::{
    io,
    path::{Path, PathBuf},
};

/// Why a command on a database failed.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseCommandError {
    /// The settings, the master key or the data directory are unusable.
    #[error(transparent)]
    App(#[from] AppError),
    /// The configured database returned an error.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The command succeeded, but its report cannot be written.
    #[error("the command succeeded, but standard output cannot be written ({error}). The report is:\n{report}")]
    ReportNotWritten {
        /// The report of the command.
        report: CommandReport,
        /// Error of the operating system.
        error: io::Error,
    },
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
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
    /// A precondition is not met; nothing was changed.
    #[error("{0}")]
    Refused(String),
}

impl DatabaseCommandError {
    fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |error| Self::File { path: path.to_owned(), error }
    }

    fn invalid_database(path: &Path) -> impl FnOnce(SqliteFileError) -> Self {
        |error| Self::InvalidDatabase { path: path.to_owned(), error }
    }

    pub(super) fn refused<T>(reason: impl Into<String>) -> Result<T, Self> {
        Err(Self::Refused(reason.into()))
    }
}
