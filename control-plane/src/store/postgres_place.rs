//! What only PostgreSQL can tell of the place where a database is.

use super::{Conn, StoreError, pools, row};
use secrecy::{ExposeSecret, SecretString};
use sqlx::{AnyConnection, Connection as _};

/// What a dump does not keep, and whoever puts it back makes anew: which cluster it is, how the server numbers some tables,
/// and which transaction wrote the row of the first step of the schema, which nobody touches.
const NUMBERS: &str = "SELECT CAST(system_identifier AS TEXT) || ' ' || \
                       CAST(CAST('deployment' AS regclass)::oid AS TEXT) || ' ' || \
                       CAST(CAST('feed' AS regclass)::oid AS TEXT) || ' ' || \
                       CAST(CAST('sessions' AS regclass)::oid AS TEXT) || ' ' || \
                       (SELECT CAST(xmin AS TEXT) FROM _sqlx_migrations WHERE version = 1) AS numbers \
                       FROM pg_control_system()";

/// What is in a database, and who works with it.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// Whether there is a deployment in it.
    pub has_deployment: bool,
    /// How many connections control planes have to it.
    pub control_planes: i64,
}

/// Looks at a database, which is not even made ready for a deployment.
pub async fn look(url: &SecretString) -> Result<Seen, StoreError> {
    let mut conn = pools::connect_to_primary(url.expose_secret()).await?;
    let seen =
        Seen { control_planes: control_planes(&mut conn).await?, has_deployment: has_deployment(&mut conn).await? };
    conn.close().await?;
    Ok(seen)
}

/// Those of before the eighth step do not say who they are.
async fn control_planes(conn: &mut AnyConnection) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM pg_stat_activity \
               WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' \
               AND application_name IN ($1, '')";
    row::total(&sqlx::query(sql).bind(pools::APPLICATION).fetch_one(conn).await?)
}

async fn has_deployment(conn: &mut AnyConnection) -> Result<bool, StoreError> {
    let sql = "SELECT CASE WHEN to_regclass('deployment') IS NULL THEN 0 ELSE 1 END AS is_there";
    let is_there: i32 = row::get(&sqlx::query(sql).fetch_one(&mut *conn).await?, "is_there")?;
    Ok(is_there == 1
        && sqlx::query("SELECT 1 AS found FROM deployment WHERE id = 1").fetch_optional(conn).await?.is_some())
}

/// What tells this database from any copy of it.
pub async fn table_numbers(conn: &mut Conn) -> Result<String, StoreError> {
    row::get(&sqlx::query(NUMBERS).fetch_one(conn).await?, "numbers")
}
