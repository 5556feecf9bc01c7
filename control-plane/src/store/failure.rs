//! What can go wrong with the database.

/// What went wrong with the database. Its text stays inside the process.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The driver or the engine says no.
    #[error("database: {0}")]
    Engine(#[from] sqlx::Error),
    /// The database that the settings name cannot be opened.
    #[error("cannot open the database (database.url): {0}")]
    Unreachable(sqlx::Error),
    /// A schema that cannot be brought up to date.
    #[error("migration: {0}")]
    Migration(#[from] sqlx::migrate::MigrateError),
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

/// Errors after which the same transaction may be run again.
pub trait Transient {
    /// True if another transaction was in the way.
    fn is_transient(&self) -> bool;
}

impl Transient for StoreError {
    fn is_transient(&self) -> bool {
        let Self::Engine(sqlx::Error::Database(error)) = self else { return false };
        // PostgreSQL: serialization failure, deadlock. SQLite: busy.
        matches!(error.code().as_deref(), Some("40001" | "40P01" | "5" | "517"))
    }
}
