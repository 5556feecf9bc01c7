//! Everything in the embedded database, copied to PostgreSQL and compared there.
//!
//! One transaction at the target, on a connection of its own that takes the time that it takes: whatever goes wrong, it is as
//! empty as before. What there is to copy is asked of the database itself, so no table and no column can be forgotten
//! here. `tables` says which there are, `batch` carries rows, `digest` compares them.
//!
//! **At most one of the two can be served**, in whatever moment this process is killed, since the source is marked *before*
//! the target commits, and nobody serves a database with a mark:
//!
//! | Killed | Source | Target |
//! |---|---|---|
//! | before the source is marked as `moving`: its transaction is undone | as it was | empty |
//! | after that, before the target is told to commit | `moving` | empty |
//! | before the target answers | `moving` | empty or whole |
//! | after it said yes | `moving` | whole |
//! | after it said no, before the mark of before is put back | `moving` | empty |
//! | after the source is marked as `moved` | `moved` | whole |
//!
//! A mark is put back only where the target says that its transaction came to nothing, and it is the one of before: another
//! target may hold everything since an earlier move that was interrupted. Nobody else reads or writes the source from its first
//! transaction on, so what is marked is what was copied. A move goes on from `moving` into an empty target, or finds everything
//! there.

mod batch;
mod digest;
mod tables;

use super::{
    deployment::{Aside, SetAside},
    failure::{advice, advice_on_step},
    schema::SCHEMA,
    sqlite_file::{self, Flaw},
};
use batch::Batch;
use countersign_identity::Timestamp;
use digest::Digest;
use futures_util::{Stream, StreamExt, TryStreamExt};
use secrecy::{ExposeSecret, SecretString};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection, SqliteConnection, postgres::PgConnectOptions,
};
use std::{path::Path, pin::pin, str::FromStr};
use tables::Table;

/// Why nothing was moved.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The source cannot be read.
    #[error("the embedded database: {0}")]
    Source(#[from] Flaw),
    /// The target cannot be reached or says no.
    #[error("the target: {0}{advice}", advice = advice(.0))]
    Target(#[from] sqlx::Error),
    /// The schema cannot be made there.
    #[error("the target: {0}{advice}", advice = advice_on_step(.0))]
    Schema(#[from] sqlx::migrate::MigrateError),
    /// It is not what can be copied to.
    #[error("the target {0}")]
    Unfit(String),
    /// A row that cannot be copied.
    #[error("table `{table}`: {error}")]
    Row {
        /// Where it is.
        table: String,
        /// What the engine says.
        error: sqlx::Error,
    },
    /// A text that the target cannot hold.
    #[error(
        "PostgreSQL cannot hold the character NUL, and there is one in column `{column}` of table `{table}`, where {row}: take \
         it out of the embedded database, and run this again"
    )]
    Nul {
        /// Where it is.
        table: String,
        /// In which column.
        column: String,
        /// In which row, by its primary key.
        row: String,
    },
    /// What arrived is not what was sent.
    #[error("table `{0}` came to something else at the target: nothing was moved")]
    Differs(String),
    /// What is there is not what is here.
    #[error(
        "the target is not empty, and table `{0}` is not the same there as here. If a control plane served there since the move \
         that was interrupted, everything is there: leave database.url at it. If not, name an empty database"
    )]
    WentOn(String),
    /// The answer to the commit did not come.
    #[error(
        "whether the target kept everything is not known, since it did not answer ({0}). Until it is, nobody serves the \
         embedded database: run this again, with the same target"
    )]
    Unknown(sqlx::Error),
    /// The target has everything, and the source does not say so.
    #[error(
        "everything is at the target, only the embedded database could not be marked as moved ({0}). Nobody serves it all the \
         same, since it is marked as moving: set database.url to the target"
    )]
    Unmarked(Flaw),
}

impl TransferError {
    fn row(table: &Table) -> impl Fn(sqlx::Error) -> Self + Copy {
        move |error| Self::Row { table: table.name.clone(), error }
    }

    fn occupied(table: &Table) -> Self {
        Self::Unfit(format!("is not empty: there are rows in `{}`. Name an empty database", table.name))
    }
}

/// A table that is the same on both sides.
#[derive(Debug)]
pub struct Moved {
    /// Its name.
    pub table: String,
    /// How many rows it has.
    pub rows: u64,
    /// What they come to, in whatever order.
    pub digest: String,
}

impl Moved {
    fn new(table: &Table, digest: &Digest) -> Self {
        Self { table: table.name.clone(), rows: digest.rows(), digest: digest.text() }
    }
}

/// What is at the target.
#[derive(Debug)]
pub struct Arrived {
    /// All tables, each the same there as here.
    pub tables: Vec<Moved>,
    /// Whether a move that was interrupted had brought them there.
    pub was_there: bool,
    /// Whether there was such a move.
    pub went_on: bool,
}

