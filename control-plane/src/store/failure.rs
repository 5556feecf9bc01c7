//! Errors of the database, and their classification.

use sqlx::{error::DatabaseError, migrate::MigrateError};
use std::{borrow::Cow, sync::Arc};

/// An error of the database. The message of a `StoreError` is for the log and the operator, and is never sent to clients of the
/// API.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The driver or the engine returned an error.
    #[error("database: {0}")]
    Engine(#[from] sqlx::Error),
    /// The commit of a group of transactions failed.
    #[error("database: {0}")]
    GroupCommit(Arc<sqlx::Error>),
    /// A group of transactions was rolled back, because the connection failed in one of them. A rerun may succeed.
    #[error("database: a transaction with which this one shared its commit failed")]
    GroupRolledBack,
    /// The configured database cannot be opened.
    #[error("cannot open the database (database.url): {0}")]
    Unreachable(sqlx::Error),
    #[error("cannot open the database (database.url): the server is a standby; name the primary")]
    Standby,
    /// The current master key of the database is not configured.
    #[error(
        "the database uses another master key, with the fingerprint {needed}; secrets.master_key has the fingerprint \
         {configured}: set secrets.master_key to the key of the database, or, to rotate to the configured key, add the key of \
         the database to secrets.previous_master_keys"
    )]
    WrongMasterKey {
        /// Fingerprint of the master key of the database.
        needed: String,
        configured: String,
    },
    /// The database needs a master key that is not configured.
    #[error(
        "the database needs the master key with the fingerprint {0}, which is not configured: if it is the new key of a rotation, \
         set secrets.master_key to it and restart; if it is an earlier key, add it to secrets.previous_master_keys until \
         `countersign-control-plane secrets rotate` has completed"
    )]
    MissingMasterKey(String),
    #[error("migration: {0}{advice}", advice = migration_advice(.0))]
    Migration(#[from] MigrateError),
    /// A column contains a value that the control plane never writes.
    #[error("column `{0}` contains an invalid value")]
    Corrupt(&'static str),
    /// A statement affected an unexpected number of rows.
    #[error("statement `{0}` affected an unexpected number of rows")]
    UnexpectedRowCount(&'static str),
    /// A transaction that already had a revision appended an audit entry. Other transactions lock the audit chain before the
    /// change feed, so the reverse order could cause a deadlock.
    #[error("an audit entry must be appended before the revision is taken")]
    AuditAfterRevision,
    /// The service of the audit chain is deleted, so its chain accepts no further entry.
    #[error("the audit chain of a deleted service is sealed")]
    AuditChainSealed,
}

/// Error codes of a conflict with another transaction: serialization failure and deadlock (PostgreSQL), busy (SQLite).
const TRANSIENT_CODES: [&str; 3] = ["40001", "40P01", "5"];

/// Classes of PostgreSQL error codes after which we do not know the outcome of a commit: the connection was lost, or an operator
/// intervened.
const CONNECTION_CLASSES: [&str; 2] = ["08", "57"];

/// PostgreSQL error code of a write in a read-only transaction. A server that returns this code may have become a standby.
const READ_ONLY: &str = "25006";

/// PostgreSQL error code of an insufficient privilege.
const INSUFFICIENT_PRIVILEGE: &str = "42501";

/// Advice to the operator on an error with [`INSUFFICIENT_PRIVILEGE`].
const GRANT_ADVICE: &str = ". The user in the URL must own the tables of Countersign, or must be allowed to create them: \
                            GRANT CREATE ON SCHEMA public TO <user>, or ALTER DATABASE <database> OWNER TO <user>";

/// Advice to the operator on a database that has other migrations than this program.
const OTHER_SCHEMA_ADVICE: &str = ". A program that was never released made this database, and no release can use it: set \
                                   database.url, or data_dir for SQLite, to a new database";

/// PostgreSQL error codes of a migration that does not get a lock: it waits too long, or there is a deadlock, because the migration
/// locks several tables.
const LOCK_CODES: [&str; 2] = ["55P03", "40P01"];

/// Error codes of a database that accepts no writes: read-only, disk full, insufficient resources (PostgreSQL); read-only, I/O
/// error, disk full (SQLite).
const UNWRITABLE_CODES: [&str; 6] = [READ_ONLY, "53100", "53000", "8", "10", "13"];

/// Length of a PostgreSQL error code (SQLSTATE).
const SQLSTATE_LEN: usize = 5;

impl StoreError {
    /// The error that the database has returned.
    fn database_error(&self) -> Option<&dyn DatabaseError> {
        match self {
            Self::Engine(error) => error.as_database_error(),
            Self::GroupCommit(error) => error.as_database_error(),
            _ => None,
        }
    }

    fn has_code_in(&self, codes: &[&str]) -> bool {
        let Some(error) = self.database_error() else { return false };
        error.code().is_some_and(|code| codes.contains(&primary_code(&code).as_ref()))
    }

    /// Whether the database needs a master key that is not configured.
    pub const fn is_missing_master_key(&self) -> bool {
        matches!(self, Self::MissingMasterKey(_))
    }

    /// Whether a migration failed because other transactions held a lock that it needs.
    pub(super) fn is_lock_timeout(&self) -> bool {
        let error = match self {
            Self::Engine(error) => Some(error),
            Self::Migration(error) => migration_error(error),
            _ => None,
        };
        error.is_some_and(|error| LOCK_CODES.iter().any(|code| has_code(error, code)))
    }

    /// Whether the database may have committed in spite of this error: it did not answer, or closed the connection.
    pub fn leaves_outcome_unknown(&self) -> bool {
        // The database has not answered, so it may have committed, except if we know that the group was rolled back.
        let Some(error) = self.database_error() else { return !matches!(self, Self::GroupRolledBack) };
        let is_of_connection =
            |code: &str| code.len() == SQLSTATE_LEN && CONNECTION_CLASSES.iter().any(|class| code.starts_with(class));
        error.code().is_some_and(|code| is_of_connection(&code))
    }

    /// Whether the transaction was rolled back only with its group, so that it may succeed alone.
    pub(super) fn may_succeed_alone(&self) -> bool {
        match self {
            Self::GroupRolledBack => true,
            Self::GroupCommit(error) => matches!(**error, sqlx::Error::Database(_)),
            _ => false,
        }
    }

    /// Whether the connection must not be used again after this error.
    pub(super) fn breaks_connection(error: &sqlx::Error) -> bool {
        let is_broken = matches!(
            error,
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed
        );
        is_broken || has_code(error, READ_ONLY)
    }
}

fn has_code(error: &sqlx::Error, code: &str) -> bool {
    error.as_database_error().is_some_and(|error| error.code().as_deref() == Some(code))
}

/// The error of the engine that caused a migration to fail; `None` for other causes.
fn migration_error(error: &MigrateError) -> Option<&sqlx::Error> {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => Some(error),
        _ => None,
    }
}

/// Returns advice to append to an error message of the engine; empty if there is none.
pub(super) fn advice(error: &sqlx::Error) -> &'static str {
    if has_code(error, INSUFFICIENT_PRIVILEGE) { GRANT_ADVICE } else { "" }
}

