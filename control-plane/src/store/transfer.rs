//! Copies an SQLite database to PostgreSQL and compares the two.
//!
//! All tables are copied in one transaction on the target, on a connection without timeouts. If the copy fails, the target
//! stays empty. The tables and columns are read from the catalog of the source, so the copy is complete by construction.
//! `tables` reads the catalog, `batch` copies rows, `digest` compares rows.
//!
//! **At most one of the two databases can be served**, even if this process is killed at any time. We quarantine the source *before*
//! the target commits, and no control plane serves a quarantined database:
//!
//! | Process is killed | Source | Target |
//! |---|---|---|
//! | before the source is marked `migrating` (its transaction rolls back) | unchanged | empty |
//! | before the commit is sent to the target | `migrating` | empty |
//! | before the target responds to the commit | `migrating` | empty or complete |
//! | after the target confirms the commit | `migrating` | complete |
//! | after the target refuses the commit, before the mark is restored | `migrating` | empty |
//! | after the source is marked `migrated` | `migrated` | complete |
//!
//! After a failed commit, we restore the previous quarantine mark of the source, but only if the target reports that its transaction
//! was aborted. Just removing the mark would be wrong, because an earlier, interrupted migration may have completed another target.
//! We lock the source exclusively from the first transaction on, so that it does not change between the copy and the mark. If the
//! source has the mark `migrating`, the migration resumes: it copies into an empty target, or verifies a complete one.

mod batch;
mod digest;
mod tables;

use super::{
    deployment::{Quarantine, QuarantineReason},
    failure::{advice, migration_advice},
    schema::MIGRATIONS,
    sqlite_file::{self, SqliteFileError},
    statements::statements,
};
use batch::Batch;
use countersign_identity::Timestamp;
use digest::TableDigest;
use futures_util::{Stream, StreamExt, TryStreamExt};
use secrecy::{ExposeSecret, SecretString};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection, SqliteConnection, postgres::PgConnectOptions,
};
use std::{path::Path, pin::pin, str::FromStr};
use tables::Table;
#[cfg(test)]
pub(super) use tables::statements_of_table;

statements! { SQLITE_STATEMENTS:
    BEGIN = "BEGIN IMMEDIATE";
    COMMIT = "COMMIT";
}

statements! { POSTGRES_STATEMENTS:
    TRANSACTION_ID = "SELECT CAST(pg_current_xact_id() AS TEXT)";
    TRANSACTION_STATUS = "SELECT pg_xact_status(CAST($1 AS xid8))";
    SET_STATEMENT_TIMEOUT = "SET statement_timeout = 0";
    SET_IDLE_TIMEOUT = "SET idle_in_transaction_session_timeout = 0";
    SET_LOCK_TIMEOUT = "SET lock_timeout = '10s'";
    /// Suppresses PostgreSQL's notices that a table or an index already exists, and warnings about the transaction after a
    /// refused commit.
    SET_CLIENT_MIN_MESSAGES = "SET client_min_messages = error";
    SERVER_PROPERTIES = "SELECT current_setting('server_encoding'), pg_is_in_recovery()";
}

/// Statements that read the catalogs of source and target.
#[cfg(test)]
pub(super) use tables::{POSTGRES_STATEMENTS as POSTGRES_CATALOG, SQLITE_STATEMENTS as SQLITE_CATALOG};

/// Why a migration to PostgreSQL failed.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The source cannot be read.
    #[error("the embedded database: {0}")]
    Source(#[from] SqliteFileError),
    /// The target cannot be reached or returned an error.
    #[error("the target: {0}{advice}", advice = advice(.0))]
    Target(#[from] sqlx::Error),
    /// The schema cannot be created in the target.
    #[error("the target: {0}{advice}", advice = migration_advice(.0))]
    Schema(#[from] sqlx::migrate::MigrateError),
    /// The target cannot be used for a migration.
    #[error("the target {0}")]
    Unsuitable(String),
    /// A row cannot be copied.
    #[error("table `{table}`: {error}")]
    Row { table: String, error: sqlx::Error },
    /// A text contains the character NUL, which PostgreSQL cannot store.
    #[error(
        "PostgreSQL cannot store the character NUL, which is in column `{column}` of table `{table}`, where {row}: remove it \
         from the embedded database and run this command again"
    )]
    Nul {
        table: String,
        column: String,
        /// Primary key of the row.
        row: String,
    },
    /// A table differs after it was copied.
    #[error("table `{0}` differs in the target after the copy: nothing was migrated")]
    CopyDiffers(String),
    /// The target of a resumed migration is neither empty nor equal to the source.
    #[error(
        "the target is not empty, and its table `{0}` differs from the embedded database. If a control plane served the target \
         after the interrupted migration, the target is complete: keep database.url set to it. If not, name an empty database"
    )]
    TargetDiffers(String),
    /// The target did not respond to the commit.
    #[error(
        "it is unknown whether the target committed, because it did not respond ({0}). The embedded database is not served until \
         this is known: run this command again with the same target"
    )]
    UnknownOutcome(sqlx::Error),
    /// The target is complete, but the source is not marked as migrated.
    #[error(
        "the target is complete, but the embedded database could not be marked as migrated ({0}). It is marked as migrating, so \
         it is not served either: set database.url to the target"
    )]
    Unmarked(SqliteFileError),
}

