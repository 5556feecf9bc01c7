//! The one row that says what this database belongs to.

use super::{Conn, StoreError, row};
use countersign_identity::Timestamp;
use sqlx::AnyConnection;

/// What a database remembers of its deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    /// Of the master key that seals private keys.
    pub master_key_fingerprint: String,
    /// Since when it is a development database; `None` for a real one.
    pub dev_since: Option<Timestamp>,
}

/// Why a database must not be served as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aside {
    /// It is a backup: what happened since is not in it.
    Backup,
    /// Everything in it is about to move to another database, or has: whoever was at it did not come to say which.
    Moving,
    /// Everything in it moved to another database.
    Moved,
}

impl Aside {
    /// As it is kept.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Backup => "backup",
            Self::Moving => "moving",
            Self::Moved => "moved",
        }
    }

    /// Reads what is kept.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Backup, Self::Moving, Self::Moved].into_iter().find(|kind| kind.as_str() == text)
    }
}

/// Why a database must not be served as it is, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetAside {
    /// Why.
    pub kind: Aside,
    /// Since when.
    pub at: Timestamp,
}

/// The deployment, if the database has one.
pub async fn find(conn: &mut Conn) -> Result<Option<Deployment>, StoreError> {
    let sql = "SELECT master_key_fingerprint, dev_since FROM deployment WHERE id = 1";
    let found = sqlx::query(sql).fetch_optional(conn).await?;
    found
        .map(|found| {
            Ok(Deployment {
                master_key_fingerprint: row::get(&found, "master_key_fingerprint")?,
                dev_since: row::optional_instant(&found, "dev_since")?,
            })
        })
        .transpose()
}

/// Of which master key the database is, before its schema is touched; `None` if there is none in it.
pub(super) async fn sealed_by(conn: &mut AnyConnection) -> Option<String> {
    let sql = "SELECT master_key_fingerprint FROM deployment WHERE id = 1";
    // An engine that says no has no such table yet.
    let found = sqlx::query(sql).fetch_optional(conn).await.ok().flatten()?;
    row::get(&found, "master_key_fingerprint").ok()
}

/// Makes the row at the birth of the deployment; false if there is one.
pub async fn create(conn: &mut Conn, deployment: &Deployment, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "INSERT INTO deployment (id, made_at, master_key_fingerprint, dev_since) VALUES (1, $1, $2, $3) ON CONFLICT (id) DO NOTHING";
    let made = sqlx::query(sql)
        .bind(now.micros())
        .bind(&deployment.master_key_fingerprint)
        .bind(deployment.dev_since.map(Timestamp::micros))
        .execute(conn)
        .await?;
    Ok(made.rows_affected() == 1)
}

/// Why the database must not be served as it is, if so.
pub async fn set_aside(conn: &mut Conn) -> Result<Option<SetAside>, StoreError> {
    let sql = "SELECT set_aside_at, set_aside_as FROM deployment WHERE id = 1 AND set_aside_at IS NOT NULL";
    let Some(found) = sqlx::query(sql).fetch_optional(conn).await? else { return Ok(None) };
    let kind = Aside::parse(&row::get::<String>(&found, "set_aside_as")?).ok_or(StoreError::Corrupt("set_aside_as"))?;
    Ok(Some(SetAside { kind, at: row::instant(&found, "set_aside_at")? }))
}

/// Lets the database be served again, wherever it is now.
pub async fn take_back(conn: &mut Conn) -> Result<(), StoreError> {
    sqlx::query("UPDATE deployment SET set_aside_at = NULL, set_aside_as = NULL, table_numbers = NULL WHERE id = 1")
        .execute(conn)
        .await?;
    Ok(())
}

/// How PostgreSQL numbered the tables when the deployment was last served there, if it was.
pub async fn table_numbers(conn: &mut Conn) -> Result<Option<String>, StoreError> {
    let found = sqlx::query("SELECT table_numbers FROM deployment WHERE id = 1").fetch_one(conn).await?;
    row::get(&found, "table_numbers")
}

/// Keeps how PostgreSQL numbers the tables.
pub async fn keep_table_numbers(conn: &mut Conn, numbers: &str) -> Result<(), StoreError> {
    sqlx::query("UPDATE deployment SET table_numbers = $1 WHERE id = 1").bind(numbers).execute(conn).await?;
    Ok(())
}

/// Locks the deployment until the transaction ends: whoever changes what there is once of goes first or after.
pub async fn lock(conn: &mut Conn) -> Result<(), StoreError> {
    let done = sqlx::query("UPDATE deployment SET made_at = made_at WHERE id = 1").execute(conn).await?;
    if done.rows_affected() == 1 { Ok(()) } else { Err(StoreError::Rows("deployment")) }
}
