//! The feed that sidecars follow: the current position, and the changes that led to it.

use super::{Conn, StoreError, row, statements::statements};
use crate::domain::change::{Change, FeedPosition, RevisionRange};
use countersign_identity::{Revision, ServiceId, Timestamp, TokenId, Versioned};
use sqlx::any::AnyRow;
use std::time::Duration;

statements! { STATEMENTS:
    CREATE = "INSERT INTO feed (id, revision, floor) VALUES (1, $1, $1)";
    POSITION = "SELECT revision, floor, COALESCE(restored_revision, 0) AS cutoff FROM feed WHERE id = 1";
    ADVANCE_AFTER_RESTORE = "UPDATE feed SET revision = CASE WHEN revision >= $1 THEN revision + $2 ELSE $1 END, \
         restored_at = $3 WHERE id = 1";
    RAISE_FLOOR_AFTER_RESTORE = "UPDATE feed SET floor = revision, restored_revision = revision WHERE id = 1";
    NEXT_REVISION = "UPDATE feed SET revision = CASE WHEN revision >= $1 THEN revision + 1 ELSE $1 END WHERE id = 1 \
         RETURNING revision";
    APPEND = "INSERT INTO changes (revision, position, facet, subject, service_id, noted_at) VALUES ($1, $2, $3, $4, $5, $6)";
    CHANGES = "SELECT revision, facet, subject, service_id FROM changes WHERE revision > $1 AND revision <= $2 \
         ORDER BY revision, position";
    CONTAINS = "SELECT 1 AS known FROM changes WHERE revision = $1 AND revision > $2 LIMIT 1";
    TOKEN_IS_REVOKED = "SELECT 1 AS revoked FROM changes WHERE facet = 'token' AND subject = $1 LIMIT 1";
    /// After a restore, changes below the floor may exist.
    RAISE_FLOOR = "UPDATE feed SET floor = COALESCE((SELECT MAX(revision) FROM changes \
         WHERE noted_at <= $1 AND revision > floor), floor) WHERE id = 1";
    DELETE_BELOW_FLOOR = "DELETE FROM changes WHERE revision <= (SELECT floor FROM feed WHERE id = 1)";
}

const MICROS_PER_SECOND: i64 = 1_000_000;

/// Largest difference assumed between the clocks of two machines.
const MAX_CLOCK_SKEW: Duration = Duration::from_mins(5);

/// Creates the position of a new deployment.
pub async fn create(conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
    sqlx::query(CREATE).bind(now.micros()).execute(conn).await?;
    Ok(())
}

/// The current position. A transaction that issues a token reads it first.
pub async fn position(conn: &mut Conn) -> Result<FeedPosition, StoreError> {
    find_position(conn).await?.ok_or(StoreError::Rows("feed"))
}

/// The current position; `None` before the deployment is created.
pub async fn find_position(conn: &mut Conn) -> Result<Option<FeedPosition>, StoreError> {
    let Some(row) = sqlx::query(POSITION).fetch_optional(conn).await? else { return Ok(None) };
    let (newest, floor) = (revision(&row, "revision")?, revision(&row, "floor")?);
    Ok(Some(FeedPosition { revision: newest, floor, cutoff: revision(&row, "cutoff")? }))
}

/// Raises revision, floor and cutoff after a restore, past every revision that a sidecar or a token can have seen before it.
pub async fn advance_after_restore(conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
    // The clock of the machine that served the database may have been ahead of this one. If it was far ahead, two restores
    // must still get different revisions, because the revision tells which challenges are older than the restore.
    let step = 1 + now.micros().rem_euclid(MICROS_PER_SECOND);
    let least = now.saturating_add(MAX_CLOCK_SKEW).micros();
    sqlx::query(ADVANCE_AFTER_RESTORE).bind(least).bind(step).bind(now.micros()).execute(&mut *conn).await?;
    let result = sqlx::query(RAISE_FLOOR_AFTER_RESTORE).execute(conn).await?;
    if result.rows_affected() == 1 { Ok(()) } else { Err(StoreError::Rows("feed")) }
}

