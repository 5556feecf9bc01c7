//! The change feed, whose changes the sync streams send to sidecars, and the current position of the feed: the newest revision,
//! the revision floor (the oldest revision from which a sidecar can resume) and the cutoff of the last restore.

use super::{Conn, StoreError, row, statements::statements};
use crate::domain::change::{Change, FeedPosition, RevisionRange};
use countersign_identity::{AgentId, Revision, ServiceId, Timestamp, TokenId, Versioned};
use sqlx::any::AnyRow;
use std::time::Duration;

statements! { STATEMENTS:
    INSERT_POSITION = "INSERT INTO feed (id, revision, floor) VALUES (1, $1, $1)";
    FIND_POSITION = "SELECT revision, floor, COALESCE(restored_revision, 0) AS cutoff FROM feed WHERE id = 1";
    ADVANCE_AFTER_RESTORE = "UPDATE feed SET revision = CASE WHEN revision >= $1 THEN revision + $2 ELSE $1 END, \
         restored_at = $3 WHERE id = 1";
    RAISE_FLOOR_AFTER_RESTORE = "UPDATE feed SET floor = revision, restored_revision = revision WHERE id = 1";
    NEXT_REVISION = "UPDATE feed SET revision = CASE WHEN revision >= $1 THEN revision + 1 ELSE $1 END WHERE id = 1 \
         RETURNING revision";
    INSERT_CHANGE = "INSERT INTO changes (revision, position, facet, subject, service_id, noted_at) VALUES ($1, $2, $3, $4, $5, $6)";
    LIST_CHANGES = "SELECT revision, facet, subject, service_id FROM changes WHERE revision > $1 AND revision <= $2 \
         ORDER BY revision, position";
    HAS_CHANGES_AT = "SELECT 1 AS known FROM changes WHERE revision = $1 AND revision > $2 LIMIT 1";
    TOKEN_IS_REVOKED = "SELECT 1 AS revoked FROM changes WHERE facet = 'token' AND subject = $1 LIMIT 1";
    ROLES_CHANGED = "SELECT 1 AS changed FROM changes WHERE facet = 'roles' AND subject = $1 AND service_id = $2 \
         AND revision > $3 LIMIT 1";
    /// The condition `revision > floor` is needed because changes below the revision floor may exist after a restore.
    RAISE_FLOOR = "UPDATE feed SET floor = COALESCE((SELECT MAX(revision) FROM changes \
         WHERE noted_at <= $1 AND revision > floor), floor) WHERE id = 1";
    DELETE_BELOW_FLOOR = "DELETE FROM changes WHERE revision <= (SELECT floor FROM feed WHERE id = 1)";
}

const MICROS_PER_SECOND: i64 = 1_000_000;

/// Largest difference assumed between the clocks of two machines.
const MAX_CLOCK_SKEW: Duration = Duration::from_mins(5);

/// Creates the position of the change feed for a new Countersign deployment.
pub async fn create_position(conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
    sqlx::query(INSERT_POSITION).bind(now.micros()).execute(conn).await?;
    Ok(())
}

/// Returns the current position of the change feed. A transaction that issues a token must read the position of the change feed
/// first.
pub async fn position(conn: &mut Conn) -> Result<FeedPosition, StoreError> {
    find_feed_position(conn).await?.ok_or(StoreError::UnexpectedRowCount("feed"))
}

/// Finds the current position of the change feed; `None` before the row of the Countersign deployment is created.
pub async fn find_feed_position(conn: &mut Conn) -> Result<Option<FeedPosition>, StoreError> {
    let Some(row) = sqlx::query(FIND_POSITION).fetch_optional(conn).await? else { return Ok(None) };
    let (newest, floor) = (revision_from_row(&row, "revision")?, revision_from_row(&row, "floor")?);
    Ok(Some(FeedPosition { revision: newest, floor, cutoff: revision_from_row(&row, "cutoff")? }))
}

