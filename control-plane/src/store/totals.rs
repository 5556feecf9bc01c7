//! Totals that are read often, so we keep them instead of counting rows.
//!
//! The transaction that changes what a total counts also changes the total. Somebody may change rows by hand, so we count again at
//! each start, see [`find_differences`].

use super::{Conn, StoreError, query::params, row, statements::statements};
use crate::domain::{agent::status_text, total::Total};
use countersign_identity::AgentStatus;
use sqlx::any::AnyRow;

statements! { STATEMENTS:
    ADD_TO_TOTAL = "INSERT INTO totals (name, total) VALUES ($1, $2) \
         ON CONFLICT (name) DO UPDATE SET total = totals.total + excluded.total";
    FIND_TOTAL = "SELECT total FROM totals WHERE name = $1";
    /// Counts the next `$2` agents after the id `$1`, in the order of ids.
    COUNT_PAGE_OF_AGENTS = "SELECT MAX(id) AS last, \
         CAST(COALESCE(SUM(CASE WHEN status = $3 THEN 1 ELSE 0 END), 0) AS BIGINT) AS active, \
         CAST(COALESCE(SUM(CASE WHEN owner_issuer IS NULL AND deleted_at IS NULL THEN 1 ELSE 0 END), 0) AS BIGINT) AS public \
         FROM (SELECT id, status, owner_issuer, deleted_at FROM agents WHERE id > $1 ORDER BY id LIMIT $2 + 0) page";
    COUNT_PAGE_OF_SERVICES = "SELECT MAX(id) AS last, \
         CAST(COALESCE(SUM(CASE WHEN deleted_at IS NULL THEN 1 ELSE 0 END), 0) AS BIGINT) AS live \
         FROM (SELECT id, deleted_at FROM services WHERE id > $1 ORDER BY id LIMIT $2 + 0) page";
    /// Adds 1 to the number of corrections, if it is still `$2`.
    COUNT_CORRECTION = "INSERT INTO totals (name, total) VALUES ($1, CAST($2 AS BIGINT) + 1) \
         ON CONFLICT (name) DO UPDATE SET total = totals.total + 1 WHERE totals.total = $2";
}

/// Adds a number, which may be negative, to a total. Locks the total until the transaction ends.
pub async fn add(conn: &mut Conn, total: Total, number: i64) -> Result<(), StoreError> {
    conn.apply(ADD_TO_TOTAL, params![total, number]).await
}

/// Reads a total.
pub async fn find(conn: &mut Conn, total: Total) -> Result<i64, StoreError> {
    find_by_name(conn, total.as_str()).await
}

async fn find_by_name(conn: &mut Conn, name: &'static str) -> Result<i64, StoreError> {
    Ok(conn.find_row(FIND_TOTAL, params![name], row::total_count).await?.unwrap_or(0))
}

/// The row that counts the corrections of totals.
const CORRECTIONS: &str = "corrections";

/// Maximum number of rows that one statement counts.
const PAGE_SIZE: i64 = 5000;

/// The differences between the counted and the kept totals in one snapshot. Every transaction changes a total together with what it
/// counts, so a difference stays the same until we correct it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TotalDifferences {
    /// What to add to each total.
    pub differences: Vec<(Total, i64)>,
    /// How often the totals had been corrected. If another process corrects them, this number grows.
    corrections: i64,
}

impl TotalDifferences {
    /// Whether all totals are correct.
    pub fn is_empty(&self) -> bool {
        self.differences.iter().all(|(_, difference)| *difference == 0)
    }
}

/// Counts all agents and services, and compares the result with the totals. Reads the whole tables, in pages.
pub async fn find_differences(conn: &mut Conn) -> Result<TotalDifferences, StoreError> {
    let corrections = find_by_name(conn, CORRECTIONS).await?;
    let [mut active, mut public, mut services] = [0_i64; 3];
    let mut last = Some(String::new());
    while let Some(after) = last {
        let add_page = |row: &AnyRow| {
            active += row::get::<i64>(row, "active")?;
            public += row::get::<i64>(row, "public")?;
            row::get(row, "last")
        };
        let parameters = params![after, PAGE_SIZE, status_text(AgentStatus::Active)];
        last = conn.read_row(COUNT_PAGE_OF_AGENTS, parameters, add_page).await?;
    }
    let mut last = Some(String::new());
    while let Some(after) = last {
        let add_page = |row: &AnyRow| {
            services += row::get::<i64>(row, "live")?;
            row::get(row, "last")
        };
        last = conn.read_row(COUNT_PAGE_OF_SERVICES, params![after, PAGE_SIZE], add_page).await?;
    }
    let mut differences = Vec::new();
    for &total in Total::ALL {
        let counted = match total {
            Total::ActiveAgents => active,
            Total::PublicAgents => public,
            Total::Services => services,
        };
        differences.push((total, counted - find(conn, total).await?));
    }
    Ok(TotalDifferences { differences, corrections })
}

/// Corrects the totals. Does nothing and returns false if another process has corrected them since the differences were found.
pub async fn correct(conn: &mut Conn, found: &TotalDifferences) -> Result<bool, StoreError> {
    if !conn.changes_row(COUNT_CORRECTION, params![CORRECTIONS, found.corrections]).await? {
        return Ok(false);
    }
    for (total, difference) in &found.differences {
        add(conn, *total, *difference).await?;
    }
    Ok(true)
}
