//! The database as a whole: brought up to date, copied, put back, moved. Commands of the operator, beside the server or
//! instead of it.

mod backup;
mod report;
mod restore;
mod schema;
mod transfer;

pub use backup::back_up;
pub use report::Report;
pub use restore::restore;
pub use schema::migrate;
pub use transfer::move_to;

use super::AppError;
use crate::store::{StoreError, sqlite_file::SqliteFileError, transfer::TransferError};
use std::{
    io,
    path::{Path, PathBuf},
};

/// Why a database was not brought up to date, copied, put back or moved.
#[derive(Debug, thiserror::Error)]
pub enum MovingError {
    /// The settings, the master key or the folder.
    #[error(transparent)]
    App(#[from] AppError),
    /// The database that the settings name.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Everything was done, and that cannot be said where it should be.
    #[error("everything was done, but standard output cannot be written ({error}). It would say:\n{report}")]
    Unsaid {
        /// What was done.
        report: Report,
        /// What the system said.
        error: io::Error,
    },
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A file that is no database of ours, or a damaged one.
    #[error("{path}: {flaw}")]
    Flawed {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        flaw: SqliteFileError,
    },
    /// Not everything could be copied.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// Nothing was done, and why.
    #[error("{0}")]
    Refused(String),
}

impl MovingError {
    fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |error| Self::File { path: path.to_owned(), error }
    }

    fn flaw(path: &Path) -> impl FnOnce(SqliteFileError) -> Self {
        |flaw| Self::Flawed { path: path.to_owned(), flaw }
    }

    fn refused<T>(why: impl Into<String>) -> Result<T, Self> {
        Err(Self::Refused(why.into()))
    }
}