/// Raises the revision, the revision floor and the cutoff of the change feed after a restore, above every revision that a
/// sidecar or a token can have.
pub async fn advance_after_restore(conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
    // The clock of the machine before the restore may have been ahead of the clock of this machine. Even if the clock before
    // the restore was far ahead, two restores must get different revisions, because the revision determines which challenges
    // were issued before the restore.
    let step = 1 + now.micros().rem_euclid(MICROS_PER_SECOND);
    let min_revision = now.saturating_add(MAX_CLOCK_SKEW).micros();
    sqlx::query(ADVANCE_AFTER_RESTORE).bind(min_revision).bind(step).bind(now.micros()).execute(&mut *conn).await?;
    let result = sqlx::query(RAISE_FLOOR_AFTER_RESTORE).execute(conn).await?;
    if result.rows_affected() == 1 { Ok(()) } else { Err(StoreError::UnexpectedRowCount("feed")) }
}

/// Advances the change feed to the next revision and returns the revision, which is greater than the last revision and not
/// behind the clock, so that a restored database does not reuse revisions.
pub async fn next_revision(conn: &mut Conn, now: Timestamp) -> Result<Revision, StoreError> {
    revision_from_row(&sqlx::query(NEXT_REVISION).bind(now.micros()).fetch_one(conn).await?, "revision")
}

/// Appends changes under one revision.
pub async fn append_changes(
    conn: &mut Conn,
    revision: Revision,
    changes: &[Change],
    now: Timestamp,
) -> Result<(), StoreError> {
    for (position, change) in (0_i64..).zip(changes) {
        let (facet, subject, service) = change_to_columns(change);
        sqlx::query(INSERT_CHANGE)
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

/// Lists all changes within a range of revisions, in commit order.
pub async fn list_changes(conn: &mut Conn, range: RevisionRange) -> Result<Vec<Versioned<Change>>, StoreError> {
    let query = sqlx::query(LIST_CHANGES).bind(range.since.number()).bind(range.until.number());
    query.fetch_all(conn).await?.iter().map(change_from_row).collect()
}

/// Whether a sidecar can resume at `revision`: the change feed had this revision, and no later change was deleted.
pub async fn can_resume_at(conn: &mut Conn, position: FeedPosition, revision: Revision) -> Result<bool, StoreError> {
    if revision == position.revision || revision == position.floor {
        return Ok(true);
    }
    let query = sqlx::query(HAS_CHANGES_AT).bind(revision.number()).bind(position.floor.number());
    Ok(query.fetch_optional(conn).await?.is_some())
}

/// Whether an access token was revoked. The change that records the revocation of a token is deleted only after the token has
/// expired.
pub async fn token_is_revoked(conn: &mut Conn, token: TokenId) -> Result<bool, StoreError> {
    Ok(sqlx::query(TOKEN_IS_REVOKED).bind(token.to_string()).fetch_optional(conn).await?.is_some())
}

/// Whether the roles of an agent at a service changed after `revision`, which must not be below the revision floor.
pub async fn roles_changed_since(
    conn: &mut Conn,
    agent: AgentId,
    service: ServiceId,
    revision: Revision,
) -> Result<bool, StoreError> {
    let query = sqlx::query(ROLES_CHANGED).bind(agent.to_string()).bind(service.to_string()).bind(revision.number());
    Ok(query.fetch_optional(conn).await?.is_some())
}

/// Raises the revision floor past all changes written at or before `horizon`, and deletes these changes. The deletion of a
/// change depends on the time of writing and not on the revision, because a commit while the clock was far ahead must not stop
/// the deletion.
pub async fn raise_floor(conn: &mut Conn, horizon: Timestamp) -> Result<(), StoreError> {
    sqlx::query(RAISE_FLOOR).bind(horizon.micros()).execute(&mut *conn).await?;
    sqlx::query(DELETE_BELOW_FLOOR).execute(conn).await?;
    Ok(())
}

fn revision_from_row(row: &AnyRow, column: &'static str) -> Result<Revision, StoreError> {
    row::get(row, column).map(Revision::new)
}

fn change_to_columns(change: &Change) -> (&'static str, String, Option<String>) {
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

fn change_from_row(row: &AnyRow) -> Result<Versioned<Change>, StoreError> {
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
    Ok(Versioned { revision: revision_from_row(row, "revision")?, value: change })
}