/// Copies everything in a database, which has this mark or none, and compares it; or finds it there. Then the source is
/// marked, so that nobody serves it any more.
pub async fn transfer(
    (source, before): (&Path, Option<SetAside>),
    target: &SecretString,
    at: Timestamp,
) -> Result<Arrived, TransferError> {
    let mut from = sqlite_file::connect_alone(source).await?;
    from.execute("BEGIN IMMEDIATE").await.map_err(Flaw::from)?;
    let went_on = before.is_some();
    // What is copied has no mark. Here it still has it, unless this transaction comes to its end.
    sqlite_file::mark(&mut from, None).await?;
    let tables = tables::of_source(&mut from).await?;
    let mut connection = connect(target).await?;
    let mut to = connection.begin().await?;
    let occupied = prepare(&mut to, &tables).await?;
    if let (Some(table), false) = (occupied, went_on) {
        return Err(TransferError::occupied(table));
    }
    let moved = compare_all((&mut from, &mut to), &tables, occupied.is_none()).await?;
    let number: String = sqlx::query_scalar(NUMBER).fetch_one(&mut *to).await?;
    sqlite_file::mark(&mut from, Some(SetAside { kind: Aside::Moving, at })).await?;
    from.execute("COMMIT").await.map_err(Flaw::from)?;
    if let Err(error) = to.commit().await {
        let undone = was_undone(&mut connection, &number).await && sqlite_file::mark(&mut from, before).await.is_ok();
        return Err(if undone { error.into() } else { TransferError::Unknown(error) });
    }
    sqlite_file::mark(&mut from, Some(SetAside { kind: Aside::Moved, at })).await.map_err(TransferError::Unmarked)?;
    // It is done, whatever the ends say to that.
    let _ends = (connection.close().await, from.close().await);
    Ok(Arrived { tables: moved, was_there: occupied.is_some(), went_on })
}

/// What the server calls the transaction.
const NUMBER: &str = "SELECT CAST(pg_current_xact_id() AS TEXT)";

/// Whether the server says that a transaction came to nothing. The error of its commit does not tell: whatever stands between
/// may have said that, of a commit that was made.
async fn was_undone(connection: &mut PgConnection, number: &str) -> bool {
    let ask = sqlx::query_scalar("SELECT pg_xact_status(CAST($1 AS xid8))").bind(number);
    let status: Result<Option<String>, _> = ask.fetch_one(connection).await;
    status.is_ok_and(|status| status.as_deref() == Some("aborted"))
}

async fn connect(url: &SecretString) -> Result<PgConnection, TransferError> {
    let options = PgConnectOptions::from_str(url.expose_secret())?;
    let mut connection = options.disable_statement_logging().connect().await?;
    // It takes its time; and that something is there already is no news, or that what a refused commit ended has ended.
    let unlimited = "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; SET lock_timeout = '10s'; \
                     SET client_min_messages = error";
    connection.execute(unlimited).await?;
    let ask = "SELECT current_setting('server_encoding'), pg_is_in_recovery()";
    let (encoding, follows): (String, bool) = sqlx::query_as(ask).fetch_one(&mut connection).await?;
    if encoding != "UTF8" {
        return Err(TransferError::Unfit(format!("has the encoding {encoding}: make a database with UTF8")));
    }
    if follows {
        return Err(TransferError::Unfit("only follows another server: name the primary".to_owned()));
    }
    Ok(connection)
}

/// Makes the schema, unless it is there, and keeps everybody else out until the end. Gives a table that has rows, if any has.
async fn prepare<'t>(to: &mut PgConnection, tables: &'t [Table]) -> Result<Option<&'t Table>, TransferError> {
    tables::refuse_others(to, tables).await?;
    SCHEMA.run(&mut *to).await?;
    for table in tables {
        tables::compare(to, table).await?;
    }
    let names: Vec<_> = tables.iter().map(Table::quoted).collect();
    to.execute(AssertSqlSafe(format!("LOCK TABLE {} IN EXCLUSIVE MODE", names.join(", ")))).await?;
    for table in tables {
        let any = format!("SELECT 1 FROM {} LIMIT 1", table.quoted());
        if to.fetch_optional(AssertSqlSafe(any)).await?.is_some() {
            return Ok(Some(table));
        }
    }
    Ok(None)
}

/// Compares all tables, once they are copied if they are to be.
async fn compare_all(
    (from, to): (&mut SqliteConnection, &mut PgConnection),
    tables: &[Table],
    copies: bool,
) -> Result<Vec<Moved>, TransferError> {
    let mut moved = Vec::new();
    for table in tables {
        let here = if copies { copy(from, to, table).await? } else { read_here(from, table).await? };
        if here != read_back(to, table).await? {
            let name = table.name.clone();
            return Err(if copies { TransferError::Differs(name) } else { TransferError::WentOn(name) });
        }
        moved.push(Moved::new(table, &here));
    }
    Ok(moved)
}

async fn copy(from: &mut SqliteConnection, to: &mut PgConnection, table: &Table) -> Result<Digest, TransferError> {
    let wrong = TransferError::row(table);
    let (mut digest, mut batch) = (Digest::default(), Batch::of(table));
    let mut rows = sqlx::query(AssertSqlSafe(table.select())).fetch(from);
    while let Some(row) = rows.try_next().await.map_err(wrong)? {
        let fields = batch.push(&row).map_err(wrong)?;
        table.refuse_nul(&fields)?;
        digest.add(&fields);
        if batch.is_full() {
            batch.send(to).await.map_err(wrong)?;
        }
    }
    batch.send(to).await.map_err(wrong)?;
    Ok(digest)
}

async fn read_back(to: &mut PgConnection, table: &Table) -> Result<Digest, TransferError> {
    let rows = sqlx::query(AssertSqlSafe(table.select())).fetch(to);
    sum_up(table, rows.map(|row| batch::read(table, &row?))).await
}

async fn read_here(from: &mut SqliteConnection, table: &Table) -> Result<Digest, TransferError> {
    let rows = sqlx::query(AssertSqlSafe(table.select())).fetch(from);
    sum_up(table, rows.map(|row| batch::read(table, &row?))).await
}

async fn sum_up(
    table: &Table,
    rows: impl Stream<Item = Result<Vec<Option<String>>, sqlx::Error>>,
) -> Result<Digest, TransferError> {
    let (mut rows, mut digest) = (pin!(rows), Digest::default());
    while let Some(fields) = rows.try_next().await.map_err(TransferError::row(table))? {
        digest.add(&fields);
    }
    Ok(digest)
}
