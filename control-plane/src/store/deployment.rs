//! The single row of the table `deployment`: the identity of the Countersign deployment that the database belongs to.

use super::{Conn, Store, StoreError, WriteTransaction, feed, row, statements::statements};
use countersign_identity::{Timestamp, agent_hash::HASH_KEY_LEN};
use sqlx::AnyConnection;

statements! { STATEMENTS:
    FIND_DEPLOYMENT = "SELECT master_key_fingerprint, dev_since FROM deployment WHERE id = 1";
    FIND_MASTER_KEY_FINGERPRINT = "SELECT master_key_fingerprint FROM deployment WHERE id = 1";
    INSERT_DEPLOYMENT = "INSERT INTO deployment (id, created_at, master_key_fingerprint, dev_since) VALUES (1, $1, $2, $3) \
         ON CONFLICT (id) DO NOTHING";
    FIND_QUARANTINE = "SELECT quarantined_at, quarantine_reason FROM deployment WHERE id = 1 AND quarantined_at IS NOT NULL";
    LIFT_QUARANTINE =
        "UPDATE deployment SET quarantined_at = NULL, quarantine_reason = NULL, instance_fingerprint = NULL WHERE id = 1";
    FIND_INSTANCE_FINGERPRINT = "SELECT instance_fingerprint FROM deployment WHERE id = 1";
    SET_INSTANCE_FINGERPRINT = "UPDATE deployment SET instance_fingerprint = $1 WHERE id = 1";
    /// The secret never changes, because views of sidecars contain hashes under keys that are derived from it.
    SET_AGENT_HASH_SECRET = "UPDATE deployment SET agent_hash_secret = COALESCE(agent_hash_secret, $1) WHERE id = 1 \
         RETURNING agent_hash_secret";
    /// Writes a new value, because the databases can skip a change that changes nothing.
    RECORD_WRITE_CHECK = "UPDATE deployment SET write_checked_at = $1 WHERE id = 1";
    LOCK_DEPLOYMENT = "UPDATE deployment SET created_at = created_at WHERE id = 1";
}

/// The identity of a Countersign deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    /// Fingerprint of the master key, which encrypts the private keys in the database.
    pub master_key_fingerprint: String,
    /// Time at which `--dev` created the database; `None` for a production database.
    pub dev_since: Option<Timestamp>,
}

/// Writes the time of a check whether the database accepts writes.
pub async fn record_write_check(conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
    sqlx::query(RECORD_WRITE_CHECK).bind(now.micros()).execute(conn).await?;
    Ok(())
}

/// Finds the row of the Countersign deployment in the database, or inserts `new` if there is no such row.
pub async fn find_or_create(store: &Store, new: &Deployment) -> Result<Deployment, StoreError> {
    let work = async |mut tx: WriteTransaction| {
        if let Some(existing) = find(tx.conn()).await? {
            return tx.commit(existing).await;
        }
        let now = tx.now();
        if !insert(tx.conn(), new, now).await? {
            // Another replica has inserted the row of the Countersign deployment after this transaction searched for the
            // row.
            let existing = find(tx.conn()).await?.ok_or(StoreError::UnexpectedRowCount("deployment"))?;
            return tx.commit(existing).await;
        }
        feed::create_position(tx.conn(), now).await?;
        tx.commit(new.clone()).await
    };
    store.write("find_or_create_deployment", work).await
}

/// Why a database must not be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuarantineReason {
    /// The database is a backup, so later changes are missing.
    Backup,
    /// A migration to PostgreSQL was started, and its outcome is not recorded.
    Migrating,
    /// The database was migrated to PostgreSQL.
    Migrated,
}

impl QuarantineReason {
    /// The quarantine reason as stored in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Backup => "backup",
            Self::Migrating => "migrating",
            Self::Migrated => "migrated",
        }
    }

    /// The inverse of [`Self::as_str`].
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Backup, Self::Migrating, Self::Migrated].into_iter().find(|reason| reason.as_str() == text)
    }
}

/// The quarantine mark of a database that must not be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quarantine {
    /// Why the database must not be served.
    pub reason: QuarantineReason,
    /// When the quarantine mark was set.
    pub at: Timestamp,
}

