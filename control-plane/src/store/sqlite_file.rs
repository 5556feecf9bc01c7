//! Operations on the file of an SQLite database: copy, validation and quarantine (a mark that the database must not be served).
//!
//! They use connections of their own, without the timeouts of the pools.

use super::{
    deployment::{Deployment, Quarantine, QuarantineReason},
    failure::primary_code,
    schema,
    statements::statements,
};
use countersign_identity::Timestamp;
use sqlx::{
    ConnectOptions, Connection, Row, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteLockingMode, SqliteRow, SqliteSynchronous},
};
use std::{io, path::Path};

statements! { SQLITE_STATEMENTS:
    COPY_DATABASE = "VACUUM INTO $1";
    CHECK_INTEGRITY = "PRAGMA integrity_check(1)";
    COUNT_TRIGGERS_AND_VIEWS = "SELECT COUNT(*) FROM sqlite_master WHERE type IN ('trigger', 'view')";
    COUNT_REQUIRED_TABLES = "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' \
         AND name IN ('_sqlx_migrations', 'deployment', 'feed')";
    FIND_SCHEMA_VERSION = "SELECT MAX(version) FROM _sqlx_migrations";
    COUNT_FIRST_MIGRATIONS = "SELECT COUNT(*) FROM _sqlx_migrations WHERE version = 1 AND checksum = $1";
    FIND_DEPLOYMENT =
        "SELECT master_key_fingerprint, dev_since, quarantined_at, quarantine_reason FROM deployment WHERE id = 1";
    LIST_PREVIOUS_KEYS = "SELECT fingerprint FROM previous_master_keys ORDER BY fingerprint";
    SET_QUARANTINE = "UPDATE deployment SET quarantined_at = $1, quarantine_reason = $2 WHERE id = 1";
    SET_FIRST_QUARANTINE = "UPDATE deployment SET quarantined_at = $1, quarantine_reason = $2 WHERE id = 1 AND quarantined_at IS NULL";
    DISABLE_WAL = "PRAGMA journal_mode = DELETE";
}

/// Number of tables in [`COUNT_REQUIRED_TABLES`].
const REQUIRED_TABLES: i64 = 3;

