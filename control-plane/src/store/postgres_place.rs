//! What only PostgreSQL can tell of the place where a database is.

use super::{Conn, StoreError, pools, row};
use secrecy::{ExposeSecret, SecretString};
use sqlx::Connection;

/// What a dump does not keep, and whoever puts it back makes anew: which cluster it is, how the server numbers some tables,
/// and which transaction wrote the row of the first step of the schema, which nobody touches.
const NUMBERS: &str = "SELECT CAST(system_identifier AS TEXT) || ' ' || \
                       CAST(CAST('deployment' AS regclass)::oid AS TEXT) || ' ' || \
                       CAST(CAST('feed' AS regclass)::oid AS TEXT) || ' ' || \
                       CAST(CAST('sessions' AS regclass)::oid AS TEXT) || ' ' || \
                       (SELECT CAST(xmin AS TEXT) FROM _sqlx_migrations WHERE version = 1) AS numbers \
                       FROM pg_control_system()";

/// Whether there is a deployment in the database; it is not even made ready for one.
pub async fn has_deployment(url: &SecretString) -> Result<bool, StoreError> {
    sqlx::any::install_default_drivers();
    let mut conn = pools::connect(url.expose_secret()).await?;
    let sql = "SELECT CASE WHEN to_regclass('deployment') IS NULL THEN 0 ELSE 1 END AS is_there";
    let is_there: i32 = row::get(&sqlx::query(sql).fetch_one(&mut conn).await?, "is_there")?;
    let found = is_there == 1
        && sqlx::query("SELECT 1 AS found FROM deployment WHERE id = 1").fetch_optional(&mut conn).await?.is_some();
    conn.close().await?;
    Ok(found)
}

/// How many connections control planes have to the database; those of before the eighth step do not say who they are.
pub async fn control_planes(url: &SecretString) -> Result<i64, StoreError> {
    sqlx::any::install_default_drivers();
    let mut conn = pools::connect(url.expose_secret()).await?;
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM pg_stat_activity \
               WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' \
               AND application_name IN ($1, '')";
    let found = sqlx::query(sql).bind(pools::APPLICATION).fetch_one(&mut conn).await?;
    let total = row::total(&found)?;
    conn.close().await?;
    Ok(total)
}

/// What tells this database from any copy of it.
pub async fn table_numbers(conn: &mut Conn) -> Result<String, StoreError> {
    row::get(&sqlx::query(NUMBERS).fetch_one(conn).await?, "numbers")
}
