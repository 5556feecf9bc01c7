//! The feed: one row that says where we are, and the changes that led here.

use super::{Conn, StoreError, row};
use crate::domain::change::{Change, FeedPosition, RevisionRange};
use countersign_identity::{Revision, ServiceId, Timestamp, TokenId, Versioned};
use sqlx::any::AnyRow;
use std::time::Duration;

/// In microseconds.
const A_SECOND: i64 = 1_000_000;

/// How far apart the clocks of two machines may be.
const CLOCKS_APART: Duration = Duration::from_mins(5);

/// Makes the row at the birth of the deployment.
pub async fn create(conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO feed (id, revision, floor) VALUES (1, $1, $1)").bind(now.micros()).execute(conn).await?;
    Ok(())
}

/// Where the feed stands. Before issuing a token this is read first.
pub async fn position(conn: &mut Conn) -> Result<FeedPosition, StoreError> {
    position_if_any(conn).await?.ok_or(StoreError::Rows("feed"))
}

/// The same, before the deployment is made.
pub async fn position_if_any(conn: &mut Conn) -> Result<Option<FeedPosition>, StoreError> {
    let sql = "SELECT revision, floor, COALESCE(restored_revision, 0) AS cutoff FROM feed WHERE id = 1";
    let Some(found) = sqlx::query(sql).fetch_optional(conn).await? else { return Ok(None) };
    let (newest, floor) = (revision(&found, "revision")?, revision(&found, "floor")?);
    Ok(Some(FeedPosition { revision: newest, floor, cutoff: revision(&found, "cutoff")? }))
}

/// Settles a database that was restored: revision and floor go past everything that anybody outside can know of it.
pub async fn settle(conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE feed SET revision = CASE WHEN revision >= $1 THEN revision + $2 ELSE $1 END, restored_at = $3 WHERE id = 1";
    // What was restored may have been served by a machine whose clock is ahead of this one's. If by far, two restorations
    // of it still must not come to the same, for that says which challenges are of before.
    let further = 1 + now.micros().rem_euclid(A_SECOND);
    let later = now.after(CLOCKS_APART).micros();
    sqlx::query(sql).bind(later).bind(further).bind(now.micros()).execute(&mut *conn).await?;
    let sql = "UPDATE feed SET floor = revision, restored_revision = revision WHERE id = 1";
    let done = sqlx::query(sql).execute(conn).await?;
    if done.rows_affected() == 1 { Ok(()) } else { Err(StoreError::Rows("feed")) }
}

/// Takes the next revision: larger than the last, and not behind the clock, so that a restored
/// database does not use a number again.
pub async fn next_revision(conn: &mut Conn, now: Timestamp) -> Result<Revision, StoreError> {
    let sql = "UPDATE feed SET revision = CASE WHEN revision >= $1 THEN revision + 1 ELSE $1 END WHERE id = 1 RETURNING revision";
    revision(&sqlx::query(sql).bind(now.micros()).fetch_one(conn).await?, "revision")
}

/// Appends what changed.
pub async fn append(conn: &mut Conn, revision: Revision, changes: &[Change], now: Timestamp) -> Result<(), StoreError> {
    for (position, change) in (0_i64..).zip(changes) {
        let (facet, subject, service) = encode(change);
        sqlx::query("INSERT INTO changes (revision, position, facet, subject, service_id, noted_at) VALUES ($1, $2, $3, $4, $5, $6)")
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

/// All changes of a stretch, in commit order.
pub async fn changes(conn: &mut Conn, range: RevisionRange) -> Result<Vec<Versioned<Change>>, StoreError> {
    let sql = "SELECT revision, facet, subject, service_id FROM changes WHERE revision > $1 AND revision <= $2 ORDER BY revision, position";
    let rows = sqlx::query(sql).bind(range.since.number()).bind(range.until.number()).fetch_all(conn).await?;
    rows.iter().map(decode).collect()
}

/// True if `revision` is one at which this feed stood, and nothing since was forgotten.
pub async fn knows(conn: &mut Conn, position: FeedPosition, wanted: Revision) -> Result<bool, StoreError> {
    if wanted == position.revision || wanted == position.floor {
        return Ok(true);
    }
    let sql = "SELECT 1 AS known FROM changes WHERE revision = $1 AND revision > $2 LIMIT 1";
    let found = sqlx::query(sql).bind(wanted.number()).bind(position.floor.number()).fetch_optional(conn).await?;
    Ok(found.is_some())
}

/// True if this access token was revoked, unless that is forgotten because no such token can live.
pub async fn token_is_revoked(conn: &mut Conn, token: TokenId) -> Result<bool, StoreError> {
    let sql = "SELECT 1 AS revoked FROM changes WHERE facet = 'token' AND subject = $1 LIMIT 1";
    Ok(sqlx::query(sql).bind(token.to_string()).fetch_optional(conn).await?.is_some())
}

/// Raises the floor past all changes noted at or before `horizon`, and forgets them. By their instants and
/// not by their revisions: one commit under a clock that was far ahead must not stop the forgetting.
pub async fn raise_floor(conn: &mut Conn, horizon: Timestamp) -> Result<(), StoreError> {
    // Past a restoration there are older changes than the floor.
    let raise = "UPDATE feed SET floor = COALESCE((SELECT MAX(revision) FROM changes WHERE noted_at <= $1 AND revision > floor), floor) WHERE id = 1";
    sqlx::query(raise).bind(horizon.micros()).execute(&mut *conn).await?;
    let forget = "DELETE FROM changes WHERE revision <= (SELECT floor FROM feed WHERE id = 1)";
    sqlx::query(forget).execute(conn).await?;
    Ok(())
}

fn revision(found: &AnyRow, column: &'static str) -> Result<Revision, StoreError> {
    row::get(found, column).map(Revision::new)
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

fn decode(found: &AnyRow) -> Result<Versioned<Change>, StoreError> {
    let service = || row::parse_optional::<ServiceId>(found, "service_id")?.ok_or(StoreError::Corrupt("service_id"));
    let change = match row::get::<String>(found, "facet")?.as_str() {
        "roles" => Change::Roles(row::parse(found, "subject")?, service()?),
        "trust" => Change::Trust(row::parse(found, "subject")?),
        "status" => Change::Status(row::parse(found, "subject")?),
        "definitions" => Change::Definitions(service()?),
        "terms" => Change::ServiceSettings(service()?),
        "token" => Change::Token(row::parse(found, "subject")?),
        "session" => Change::Session(row::parse(found, "subject")?),
        "keys" => Change::Keys,
        _ => return Err(StoreError::Corrupt("facet")),
    };
    Ok(Versioned { revision: revision(found, "revision")?, value: change })
}
