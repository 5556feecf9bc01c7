//! Gives an agent live tokens for many services at once, for tests of the quota of such services, which no setting can lower.

use countersign_process::{Clock, SystemClock};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};

/// The quota of services for which an agent may have live tokens.
pub const AUDIENCES_PER_AGENT: usize = 100;

/// An hour, in microseconds.
const HOUR: i64 = 3_600_000_000;

/// Records in the database that an agent has live tokens for this number of services, which need not exist.
pub async fn add_audiences(database_url: &str, agent: &str, count: usize) {
    sqlx::any::install_default_drivers();
    let mut database = AnyConnection::connect(database_url).await.expect("the database accepts connections");
    let expires_at = SystemClock.now().micros() + HOUR;
    let rows: Vec<_> = (0..count).map(|number| format!("('{agent}', 'svc_{number:026}', {expires_at})")).collect();
    let insert = format!("INSERT INTO token_audiences (agent_id, service_id, expires_at) VALUES {}", rows.join(", "));
    database.execute(AssertSqlSafe(insert)).await.expect("the rows can be inserted");
    database.close().await.expect("the connection can be closed");
}
