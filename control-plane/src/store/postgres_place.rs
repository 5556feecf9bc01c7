//! What only PostgreSQL can tell of the place where a database is.

use super::{Conn, StoreError, pools, row};
use secrecy::{ExposeSecret, SecretString};
use sqlx::Connection;

/// The names that a dump does not keep: how the server numbers some tables.
const NUMBERS: &str = "SELECT CAST(CAST('deployment' AS regclass)::oid AS TEXT) || ' ' || \
                       CAST(CAST('feed' AS regclass)::oid AS TEXT) || ' ' || \
                       CAST(CAST('sessions' AS regclass)::oid AS TEXT) AS numbers";

/// How many connections control planes have to the database.
pub async fn control_planes(url: &SecretString) -> Result<i64, StoreError> {
    sqlx::any::install_default_drivers();
    let mut conn = pools::connect(url.expose_secret()).await?;
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM pg_stat_activity \
               WHERE datname = current_database() AND application_name = $1";
    let found = sqlx::query(sql).bind(pools::APPLICATION).fetch_one(&mut conn).await?;
    let total = row::total(&found)?;
    conn.close().await?;
    Ok(total)
}

/// How the server numbers the tables.
pub async fn table_numbers(conn: &mut Conn) -> Result<String, StoreError> {
    row::get(&sqlx::query(NUMBERS).fetch_one(conn).await?, "numbers")
}
