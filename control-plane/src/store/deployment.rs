//! The single row of the table `deployment`: the identity of the Countersign deployment that the database belongs to.

use super::{Conn, Store, StoreError, WriteTransaction, feed, query::params, row, statements::statements};
use crate::domain::string_enum::string_enum;
use countersign_identity::{Timestamp, agent_hash::HASH_KEY_LEN};
use sqlx::{AnyConnection, any::AnyRow};

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
    /// Sets the secret only once: views of sidecars contain hashes under keys that are derived from it.
    SET_AGENT_HASH_SECRET = "UPDATE deployment SET agent_hash_secret = COALESCE(agent_hash_secret, $1) WHERE id = 1 \
         RETURNING agent_hash_secret";
    /// Writes another value each time, because the databases can skip a change that changes nothing.
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
    conn.apply(RECORD_WRITE_CHECK, params![now]).await
}

/// Finds the row of the Countersign deployment in the database, or inserts `new` if there is no such row.
pub async fn find_or_create(store: &Store, new: &Deployment) -> Result<Deployment, StoreError> {
    let work = async |mut tx: WriteTransaction| {
        if let Some(existing) = find(tx.conn()).await? {
            return tx.commit(existing).await;
        }
        let now = tx.now();
        if insert(tx.conn(), new, now).await? {
            feed::create_position(tx.conn(), now).await?;
        }
        // Another replica may have inserted the row since we searched for it.
        let found = find(tx.conn()).await?.ok_or(StoreError::UnexpectedRowCount("deployment"))?;
        tx.commit(found).await
    };
    store.write("find_or_create_deployment", work).await
}

string_enum! {
    /// Why a database must not be served.
    QuarantineReason {
        /// The database is a backup, so it lacks later changes.
        Backup = "backup";
        /// A migration to PostgreSQL was started, and its outcome is not recorded.
        Migrating = "migrating";
        /// The database was migrated to PostgreSQL.
        Migrated = "migrated";
    }
}

/// The quarantine mark of a database that must not be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quarantine {
    pub reason: QuarantineReason,
    pub at: Timestamp,
}

/// Finds the row of the Countersign deployment; `None` in a new database.
pub async fn find(conn: &mut Conn) -> Result<Option<Deployment>, StoreError> {
    let deployment_from_row = |row: &AnyRow| {
        Ok(Deployment {
            master_key_fingerprint: row::get(row, "master_key_fingerprint")?,
            dev_since: row::optional_timestamp(row, "dev_since")?,
        })
    };
    conn.find_row(FIND_DEPLOYMENT, params![], deployment_from_row).await
}

/// Finds the fingerprint of the master key, before the migrations run; `None` in a new database.
pub(super) async fn find_master_key_fingerprint(conn: &mut AnyConnection) -> Option<String> {
    // A new database does not have the table `deployment`, so an error means that there is no fingerprint.
    let row = sqlx::query(FIND_MASTER_KEY_FINGERPRINT).fetch_optional(conn).await.ok().flatten()?;
    row::get(&row, "master_key_fingerprint").ok()
}

/// Inserts the row of the Countersign deployment. Returns false if the database already has this row.
pub async fn insert(conn: &mut Conn, deployment: &Deployment, now: Timestamp) -> Result<bool, StoreError> {
    let Deployment { master_key_fingerprint, dev_since } = deployment;
    conn.changes_row(INSERT_DEPLOYMENT, params![now, master_key_fingerprint, dev_since]).await
}

/// Finds the quarantine mark; `None` if the database may be served.
pub async fn find_quarantine(conn: &mut Conn) -> Result<Option<Quarantine>, StoreError> {
    let quarantine_from_row = |row: &AnyRow| {
        let reason = QuarantineReason::parse(&row::get::<String>(row, "quarantine_reason")?);
        let reason = reason.ok_or(StoreError::Corrupt("quarantine_reason"))?;
        Ok(Quarantine { reason, at: row::timestamp(row, "quarantined_at")? })
    };
    conn.find_row(FIND_QUARANTINE, params![], quarantine_from_row).await
}

/// Removes the quarantine mark and the fingerprint of the PostgreSQL instance. Then any instance can serve the database.
pub async fn lift_quarantine(conn: &mut Conn) -> Result<(), StoreError> {
    conn.apply(LIFT_QUARANTINE, params![]).await
}

/// Finds the fingerprint of the PostgreSQL instance that last served the Countersign deployment, from
/// [`postgres::instance_fingerprint`](super::postgres::instance_fingerprint); `None` if no PostgreSQL instance served the
/// deployment.
pub async fn find_instance_fingerprint(conn: &mut Conn) -> Result<Option<String>, StoreError> {
    conn.read_row(FIND_INSTANCE_FINGERPRINT, params![], |row| row::get(row, "instance_fingerprint")).await
}

/// Sets the fingerprint of the PostgreSQL instance that serves the Countersign deployment.
pub async fn set_instance_fingerprint(conn: &mut Conn, fingerprint: &str) -> Result<(), StoreError> {
    conn.apply(SET_INSTANCE_FINGERPRINT, params![fingerprint]).await
}

/// Sets the secret from which the keys of agent hashes are derived, unless it is set. Returns the secret of the deployment.
pub async fn set_agent_hash_secret(
    conn: &mut Conn,
    generated: &[u8; HASH_KEY_LEN],
) -> Result<[u8; HASH_KEY_LEN], StoreError> {
    let secret_from_row = |row: &AnyRow| {
        let mut secret = [0; HASH_KEY_LEN];
        let text: String = row::get(row, "agent_hash_secret")?;
        hex::decode_to_slice(text, &mut secret).map_err(|_| StoreError::Corrupt("agent_hash_secret"))?;
        Ok(secret)
    };
    conn.read_row(SET_AGENT_HASH_SECRET, params![hex::encode(generated)], secret_from_row).await
}

/// Locks the row of the Countersign deployment until the transaction ends. The lock serializes changes to objects that exist
/// once per Countersign deployment, such as the key ring.
pub async fn lock(conn: &mut Conn) -> Result<(), StoreError> {
    conn.must_change_row(LOCK_DEPLOYMENT, "deployment", params![]).await
}