/// Why a file is not a database that this program can serve.
#[derive(Debug, thiserror::Error)]
pub enum SqliteFileError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file does not start with the first bytes of every SQLite database.
    #[error("not an SQLite database")]
    NotSqlite,
    /// SQLite reports that the database is damaged.
    #[error("the database is damaged: {0}")]
    Damaged(String),
    /// The schema is not a schema of Countersign.
    #[error("not a database of Countersign: {0}")]
    Foreign(&'static str),
    /// The database has the schema, but not the row of a Countersign deployment.
    #[error("the database is empty: it contains no deployment")]
    Empty,
    /// The reason of the quarantine was introduced in a later version.
    #[error("the database is marked as `{0}`, which this version does not support: use a newer version")]
    UnknownQuarantine(String),
    /// The schema was created by a later version.
    #[error("the schema version is {found}, but this program supports versions up to {supported}: use a newer version")]
    NewerSchema {
        /// Schema version of the database.
        found: i64,
        /// Newest schema version that this program supports.
        supported: i64,
    },
    /// SQLite accepts paths in UTF-8 only.
    #[error("the path is not UTF-8")]
    Path,
    /// The driver or the engine returned an error.
    #[error("SQLite: {0}")]
    Engine(#[from] sqlx::Error),
}

impl SqliteFileError {
    /// Whether another process has the database open.
    pub fn is_busy(&self) -> bool {
        let Self::Engine(sqlx::Error::Database(error)) = self else { return false };
        error.code().is_some_and(|code| primary_code(&code) == SQLITE_BUSY)
    }
}

/// SQLite result code for a database that is locked by another connection.
const SQLITE_BUSY: &str = "5";

/// Properties of a valid database file.
#[derive(Debug)]
pub struct SqliteFileInfo {
    pub schema: i64,
    /// The Countersign deployment that the database belongs to.
    pub deployment: Deployment,
    /// The fingerprints of the previous master keys that the database still needs.
    pub previous_master_keys: Vec<String>,
    /// The quarantine mark, if the database must not be served.
    pub quarantine: Option<Quarantine>,
}

/// The first bytes of every SQLite database.
const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Copies a consistent snapshot of a database into an empty file, without blocking writers.
pub async fn copy(source: &Path, target: &Path) -> Result<(), SqliteFileError> {
    let target = target.to_str().ok_or(SqliteFileError::Path)?;
    let mut conn = options(source).read_only(true).connect().await?;
    sqlx::query(COPY_DATABASE).bind(target).execute(&mut conn).await?;
    Ok(conn.close().await?)
}

/// Validates the whole file of a database. No other process may have the file open.
pub async fn validate(file: &Path) -> Result<SqliteFileInfo, SqliteFileError> {
    let mut magic = [0; SQLITE_MAGIC.len()];
    let result = std::fs::File::open(file).and_then(|mut opened| io::Read::read_exact(&mut opened, &mut magic));
    match result {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(SqliteFileError::NotSqlite),
        result => result?,
    }
    if magic != *SQLITE_MAGIC {
        return Err(SqliteFileError::NotSqlite);
    }
    let result = async {
        let mut conn = connect(file).await?;
        let info = validate_connection(&mut conn).await?;
        conn.close().await?;
        Ok(info)
    };
    // Nobody else has the file open, so an error of the engine means that the file is damaged.
    result.await.map_err(|error| match error {
        SqliteFileError::Engine(sqlx::Error::Database(error)) => SqliteFileError::Damaged(error.message().to_owned()),
        error => error,
    })
}

async fn validate_connection(conn: &mut SqliteConnection) -> Result<SqliteFileInfo, SqliteFileError> {
    let integrity: String = sqlx::query_scalar(CHECK_INTEGRITY).fetch_one(&mut *conn).await?;
    if integrity != "ok" {
        return Err(SqliteFileError::Damaged(integrity.replace('\n', " ")));
    }
    if query_number(conn, COUNT_TRIGGERS_AND_VIEWS).await? > 0 {
        return Err(SqliteFileError::Foreign("it has triggers or views, which Countersign never creates"));
    }
    if query_number(conn, COUNT_REQUIRED_TABLES).await? < REQUIRED_TABLES {
        return Err(SqliteFileError::Foreign("the tables `deployment` and `feed` are missing"));
    }
    let first = sqlx::query_scalar::<_, i64>(COUNT_FIRST_MIGRATIONS).bind(schema::first_checksum());
    if first.fetch_one(&mut *conn).await? == 0 {
        return Err(SqliteFileError::Foreign("a program that was never released made its tables"));
    }
    let (schema, supported) = (query_number(conn, FIND_SCHEMA_VERSION).await?, schema::latest_version());
    if schema > supported {
        return Err(SqliteFileError::NewerSchema { found: schema, supported });
    }
    read_deployment(conn, schema).await
}

async fn read_deployment(conn: &mut SqliteConnection, schema: i64) -> Result<SqliteFileInfo, SqliteFileError> {
    let row = sqlx::query(FIND_DEPLOYMENT).fetch_optional(&mut *conn).await?.ok_or(SqliteFileError::Empty)?;
    let deployment = Deployment {
        master_key_fingerprint: row.try_get("master_key_fingerprint")?,
        dev_since: optional_timestamp(&row, "dev_since")?,
    };
    let reason: Option<String> = row.try_get("quarantine_reason")?;
    let quarantine = optional_timestamp(&row, "quarantined_at")?.zip(reason).map(|(at, reason)| {
        let reason = QuarantineReason::parse(&reason).ok_or(SqliteFileError::UnknownQuarantine(reason))?;
        Ok::<_, SqliteFileError>(Quarantine { reason, at })
    });
    let previous_master_keys = sqlx::query_scalar(LIST_PREVIOUS_KEYS).fetch_all(conn).await?;
    Ok(SqliteFileInfo { schema, deployment, previous_master_keys, quarantine: quarantine.transpose()? })
}

/// Sets the quarantine mark of a database that no other process has open. Does nothing if the database has a mark.
pub async fn set_file_quarantine(file: &Path, quarantine: Quarantine) -> Result<(), SqliteFileError> {
    let mut conn = connect(file).await?;
    let query = sqlx::query(SET_FIRST_QUARANTINE).bind(quarantine.at.micros()).bind(quarantine.reason.as_str());
    query.execute(&mut conn).await?;
    Ok(conn.close().await?)
}

/// Sets or removes the quarantine mark, on an open connection.
pub(super) async fn set_quarantine(
    conn: &mut SqliteConnection,
    quarantine: Option<Quarantine>,
) -> Result<(), SqliteFileError> {
    let (at, reason) = quarantine.map(|Quarantine { reason, at }| (at.micros(), reason.as_str())).unzip();
    sqlx::query(SET_QUARANTINE).bind(at).bind(reason).execute(conn).await?;
    Ok(())
}

/// Moves the content of the write-ahead log into the database file, so that the database file is complete. Fails if another
/// process has the database open.
pub async fn merge_wal(file: &Path) -> Result<(), SqliteFileError> {
    let mut conn = connect(file).await?;
    let mode: String = sqlx::query_scalar(DISABLE_WAL).fetch_one(&mut conn).await?;
    conn.close().await?;
    if mode == "delete" {
        Ok(())
    } else {
        Err(SqliteFileError::Damaged(format!("the journal mode cannot be changed from `{mode}`")))
    }
}

async fn connect(file: &Path) -> Result<SqliteConnection, SqliteFileError> {
    Ok(options(file).connect().await?)
}

/// Connects with an exclusive lock, from the first transaction until the connection is closed. The commits of the connection
/// survive a power failure.
pub(super) async fn connect_exclusive(file: &Path) -> Result<SqliteConnection, SqliteFileError> {
    let options = options(file).locking_mode(SqliteLockingMode::Exclusive).synchronous(SqliteSynchronous::Extra);
    Ok(options.connect().await?)
}

fn options(file: &Path) -> SqliteConnectOptions {
    // We want no warnings about slow statements, because these statements read whole databases.
    SqliteConnectOptions::new().filename(file).disable_statement_logging()
}

/// Runs a statement that returns one number; null is returned as 0.
async fn query_number(conn: &mut SqliteConnection, sql: &'static str) -> Result<i64, SqliteFileError> {
    Ok(sqlx::query_scalar::<_, Option<i64>>(sql).fetch_one(conn).await?.unwrap_or(0))
}

fn optional_timestamp(row: &SqliteRow, column: &str) -> Result<Option<Timestamp>, SqliteFileError> {
    Ok(row.try_get::<Option<i64>, _>(column)?.map(Timestamp::from_micros))
}
