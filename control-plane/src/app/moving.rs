//! The database as a whole: brought up to date, copied, put back, moved. Commands of the operator, beside the server or
//! instead of it.

mod backup;
mod schema;

pub use backup::back_up;
pub use schema::migrate;

use super::AppError;
use crate::{
    config::{Config, DatabasePlace},
    files::{self, Lock},
    store::{
        Store, StoreError,
        deployment::{self, Aside},
        sqlite_file::Flaw,
    },
};
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
    /// What was done cannot be said.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
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
        flaw: Flaw,
    },
    /// Nothing was done, and why.
    #[error("{0}")]
    Refused(String),
}

impl MovingError {
    fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |error| Self::File { path: path.to_owned(), error }
    }

    fn flaw(path: &Path) -> impl FnOnce(Flaw) -> Self {
        |flaw| Self::Flawed { path: path.to_owned(), flaw }
    }

    fn refused<T>(why: impl Into<String>) -> Result<T, Self> {
        Err(Self::Refused(why.into()))
    }
}

fn place(config: &Config) -> Result<DatabasePlace, AppError> {
    config.database_place().ok_or(AppError::Foreign("database.url is of no engine that we know"))
}

/// The file whose lock says who works with an embedded database.
fn lock_of(database: &Path) -> PathBuf {
    files::beside(database, ".lock")
}

/// That this process serves the embedded database, so that nobody puts another one in its place meanwhile. There is nothing to
/// hold on PostgreSQL.
pub(super) fn hold(config: &Config) -> Result<Option<Lock>, AppError> {
    let DatabasePlace::File(database) = place(config)? else { return Ok(None) };
    let path = lock_of(&database);
    match Lock::shared(&path) {
        Ok(Some(lock)) => Ok(Some(lock)),
        Ok(None) => Err(AppError::Foreign("the database is being restored or moved: start again when that is done")),
        Err(error) => Err(AppError::Folder { path, error }),
    }
}

/// Refuses a database that somebody copied into place, or that everything left.
pub(super) async fn fit_to_serve(store: &Store) -> Result<(), AppError> {
    let Some(found) = deployment::set_aside(store.read().await?.conn()).await? else { return Ok(()) };
    Err(AppError::Foreign(match found.kind {
        Aside::Backup => {
            "this database is a backup: what was revoked since it was made is good in it again. Run \
             `countersign-control-plane restore`, which ends what may have changed"
        }
        Aside::Moved => {
            "everything in this database moved to PostgreSQL: set database.url to where it is. To come back to what was \
             here, run `countersign-control-plane restore`"
        }
    }))
}