/// Takes the next revision: greater than the last, and not behind the clock, so that a restored database does not reuse
/// revisions.
pub async fn next_revision(conn: &mut Conn, now: Timestamp) -> Result<Revision, StoreError> {
    revision(&sqlx::query(NEXT_REVISION).bind(now.micros()).fetch_one(conn).await?, "revision")
}

/// Appends changes under one revision.
pub async fn append(conn: &mut Conn, revision: Revision, changes: &[Change], now: Timestamp) -> Result<(), StoreError> {
    for (position, change) in (0_i64..).zip(changes) {
        let (facet, subject, service) = encode(change);
        sqlx::query(APPEND)
            .bind(revision.number())
            .bind(position)
            .bind(facet)
            .bind(subject)
            .bind(service)
            .bind(now.micros())
            .execute(&mut *conn)
            .await?;
    }
    Ok(())
}

/// All changes within a range, in commit order.
pub async fn changes(conn: &mut Conn, range: RevisionRange) -> Result<Vec<Versioned<Change>>, StoreError> {
    let query = sqlx::query(CHANGES).bind(range.since.number()).bind(range.until.number());
    query.fetch_all(conn).await?.iter().map(decode).collect()
}

/// Whether a follower can resume at `revision`: this feed was once at it, and no later change is deleted.
pub async fn contains(conn: &mut Conn, position: FeedPosition, revision: Revision) -> Result<bool, StoreError> {
    if revision == position.revision || revision == position.floor {
        return Ok(true);
    }
    let query = sqlx::query(CONTAINS).bind(revision.number()).bind(position.floor.number());
    Ok(query.fetch_optional(conn).await?.is_some())
}

/// Whether this access token was revoked. The change is deleted once the token must have expired.
pub async fn token_is_revoked(conn: &mut Conn, token: TokenId) -> Result<bool, StoreError> {
    Ok(sqlx::query(TOKEN_IS_REVOKED).bind(token.to_string()).fetch_optional(conn).await?.is_some())
}

/// Raises the floor past all changes written at or before `horizon`, and deletes them. Compares the time of writing and not
/// the revision: one commit under a clock far ahead must not stop the deletion.
pub async fn raise_floor(conn: &mut Conn, horizon: Timestamp) -> Result<(), StoreError> {
    sqlx::query(RAISE_FLOOR).bind(horizon.micros()).execute(&mut *conn).await?;
    sqlx::query(DELETE_BELOW_FLOOR).execute(conn).await?;
    Ok(())
}

fn revision(row: &AnyRow, column: &'static str) -> Result<Revision, StoreError> {
    row::get(row, column).map(Revision::new)
}

fn encode(change: &Change) -> (&'static str, String, Option<String>) {
    match change {
        Change::Roles(agent, service) => ("roles", agent.to_string(), Some(service.to_string())),
        Change::Trust(agent) => ("trust", agent.to_string(), None),
        Change::Status(agent) => ("status", agent.to_string(), None),
        Change::Definitions(service) => ("definitions", service.to_string(), Some(service.to_string())),
        Change::ServiceSettings(service) => ("terms", service.to_string(), Some(service.to_string())),
        Change::Token(token) => ("token", token.to_string(), None),
        Change::Session(session) => ("session", session.to_string(), None),
        Change::Keys => ("keys", String::new(), None),
    }
}

fn decode(row: &AnyRow) -> Result<Versioned<Change>, StoreError> {
    let service = || row::parse_optional::<ServiceId>(row, "service_id")?.ok_or(StoreError::Corrupt("service_id"));
    let change = match row::get::<String>(row, "facet")?.as_str() {
        "roles" => Change::Roles(row::parse(row, "subject")?, service()?),
        "trust" => Change::Trust(row::parse(row, "subject")?),
        "status" => Change::Status(row::parse(row, "subject")?),
        "definitions" => Change::Definitions(service()?),
        "terms" => Change::ServiceSettings(service()?),
        "token" => Change::Token(row::parse(row, "subject")?),
        "session" => Change::Session(row::parse(row, "subject")?),
        "keys" => Change::Keys,
        _ => return Err(StoreError::Corrupt("facet")),
    };
    Ok(Versioned { revision: revision(row, "revision")?, value: change })
}