/// Finds the row of the Countersign deployment; `None` in a new database.
pub async fn find(conn: &mut Conn) -> Result<Option<Deployment>, StoreError> {
    let row = sqlx::query(FIND_DEPLOYMENT).fetch_optional(conn).await?;
    let deployment_from_row = |row| {
        Ok(Deployment {
            master_key_fingerprint: row::get(&row, "master_key_fingerprint")?,
            dev_since: row::optional_timestamp(&row, "dev_since")?,
        })
    };
    row.map(deployment_from_row).transpose()
}

/// Finds the fingerprint of the master key, before the migrations run; `None` in a new database.
pub(super) async fn find_master_key_fingerprint(conn: &mut AnyConnection) -> Option<String> {
    // A new database does not have the table `deployment`. An error about a missing table means that there is no fingerprint.
    let row = sqlx::query(FIND_MASTER_KEY_FINGERPRINT).fetch_optional(conn).await.ok().flatten()?;
    row::get(&row, "master_key_fingerprint").ok()
}

/// Inserts the row of the Countersign deployment. Returns false if the database already has this row.
pub async fn insert(conn: &mut Conn, deployment: &Deployment, now: Timestamp) -> Result<bool, StoreError> {
    let result = sqlx::query(INSERT_DEPLOYMENT)
        .bind(now.micros())
        .bind(&deployment.master_key_fingerprint)
        .bind(deployment.dev_since.map(Timestamp::micros))
        .execute(conn)
        .await?;
    Ok(result.rows_affected() == 1)
}

/// Finds the quarantine mark; `None` if the database may be served.
pub async fn find_quarantine(conn: &mut Conn) -> Result<Option<Quarantine>, StoreError> {
    let Some(row) = sqlx::query(FIND_QUARANTINE).fetch_optional(conn).await? else { return Ok(None) };
    let reason = QuarantineReason::parse(&row::get::<String>(&row, "quarantine_reason")?);
    let reason = reason.ok_or(StoreError::Corrupt("quarantine_reason"))?;
    Ok(Some(Quarantine { reason, at: row::timestamp(&row, "quarantined_at")? }))
}

/// Removes the quarantine mark and the fingerprint of the PostgreSQL instance, so that the current instance can serve the
/// database.
pub async fn lift_quarantine(conn: &mut Conn) -> Result<(), StoreError> {
    sqlx::query(LIFT_QUARANTINE).execute(conn).await?;
    Ok(())
}

/// Finds the fingerprint of the PostgreSQL instance that last served the Countersign deployment, from
/// [`postgres::instance_fingerprint`](super::postgres::instance_fingerprint); `None` if no PostgreSQL instance served the
/// deployment.
pub async fn find_instance_fingerprint(conn: &mut Conn) -> Result<Option<String>, StoreError> {
    row::get(&sqlx::query(FIND_INSTANCE_FINGERPRINT).fetch_one(conn).await?, "instance_fingerprint")
}

/// Sets the fingerprint of the PostgreSQL instance that serves the Countersign deployment.
pub async fn set_instance_fingerprint(conn: &mut Conn, fingerprint: &str) -> Result<(), StoreError> {
    sqlx::query(SET_INSTANCE_FINGERPRINT).bind(fingerprint).execute(conn).await?;
    Ok(())
}

/// Sets the secret from which the keys of agent hashes are derived, unless it is set. Returns the secret of the deployment.
pub async fn set_agent_hash_secret(
    conn: &mut Conn,
    generated: &[u8; HASH_KEY_LEN],
) -> Result<[u8; HASH_KEY_LEN], StoreError> {
    let row = sqlx::query(SET_AGENT_HASH_SECRET).bind(hex::encode(generated)).fetch_one(conn).await?;
    let mut secret = [0; HASH_KEY_LEN];
    let text: String = row::get(&row, "agent_hash_secret")?;
    hex::decode_to_slice(text, &mut secret).map_err(|_| StoreError::Corrupt("agent_hash_secret"))?;
    Ok(secret)
}

/// Locks the row of the Countersign deployment until the transaction ends. The lock serializes changes to objects that exist
/// once per Countersign deployment, such as the key ring.
pub async fn lock(conn: &mut Conn) -> Result<(), StoreError> {
    let result = sqlx::query(LOCK_DEPLOYMENT).execute(conn).await?;
    if result.rows_affected() == 1 { Ok(()) } else { Err(StoreError::UnexpectedRowCount("deployment")) }
}
