//! Totals that are read often, and are therefore kept instead of counted.
//!
//! A total is changed in the transaction that changes what it counts. The previous version of Countersign does not change
//! totals, so each start counts anew, see [`recount`].

use super::{Conn, StoreError, row, statements::statements};
use crate::domain::{agent::status_text, total::Total};
use countersign_identity::AgentStatus;

statements! { STATEMENTS:
    ADD_TO_TOTAL = "INSERT INTO totals (name, total) VALUES ($1, $2) \
         ON CONFLICT (name) DO UPDATE SET total = totals.total + excluded.total";
    FIND_TOTAL = "SELECT total FROM totals WHERE name = $1";
    SET_TOTAL = "UPDATE totals SET total = $1 WHERE name = $2";
    COUNT_ACTIVE_AGENTS = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM agents WHERE status = $1";
    COUNT_PUBLIC_AGENTS = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM agents WHERE owner_issuer IS NULL \
         AND deleted_at IS NULL";
    COUNT_SERVICES = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM services WHERE deleted_at IS NULL";
}

/// Adds a number, which may be negative, to a total. Locks the total until the transaction ends.
pub async fn add(conn: &mut Conn, total: Total, number: i64) -> Result<(), StoreError> {
    sqlx::query(ADD_TO_TOTAL).bind(total.as_str()).bind(number).execute(conn).await?;
    Ok(())
}

/// Reads a total.
pub async fn find(conn: &mut Conn, total: Total) -> Result<i64, StoreError> {
    let row = sqlx::query(FIND_TOTAL).bind(total.as_str()).fetch_optional(conn).await?;
    row.map_or(Ok(0), |row| row::total_count(&row))
}

/// Counts all totals anew. Locks a total before it counts, so that no concurrent transaction changes the total meanwhile.
pub async fn recount(conn: &mut Conn) -> Result<(), StoreError> {
    for total in Total::ALL {
        add(conn, total, 0).await?;
        let query = match total {
            Total::ActiveAgents => sqlx::query(COUNT_ACTIVE_AGENTS).bind(status_text(AgentStatus::Active)),
            Total::PublicAgents => sqlx::query(COUNT_PUBLIC_AGENTS),
            Total::Services => sqlx::query(COUNT_SERVICES),
        };
        let counted = row::total_count(&query.fetch_one(&mut *conn).await?)?;
        sqlx::query(SET_TOTAL).bind(counted).bind(total.as_str()).execute(&mut *conn).await?;
    }
    Ok(())
}
