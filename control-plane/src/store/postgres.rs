//! Queries of PostgreSQL system tables, which show the connected clients and the identity of the instance.

use super::{Conn, StoreError, pools, query::params, row, statements::statements};
use secrecy::{ExposeSecret, SecretString};
use sqlx::{Connection as _, Executor as _};

statements! { POSTGRES_STATEMENTS:
    /// The fingerprint has the identifier of the cluster, the OIDs of some tables, and the id of the transaction that wrote the row
    /// of the first migration, which nobody updates. In a database that was restored from a dump, some of these differ.
    INSTANCE_FINGERPRINT = "SELECT CAST(system_identifier AS TEXT) || ' ' || \
         CAST(CAST('deployment' AS regclass)::oid AS TEXT) || ' ' || \
         CAST(CAST('feed' AS regclass)::oid AS TEXT) || ' ' || \
         CAST(CAST('sessions' AS regclass)::oid AS TEXT) || ' ' || \
         (SELECT CAST(xmin AS TEXT) FROM _sqlx_migrations WHERE version = 1) AS numbers \
         FROM pg_control_system()";
    /// A connection without a name may belong to a control plane behind a pooler, so it counts.
    COUNT_CONTROL_PLANES = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' \
         AND application_name IN ($1, '')";
    HAS_DEPLOYMENT_TABLE = "SELECT CASE WHEN to_regclass('deployment') IS NULL THEN 0 ELSE 1 END AS is_there";
    HAS_DEPLOYMENT = "SELECT 1 AS found FROM deployment WHERE id = 1";
    /// The lock has two keys, so that it never conflicts with the advisory lock of migrations, which has one key.
    TRY_LOCK_JOB = "SELECT CASE WHEN pg_try_advisory_xact_lock(1668248179, hashtext($1)) THEN 1 ELSE 0 END AS locked";
    LOCK_AUDIT_HEADS = "LOCK TABLE audit_heads IN SHARE MODE";
}

/// What a database contains, and whether control planes are connected to it.
#[derive(Debug, Clone, Copy)]
pub struct DatabaseUsage {
    /// Whether the database contains the row of a Countersign deployment.
    pub has_deployment: bool,
    /// Number of connections of control planes.
    pub control_planes: i64,
}

/// Reads the [`DatabaseUsage`] of a database, without running migrations.
pub async fn database_usage(url: &SecretString) -> Result<DatabaseUsage, StoreError> {
    let mut conn = pools::connect_to_primary(url.expose_secret()).await?;
    let count = sqlx::query(COUNT_CONTROL_PLANES).bind(pools::APPLICATION_NAME).fetch_one(&mut conn).await?;
    let has_table: i32 = row::get(&conn.fetch_one(HAS_DEPLOYMENT_TABLE).await?, "is_there")?;
    let has_deployment = has_table == 1 && conn.fetch_optional(HAS_DEPLOYMENT).await?.is_some();
    conn.close().await?;
    Ok(DatabaseUsage { has_deployment, control_planes: row::total_count(&count)? })
}

/// Waits for open transactions that changed a head of an audit chain. Other writers wait until this transaction ends.
pub(super) async fn lock_audit_heads(conn: &mut Conn) -> Result<(), StoreError> {
    conn.apply(LOCK_AUDIT_HEADS, params![]).await
}

/// Takes the lock of a background job until the transaction ends. Returns false if another transaction holds the lock.
pub(super) async fn try_begin_job(conn: &mut Conn, job: &str) -> Result<bool, StoreError> {
    conn.read_row(TRY_LOCK_JOB, params![job], |row| Ok(row::get::<i32>(row, "locked")? == 1)).await
}

/// Returns a text that differs between the database and every copy of the database by `pg_restore`.
pub async fn instance_fingerprint(conn: &mut Conn) -> Result<String, StoreError> {
    conn.read_row(INSTANCE_FINGERPRINT, params![], |row| row::get(row, "numbers")).await
}