/// Returns the advice to the operator on a failed migration; empty if there is none.
pub(super) fn migration_advice(error: &MigrateError) -> &'static str {
    match error {
        MigrateError::VersionMismatch(1) => OTHER_SCHEMA_ADVICE,
        _ => migration_error(error).map_or("", advice),
    }
}

/// Returns the primary result code of an SQLite error, without the details in the upper bits. Returns a SQLSTATE unchanged.
pub(super) fn primary_code(code: &str) -> Cow<'_, str> {
    match code.parse::<u32>() {
        Ok(extended) if code.len() < SQLSTATE_LEN => (extended & 0xff).to_string().into(),
        Ok(_) | Err(_) => code.into(),
    }
}

/// An error type that may contain a database error.
pub trait StoreFailure {
    /// The database error that is the cause of this error, if there is one.
    fn store_error(&self) -> Option<&StoreError>;

    /// Whether another transaction caused the error, so that the same transaction may succeed in a rerun.
    fn is_transient(&self) -> bool {
        let is_transient =
            |error: &StoreError| matches!(error, StoreError::GroupRolledBack) || error.has_code_in(&TRANSIENT_CODES);
        self.store_error().is_some_and(is_transient)
    }

    /// Whether the database cannot be written to.
    fn is_unwritable(&self) -> bool {
        self.store_error().is_some_and(|error| error.has_code_in(&UNWRITABLE_CODES))
    }
}

impl StoreFailure for StoreError {
    fn store_error(&self) -> Option<&StoreError> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primary_code_strips_sqlite_details_and_keeps_sqlstates() {
        // The codes in `codes` are SQLITE_BUSY_SNAPSHOT, SQLITE_IOERR_WRITE, SQLITE_FULL, SQLITE_READONLY_DBMOVED and two
        // SQLSTATEs.
        let codes = [("517", "5"), ("778", "10"), ("13", "13"), ("1032", "8"), ("53100", "53100"), ("40P01", "40P01")];
        for (code, expected) in codes {
            assert_eq!(primary_code(code), expected);
        }
    }
}