impl TransferError {
    fn row_error(table: &Table) -> impl Fn(sqlx::Error) -> Self + Copy {
        move |error| Self::Row { table: table.name.clone(), error }
    }
}

/// A table that is equal in source and target.
#[derive(Debug)]
pub struct TransferredTable {
    pub table: String,
    pub rows: u64,
    /// Digest of the rows, hex; independent of their order.
    pub digest: String,
}

/// The result of a completed transfer.
#[derive(Debug)]
pub struct TransferResult {
    /// All tables, each equal in source and target.
    pub tables: Vec<TransferredTable>,
    /// Whether an interrupted migration had already copied the tables.
    pub already_copied: bool,
    /// Whether this run resumed an interrupted migration.
    pub resumed: bool,
}

/// Copies a database and compares the copy, or verifies the copy of an interrupted migration. After a successful comparison,
/// marks the source as migrated. `previous_mark` is the quarantine mark of the source, if any. The caller accepts only `migrating`.
pub async fn transfer(
    source: &Path,
    previous_mark: Option<Quarantine>,
    target: &SecretString,
    at: Timestamp,
) -> Result<TransferResult, TransferError> {
    let mut from = sqlite_file::connect_exclusive(source).await?;
    from.execute(BEGIN).await.map_err(SqliteFileError::from)?;
    let resumed = previous_mark.is_some();
    // We copy the rows without the quarantine mark. The source keeps its mark until the transaction on the source commits.
    sqlite_file::set_quarantine(&mut from, None).await?;
    let tables = tables::read_source_tables(&mut from).await?;
    let mut connection = connect(target).await?;
    let mut to = connection.begin().await?;
    let non_empty_table = prepare_target(&mut to, &tables).await?;
    if let (Some(table), false) = (non_empty_table, resumed) {
        let problem = format!("is not empty: there are rows in `{}`. Name an empty database", table.name);
        return Err(TransferError::Unsuitable(problem));
    }
    let transferred = compare_all(&mut from, &mut to, &tables, non_empty_table.is_none()).await?;
    let transaction: String = sqlx::query_scalar(TRANSACTION_ID).fetch_one(&mut *to).await?;
    sqlite_file::set_quarantine(&mut from, Some(Quarantine { reason: QuarantineReason::Migrating, at })).await?;
    from.execute(COMMIT).await.map_err(SqliteFileError::from)?;
    if let Err(error) = to.commit().await {
        let restored = was_aborted(&mut connection, &transaction).await
            && sqlite_file::set_quarantine(&mut from, previous_mark).await.is_ok();
        return Err(if restored { error.into() } else { TransferError::UnknownOutcome(error) });
    }
    let mark = Quarantine { reason: QuarantineReason::Migrated, at };
    sqlite_file::set_quarantine(&mut from, Some(mark)).await.map_err(TransferError::Unmarked)?;
    // Both databases have committed, so errors while closing the connections do not matter.
    let _ignored = (connection.close().await, from.close().await);
    Ok(TransferResult { tables: transferred, already_copied: non_empty_table.is_some(), resumed })
}

/// Whether the server reports a transaction as aborted. An error of the commit does not prove it: a proxy may return an error
/// although the commit succeeded.
async fn was_aborted(connection: &mut PgConnection, transaction: &str) -> bool {
    let query = sqlx::query_scalar(TRANSACTION_STATUS).bind(transaction);
    let status: Result<Option<String>, _> = query.fetch_one(connection).await;
    status.is_ok_and(|status| status.as_deref() == Some("aborted"))
}

