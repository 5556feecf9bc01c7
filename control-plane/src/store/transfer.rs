//! Everything in the embedded database, copied to PostgreSQL and compared there.
//!
//! One transaction on each side, on connections of their own that take the time that it takes: whatever goes wrong, the
//! target is as empty as before. What there is to copy is asked of the database itself, so no table and no column can be
//! forgotten here. `tables` says which there are, `batch` carries rows, `digest` compares them.

mod batch;
mod digest;
mod tables;

use super::{
    deployment::{Aside, SetAside},
    schema::SCHEMA,
    sqlite_file::{self, Flaw},
};
use batch::Batch;
use countersign_identity::Timestamp;
use digest::Digest;
use futures_util::TryStreamExt;
use secrecy::{ExposeSecret, SecretString};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection, SqliteConnection, postgres::PgConnectOptions,
};
use std::{path::Path, str::FromStr};
use tables::Table;

/// Why nothing was moved.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The source cannot be read.
    #[error("the embedded database: {0}")]
    Source(#[from] Flaw),
    /// The target cannot be reached or says no.
    #[error("the target: {0}")]
    Target(#[from] sqlx::Error),
    /// The schema cannot be made there.
    #[error("the target: {0}")]
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
    /// What arrived is not what was sent.
    #[error("table `{0}` came to something else at the target: nothing was moved")]
    Differs(String),
    /// The answer to the commit did not come.
    #[error(
        "whether the target kept everything is not known, since it did not answer: look whether it is empty. The embedded \
         database is as it was, and good ({0})"
    )]
    Unknown(sqlx::Error),
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

/// Copies everything and compares it. Then the source is marked, so that nobody serves it any more.
pub async fn transfer(source: &Path, target: &SecretString, at: Timestamp) -> Result<Vec<Moved>, TransferError> {
    let mut from = sqlite_file::connect(source, false).await?;
    // Nobody else writes meanwhile, whoever it is.
    from.execute("BEGIN IMMEDIATE").await.map_err(Flaw::from)?;
    let tables = tables::of_source(&mut from).await?;
    let mut connection = connect(target).await?;
    let mut to = connection.begin().await?;
    prepare(&mut to, &tables).await?;
    let mut moved = Vec::new();
    for table in &tables {
        let sent = copy(&mut from, &mut to, table).await?;
        let arrived = read_back(&mut to, table).await?;
        if sent != arrived {
            return Err(TransferError::Differs(table.name.clone()));
        }
        moved.push(Moved { table: table.name.clone(), rows: sent.rows(), digest: sent.text() });
    }
    sqlite_file::mark(&mut from, SetAside { kind: Aside::Moved, at }).await?;
    to.commit().await.map_err(TransferError::Unknown)?;
    from.execute("COMMIT").await.map_err(Flaw::from)?;
    // It is done, whatever the ends say to that.
    let _ends = (connection.close().await, from.close().await);
    Ok(moved)
}

async fn connect(url: &SecretString) -> Result<PgConnection, TransferError> {
    let options = PgConnectOptions::from_str(url.expose_secret())?;
    let mut connection = options.disable_statement_logging().connect().await?;
    // It takes its time; and that something is there already is no news.
    let unlimited = "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; SET lock_timeout = '10s'; \
                     SET client_min_messages = warning";
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

/// Makes the schema, unless it is there, and keeps everybody else out until the end.
async fn prepare(to: &mut PgConnection, tables: &[Table]) -> Result<(), TransferError> {
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
            return Err(TransferError::Unfit(format!(
                "is not empty: there are rows in `{}`. Name an empty database",
                table.name
            )));
        }
    }
    Ok(())
}

async fn copy(from: &mut SqliteConnection, to: &mut PgConnection, table: &Table) -> Result<Digest, TransferError> {
    let wrong = |error| TransferError::Row { table: table.name.clone(), error };
    let (mut digest, mut batch) = (Digest::default(), Batch::of(table));
    let mut rows = sqlx::query(AssertSqlSafe(table.select())).fetch(from);
    while let Some(row) = rows.try_next().await.map_err(wrong)? {
        digest.add(&batch.push(&row).map_err(wrong)?);
        if batch.is_full() {
            batch.send(to).await.map_err(wrong)?;
        }
    }
    batch.send(to).await.map_err(wrong)?;
    Ok(digest)
}

async fn read_back(to: &mut PgConnection, table: &Table) -> Result<Digest, TransferError> {
    let wrong = |error| TransferError::Row { table: table.name.clone(), error };
    let mut digest = Digest::default();
    let mut rows = sqlx::query(AssertSqlSafe(table.select())).fetch(to);
    while let Some(row) = rows.try_next().await.map_err(wrong)? {
        digest.add(&batch::read(table, &row).map_err(wrong)?);
    }
    Ok(digest)
}
