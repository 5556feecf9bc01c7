//! The table of sessions.

use super::{
    Conn, StoreError,
    query::{Parameter, params},
    retention::ExpiringRows,
    row,
    row_lists::row_list_statements,
    statements::statements,
    token_audiences::audience_text,
};
use crate::domain::{
    credential::SecretHash,
    session::{RefreshHashes, RefreshToken, Session},
};
use countersign_identity::{AgentId, ServiceId, SessionId, Timestamp};
use sqlx::any::AnyRow;
use std::{collections::BTreeSet, time::Duration};

macro_rules! columns {
    () => {
        "id, agent_id, service_id, scope, started_at, started_revision, expires_at, ended_at, audiences, refresh_common_hash, refresh_hash"
    };
}
pub(super) use columns as session_columns;

statements! { STATEMENTS:
    INSERT_SESSION = concat!(
        "INSERT INTO sessions (challenge_id, ", columns!(), ") VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) \
         ON CONFLICT (challenge_id) DO NOTHING"
    );
    FIND_SESSION = concat!("SELECT ", columns!(), " FROM sessions WHERE id = $1");
    /// The sessions of an agent that can still be refreshed, newest first, after the first `$3`. ORDER BY has `ended_at`, which is
    /// NULL, only because the index has it, too, so that the databases need not sort.
    LIST_LIVE_BEYOND = "SELECT id FROM sessions WHERE agent_id = $1 AND ended_at IS NULL AND expires_at > $2 \
         ORDER BY ended_at DESC, started_at DESC, id DESC LIMIT $4 + 0 OFFSET $3";
    REPLACE_REFRESH_TOKEN = "UPDATE sessions SET refresh_hash = $1, audiences = $2 WHERE id = $3 AND refresh_hash = $4 \
         AND ended_at IS NULL";
    OLDEST_EXPIRY = "SELECT MIN(expires_at) AS oldest FROM sessions WHERE expires_at >= $1";
    DELETE_EXPIRED_SESSIONS = "DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE expires_at >= $1 AND expires_at < $2 \
         ORDER BY expires_at LIMIT $3 + 0)";
}

row_list_statements! { ROW_LISTS:
    MARK_ENDED = "UPDATE sessions SET ended_at = $1, expires_at = CASE WHEN expires_at > $1 THEN $1 ELSE expires_at END \
         WHERE id IN ({$2}) AND ended_at IS NULL RETURNING id";
}

/// Inserts the session of a login. Returns false if another session has begun with the same challenge or assertion.
pub async fn insert(conn: &mut Conn, session: &Session, challenge: &str) -> Result<bool, StoreError> {
    conn.changes_row(INSERT_SESSION, insertion(session, challenge)).await
}

/// The parameters that insert a session: its challenge or assertion, and its `columns`.
pub(super) fn insertion(session: &Session, challenge: &str) -> [Parameter; 12] {
    let Session {
        id,
        agent,
        service,
        scope,
        started_at,
        started_revision,
        expires_at,
        ended_at,
        audiences,
        refresh: RefreshHashes { common, current },
    } = session;
    params![
        challenge,
        id,
        agent,
        service,
        scope,
        started_at,
        started_revision,
        expires_at,
        ended_at,
        audiences_text(audiences),
        common,
        current,
    ]
}

pub async fn find(conn: &mut Conn, id: SessionId) -> Result<Option<Session>, StoreError> {
    conn.find_row(FIND_SESSION, params![id], session_from_row).await
}

/// Lists up to `limit` live sessions of an agent that are older than its newest `kept` live sessions, newest first.
pub async fn list_live_beyond(
    conn: &mut Conn,
    agent: AgentId,
    now: Timestamp,
    kept: u32,
    limit: u32,
) -> Result<Vec<SessionId>, StoreError> {
    conn.list_rows(LIST_LIVE_BEYOND, params![agent, now, kept, limit], |row| row::parse(row, "id")).await
}

/// Marks sessions as ended. Also sets their expiry, so that housekeeping deletes them like expired ones. Returns the sessions that
/// had not ended before.
pub async fn mark_ended(conn: &mut Conn, ids: &[SessionId], now: Timestamp) -> Result<Vec<SessionId>, StoreError> {
    let ids = ids.iter().map(|id| params![id]);
    MARK_ENDED.list_rows(conn, &params![now], ids, |row| row::parse(row, "id")).await
}

/// Replaces the current refresh token of a live session, and the audiences of its tokens. Returns false if its current token is
/// another one than `used`.
pub async fn replace_refresh_token(
    conn: &mut Conn,
    used: &RefreshToken,
    new: &RefreshToken,
    audiences: &BTreeSet<Option<ServiceId>>,
) -> Result<bool, StoreError> {
    conn.changes_row(REPLACE_REFRESH_TOKEN, replacement(used, new, audiences)).await
}

/// The parameters that replace a refresh token: the new token and audiences, then the session and its current token.
pub(super) fn replacement(
    used: &RefreshToken,
    new: &RefreshToken,
    audiences: &BTreeSet<Option<ServiceId>>,
) -> [Parameter; 4] {
    params![new.hash(), audiences_text(audiences), used.session(), used.hash()]
}

/// Expired sessions. The caller adds how long we keep them. Unlike elsewhere, `delete` leaves rows that expired at exactly `until`.
pub const EXPIRED: ExpiringRows =
    ExpiringRows { oldest: OLDEST_EXPIRY, delete: DELETE_EXPIRED_SESSIONS, kept: Duration::ZERO };

/// The audiences as one text. When the session ends, `feed` searches this text for the recipients of the change.
fn audiences_text(audiences: &BTreeSet<Option<ServiceId>>) -> String {
    audiences.iter().copied().map(audience_text).collect::<Vec<_>>().join(",")
}

fn parse_audiences(text: &str) -> Result<BTreeSet<Option<ServiceId>>, StoreError> {
    let parse = |audience: &str| match audience {
        "" => Ok(None),
        service => service.parse().map(Some).map_err(|_| StoreError::Corrupt("audiences")),
    };
    text.split(',').map(parse).collect()
}

fn session_from_row(row: &AnyRow) -> Result<Session, StoreError> {
    Ok(Session {
        id: row::parse(row, "id")?,
        agent: row::parse(row, "agent_id")?,
        service: row::parse_optional(row, "service_id")?,
        scope: row::convert_optional(row, "scope")?,
        started_at: row::timestamp(row, "started_at")?,
        started_revision: row::revision(row, "started_revision")?,
        expires_at: row::timestamp(row, "expires_at")?,
        ended_at: row::optional_timestamp(row, "ended_at")?,
        audiences: parse_audiences(&row::get::<String>(row, "audiences")?)?,
        refresh: RefreshHashes {
            common: SecretHash::from_store(row::get(row, "refresh_common_hash")?),
            current: SecretHash::from_store(row::get(row, "refresh_hash")?),
        },
    })
}