async fn connect(url: &SecretString) -> Result<PgConnection, TransferError> {
    let options = PgConnectOptions::from_str(url.expose_secret())?;
    let mut connection = options.disable_statement_logging().connect().await?;
    for setting in [SET_STATEMENT_TIMEOUT, SET_IDLE_TIMEOUT, SET_LOCK_TIMEOUT, SET_CLIENT_MIN_MESSAGES] {
        connection.execute(setting).await?;
    }
    let (encoding, is_standby): (String, bool) = sqlx::query_as(SERVER_PROPERTIES).fetch_one(&mut connection).await?;
    if encoding != "UTF8" {
        return Err(TransferError::Unsuitable(format!("has the encoding {encoding}: create a database with UTF8")));
    }
    if is_standby {
        return Err(TransferError::Unsuitable("is a standby: name the primary".to_owned()));
    }
    Ok(connection)
}

/// Creates the schema if it is missing, and locks all tables until the transaction ends. Returns a table that has rows, if any.
async fn prepare_target<'t>(to: &mut PgConnection, tables: &'t [Table]) -> Result<Option<&'t Table>, TransferError> {
    tables::refuse_foreign_tables(to, tables).await?;
    MIGRATIONS.run(&mut *to).await?;
    for table in tables {
        tables::compare_columns(to, table).await?;
    }
    to.execute(AssertSqlSafe(tables::lock_statement(tables))).await?;
    for table in tables {
        if to.fetch_optional(AssertSqlSafe(table.any_row_statement())).await?.is_some() {
            return Ok(Some(table));
        }
    }
    Ok(None)
}

/// Compares all tables. If `copy_first` is set, copies the tables before the comparison.
async fn compare_all(
    from: &mut SqliteConnection,
    to: &mut PgConnection,
    tables: &[Table],
    copy_first: bool,
) -> Result<Vec<TransferredTable>, TransferError> {
    let mut transferred = Vec::new();
    for table in tables {
        let source = if copy_first { copy_table(from, to, table).await? } else { digest_source(from, table).await? };
        if source != digest_target(to, table).await? {
            let name = table.name.clone();
            return Err(if copy_first { TransferError::CopyDiffers(name) } else { TransferError::TargetDiffers(name) });
        }
        let (rows, digest) = (source.rows(), source.to_hex());
        transferred.push(TransferredTable { table: table.name.clone(), rows, digest });
    }
    Ok(transferred)
}

async fn copy_table(
    from: &mut SqliteConnection,
    to: &mut PgConnection,
    table: &Table,
) -> Result<TableDigest, TransferError> {
    let error = TransferError::row_error(table);
    let (mut digest, mut batch) = (TableDigest::default(), Batch::new(table));
    let mut rows = sqlx::query(AssertSqlSafe(table.select_statement())).fetch(from);
    while let Some(row) = rows.try_next().await.map_err(error)? {
        let fields = batch.push(&row).map_err(error)?;
        table.refuse_nul(&fields)?;
        digest.add(&fields);
        if batch.is_full() {
            batch.send(to).await.map_err(error)?;
        }
    }
    batch.send(to).await.map_err(error)?;
    Ok(digest)
}

async fn digest_target(to: &mut PgConnection, table: &Table) -> Result<TableDigest, TransferError> {
    let rows = sqlx::query(AssertSqlSafe(table.select_statement())).fetch(to);
    digest_rows(table, rows.map(|row| batch::fields_from_row(table, &row?))).await
}

async fn digest_source(from: &mut SqliteConnection, table: &Table) -> Result<TableDigest, TransferError> {
    let rows = sqlx::query(AssertSqlSafe(table.select_statement())).fetch(from);
    digest_rows(table, rows.map(|row| batch::fields_from_row(table, &row?))).await
}

async fn digest_rows(
    table: &Table,
    rows: impl Stream<Item = Result<Vec<Option<String>>, sqlx::Error>>,
) -> Result<TableDigest, TransferError> {
    let (mut rows, mut digest) = (pin!(rows), TableDigest::default());
    while let Some(fields) = rows.try_next().await.map_err(TransferError::row_error(table))? {
        digest.add(&fields);
    }
    Ok(digest)
}
