//! What can go wrong with the database.

use sqlx::migrate::MigrateError;
use std::borrow::Cow;

/// What went wrong with the database. Its text stays inside the process.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The driver or the engine says no.
    #[error("database: {0}")]
    Engine(#[from] sqlx::Error),
    /// The database that the settings name cannot be opened.
    #[error("cannot open the database (database.url): {0}")]
    Unreachable(sqlx::Error),
    /// A server that only follows another one.
    #[error("cannot open the database (database.url): the server is a standby; name the primary")]
    Standby,
    /// A database of another master key.
    #[error("the master key is not the one that sealed this database: restore the right one (secrets.master_key)")]
    Sealed,
    /// A schema that cannot be brought up to date.
    #[error("migration: {0}{advice}", advice = advice_on_step(.0))]
    Migration(#[from] MigrateError),
    /// A column holds what we never write.
    #[error("column `{0}` holds an unreadable value")]
    Corrupt(&'static str),
    /// A statement touched another number of rows than it must.
    #[error("statement `{0}` touched an unexpected number of rows")]
    Rows(&'static str),
    /// An act was recorded after the feed was locked: others lock these two the other way round.
    #[error("an act must be recorded before the revision is taken")]
    Order,
}

/// What the engines say when another transaction was in the way. PostgreSQL: serialization failure, deadlock. SQLite: busy.
const TRANSIENT: [&str; 3] = ["40001", "40P01", "5"];

/// PostgreSQL: read-only transaction. A server that says so may have become a copy of another one.
const READ_ONLY: &str = "25006";

/// PostgreSQL: insufficient privilege.
const FORBIDDEN: &str = "42501";

/// What whoever reads that may do.
const GRANT: &str = ". The user of the URL must own the tables of Countersign, or where there are none, be allowed to make \
                     them: GRANT CREATE ON SCHEMA public TO <user>, or ALTER DATABASE <database> OWNER TO <user>";

/// PostgreSQL: lock not available.
const LOCK_TIMEOUT: &str = "55P03";

/// What they say when nothing can be written. PostgreSQL: read-only, no space, no resources. SQLite: read-only, its disk
/// fails, no space.
const UNWRITABLE: [&str; 6] = [READ_ONLY, "53100", "53000", "8", "10", "13"];

/// Characters of a code of PostgreSQL (SQLSTATE).
const SQLSTATE_LEN: usize = 5;

impl StoreError {
    fn says(&self, codes: &[&str]) -> bool {
        let Self::Engine(sqlx::Error::Database(error)) = self else { return false };
        error.code().is_some_and(|code| codes.contains(&primary(&code).as_ref()))
    }

    /// Whether a step of the schema had to wait for longer than it may.
    pub(super) fn is_in_the_way(&self) -> bool {
        if let Self::Engine(error) = self {
            return is(error, LOCK_TIMEOUT);
        }
        let Self::Migration(error) = self else { return false };
        of_step(error).is_some_and(|error| is(error, LOCK_TIMEOUT))
    }

    /// Whether the connection must not be used again.
    pub(super) fn breaks(error: &sqlx::Error) -> bool {
        matches!(error, sqlx::Error::Io(_)) || is(error, READ_ONLY)
    }
}

fn is(error: &sqlx::Error, code: &str) -> bool {
    error.as_database_error().is_some_and(|error| error.code().as_deref() == Some(code))
}

/// What the engine said when a step of the schema failed, if it was the engine.
fn of_step(error: &MigrateError) -> Option<&sqlx::Error> {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => Some(error),
        _ => None,
    }
}

/// What to do about it, to follow what the engine says, where we know better than the engine.
pub(super) fn advice(error: &sqlx::Error) -> &'static str {
    if is(error, FORBIDDEN) { GRANT } else { "" }
}

/// The same for a step of the schema.
pub(super) fn advice_on_step(error: &MigrateError) -> &'static str {
    of_step(error).map_or("", advice)
}

/// SQLite says how an error came about in the upper bits of its code.
pub(super) fn primary(code: &str) -> Cow<'_, str> {
    match code.parse::<u32>() {
        Ok(extended) if code.len() < SQLSTATE_LEN => (extended & 0xff).to_string().into(),
        Ok(_) | Err(_) => code.into(),
    }
}

/// Errors that may be the database's.
pub trait StoreFailure {
    /// What went wrong with the database, if that is it.
    fn of_store(&self) -> Option<&StoreError>;

    /// True if another transaction was in the way: the same one may be run again.
    fn is_transient(&self) -> bool {
        self.of_store().is_some_and(|error| error.says(&TRANSIENT))
    }

    /// True if the database takes no writes now.
    fn is_unwritable(&self) -> bool {
        self.of_store().is_some_and(|error| error.says(&UNWRITABLE))
    }
}

impl StoreFailure for StoreError {
    fn of_store(&self) -> Option<&StoreError> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_of_sqlite_is_known_however_it_came_about() {
        // SQLITE_BUSY_SNAPSHOT, SQLITE_IOERR_WRITE, SQLITE_FULL, SQLITE_READONLY_DBMOVED; a SQLSTATE is a text.
        let codes = [("517", "5"), ("778", "10"), ("13", "13"), ("1032", "8"), ("53100", "53100"), ("40P01", "40P01")];
        for (code, expected) in codes {
            assert_eq!(primary(code), expected);
        }
    }
}
