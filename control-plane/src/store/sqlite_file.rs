//! The embedded database as a file: copied while it is served, and judged before it is put into place.
//!
//! On connections of their own, which take the time that it takes.

use super::{
    deployment::{Aside, Deployment, SetAside},
    failure::primary,
    schema,
};
use countersign_identity::Timestamp;
use sqlx::{
    ConnectOptions, Connection, Row, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteLockingMode, SqliteRow, SqliteSynchronous},
};
use std::{io, path::Path};

/// Why a file is no database that we could serve.
#[derive(Debug, thiserror::Error)]
pub enum Flaw {
    /// It cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Something else.
    #[error("it is no SQLite database")]
    Alien,
    /// A part of it is missing or changed.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// A database of somebody else.
    #[error("it is no database of Countersign: {0}")]
    Foreign(&'static str),
    /// Nothing is in it.
    #[error("it belongs to no deployment yet: nothing is in it")]
    Empty,
    /// A later version says why it must not be served.
    #[error("it is marked as `{0}`, which this program does not know: take a newer one")]
    Mark(String),
    /// It was written by a later version.
    #[error("its schema is at step {found}, and this program knows the steps up to {known}: take a newer one")]
    Newer {
        /// How far it has come.
        found: i64,
        /// How far we have.
        known: i64,
    },
    /// The path of a file that SQLite cannot be told.
    #[error("its path is no UTF-8")]
    Path,
    /// The driver or the engine says no.
    #[error("SQLite: {0}")]
    Engine(#[from] sqlx::Error),
}

impl Flaw {
    /// Whether somebody else has the database open.
    pub fn is_busy(&self) -> bool {
        let Self::Engine(sqlx::Error::Database(error)) = self else { return false };
        error.code().is_some_and(|code| primary(&code) == BUSY)
    }
}

/// What SQLite says when somebody else has it open.
const BUSY: &str = "5";

/// What was found in a file.
#[derive(Debug)]
pub struct Found {
    /// How far its schema has come.
    pub schema: i64,
    /// What it belongs to.
    pub deployment: Deployment,
    /// Why it must not be served as it is.
    pub set_aside: Option<SetAside>,
}

/// What every SQLite database begins with.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Copies a database, as it is in this moment, into an empty file. Whoever writes meanwhile is not held up.
pub async fn copy(source: &Path, target: &Path) -> Result<(), Flaw> {
    let target = target.to_str().ok_or(Flaw::Path)?;
    let mut conn = connect(source, true).await?;
    sqlx::query("VACUUM INTO $1").bind(target).execute(&mut conn).await?;
    Ok(conn.close().await?)
}

/// Looks at all of a file that nobody else has open.
pub async fn examine(file: &Path) -> Result<Found, Flaw> {
    let mut magic = [0; MAGIC.len()];
    let read = std::fs::File::open(file).and_then(|mut opened| io::Read::read_exact(&mut opened, &mut magic));
    match read {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(Flaw::Alien),
        read => read?,
    }
    if magic != *MAGIC {
        return Err(Flaw::Alien);
    }
    let found = async {
        let mut conn = connect(file, false).await?;
        let found = examine_open(&mut conn).await?;
        conn.close().await?;
        Ok(found)
    };
    // Whatever SQLite says of a file is about the file.
    found.await.map_err(|flaw| match flaw {
        Flaw::Engine(sqlx::Error::Database(error)) => Flaw::Damaged(error.message().to_owned()),
        flaw => flaw,
    })
}

async fn examine_open(conn: &mut SqliteConnection) -> Result<Found, Flaw> {
    let sound = sqlx::query("PRAGMA integrity_check(1)").fetch_one(&mut *conn).await?;
    let sound: String = sound.try_get(0)?;
    if sound != "ok" {
        return Err(Flaw::Damaged(sound.replace('\n', " ")));
    }
    if count(conn, "SELECT COUNT(*) FROM sqlite_master WHERE type IN ('trigger', 'view')").await? > 0 {
        return Err(Flaw::Foreign("it has triggers or views, and ours has none"));
    }
    let ours = "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name IN ('_sqlx_migrations', 'deployment', 'feed')";
    if count(conn, ours).await? < 3 {
        return Err(Flaw::Foreign("the tables `deployment` and `feed` are not in it"));
    }
    let (schema, known) = (count(conn, "SELECT MAX(version) FROM _sqlx_migrations").await?, schema::newest());
    if schema > known {
        return Err(Flaw::Newer { found: schema, known });
    }
    read_deployment(conn, schema).await
}

async fn read_deployment(conn: &mut SqliteConnection, schema: i64) -> Result<Found, Flaw> {
    // By the star: a schema of before has fewer columns.
    let row = sqlx::query("SELECT * FROM deployment WHERE id = 1").fetch_optional(conn).await?.ok_or(Flaw::Empty)?;
    let deployment = Deployment {
        master_key_fingerprint: row.try_get("master_key_fingerprint")?,
        dev_since: instant(&row, "dev_since")?,
    };
    let set_aside = match (instant(&row, "set_aside_at")?, row.try_get::<Option<String>, _>("set_aside_as")) {
        (Some(at), Ok(Some(kind))) => Some(SetAside { kind: Aside::parse(&kind).ok_or(Flaw::Mark(kind))?, at }),
        (Some(_) | None, _) => None,
    };
    Ok(Found { schema, deployment, set_aside })
}

/// Notes in a database that nobody else has open why it must not be served; one of a schema of before cannot say it.
pub async fn set_aside(file: &Path, set_aside: SetAside) -> Result<(), Flaw> {
    let mut conn = connect(file, false).await?;
    let can = "SELECT COUNT(*) FROM pragma_table_info('deployment') WHERE name = 'set_aside_at'";
    if count(&mut conn, can).await? == 1 {
        mark(&mut conn, Some(set_aside)).await?;
    }
    Ok(conn.close().await?)
}

/// The same, on a connection that is open; or takes it back.
pub(super) async fn mark(conn: &mut SqliteConnection, set_aside: Option<SetAside>) -> Result<(), Flaw> {
    let sql = "UPDATE deployment SET set_aside_at = $1, set_aside_as = $2 WHERE id = 1";
    let (at, kind) = (set_aside.map(|aside| aside.at.micros()), set_aside.map(|aside| aside.kind.as_str()));
    sqlx::query(sql).bind(at).bind(kind).execute(conn).await?;
    Ok(())
}

/// Puts all that belongs to a database into its one file; fails if anybody else has it open.
pub async fn gather(file: &Path) -> Result<(), Flaw> {
    let mut conn = connect(file, false).await?;
    let mode = sqlx::query("PRAGMA journal_mode = DELETE").fetch_one(&mut conn).await?;
    let mode: String = mode.try_get(0)?;
    conn.close().await?;
    if mode == "delete" { Ok(()) } else { Err(Flaw::Damaged(format!("its journal stays `{mode}`"))) }
}

async fn connect(file: &Path, read_only: bool) -> Result<SqliteConnection, Flaw> {
    Ok(options(file).read_only(read_only).connect().await?)
}

/// Keeps everybody else out, from its first transaction to its end and between two of them; and what is committed on it
/// outlives the power.
pub(super) async fn connect_alone(file: &Path) -> Result<SqliteConnection, Flaw> {
    let alone = options(file).locking_mode(SqliteLockingMode::Exclusive).synchronous(SqliteSynchronous::Extra);
    Ok(alone.connect().await?)
}

fn options(file: &Path) -> SqliteConnectOptions {
    // What takes long is no news here.
    SqliteConnectOptions::new().filename(file).disable_statement_logging()
}

async fn count(conn: &mut SqliteConnection, sql: &'static str) -> Result<i64, Flaw> {
    Ok(sqlx::query(sql).fetch_one(conn).await?.try_get::<Option<i64>, _>(0)?.unwrap_or(0))
}

fn instant(row: &SqliteRow, column: &str) -> Result<Option<Timestamp>, Flaw> {
    match row.try_get::<Option<i64>, _>(column) {
        Err(sqlx::Error::ColumnNotFound(_)) => Ok(None),
        found => Ok(found?.map(Timestamp::from_micros)),
    }
}
