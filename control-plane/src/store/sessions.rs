//! The tables of sessions and their refresh tokens.

use super::{
    Conn, StoreError, row,
    row_lists::{Parameter, RowListStatement},
    statements::statements,
    token_audiences::audience_text,
};
use crate::domain::{
    credential::{Credential, SecretHash},
    session::{RefreshToken, Session},
};
use countersign_identity::{AgentId, RefreshId, Revision, ServiceId, SessionId, Timestamp};
use sqlx::any::AnyRow;

/// The parameters of a session in [`INSERT_SESSIONS`].
macro_rules! session_row {
    () => {
        "(CAST($1 AS TEXT), CAST($2 AS TEXT), CAST($3 AS TEXT), CAST($4 AS TEXT), CAST($5 AS BIGINT), CAST($6 AS BIGINT), \
         CAST($7 AS BIGINT), CAST($8 AS TEXT))"
    };
}

/// The parameters of a refresh token in [`INSERT_TOKENS`].
macro_rules! token_row {
    () => {
        "(CAST($1 AS TEXT), CAST($2 AS TEXT), CAST($3 AS TEXT), CAST($4 AS BIGINT), CAST($5 AS TEXT), CAST($6 AS BIGINT))"
    };
}

/// The parameter of a refresh token in [`FIND_TOKENS`].
macro_rules! token {
    () => {
        "$1"
    };
}

/// The parameter of a session in [`MARK_SESSIONS_ENDED`].
macro_rules! ended_session {
    () => {
        "$2"
    };
}

/// The parameter of a refresh token in [`MARK_TOKENS_USED`].
macro_rules! used_token {
    () => {
        "$2"
    };
}

statements! { STATEMENTS:
    INSERT_SESSIONS = concat!(
        "INSERT INTO sessions (id, challenge_id, agent_id, service_id, started_at, started_revision, expires_at, scope) \
         SELECT column1, column2, column3, column4, column5, column6, column7, column8 FROM (VALUES ", session_row!(), ") AS v \
         WHERE column1 <> ''"
    );
    FIND_SESSION = "SELECT id, agent_id, service_id, started_at, started_revision, expires_at, ended_at, scope FROM sessions WHERE id = $1";
    /// The sessions of an agent that can still be refreshed, newest first, after the first `$3`. Their `ended_at` is NULL. The order
    /// contains it so that it is the order of the index, and nothing is sorted.
    LIST_OLDEST_LIVE = "SELECT id FROM sessions WHERE agent_id = $1 AND ended_at IS NULL AND expires_at > $2 \
         ORDER BY ended_at DESC, started_at DESC, id DESC LIMIT $4 + 0 OFFSET $3";
    MARK_SESSIONS_ENDED = concat!(
        "UPDATE sessions SET ended_at = $1, expires_at = CASE WHEN expires_at > $1 THEN $1 ELSE expires_at END \
         WHERE id IN (", ended_session!(), ") AND ended_at IS NULL RETURNING id"
    );
    INSERT_TOKENS = concat!(
        "INSERT INTO refresh_tokens (id, session_id, secret_hash, issued_at, audience, access_expires_at) \
         SELECT column1, column2, column3, column4, column5, column6 FROM (VALUES ", token_row!(), ") AS v WHERE column1 <> ''"
    );
    FIND_TOKENS = concat!(
        "SELECT t.id AS token_id, t.secret_hash, t.issued_at, t.used_at, s.id, s.agent_id, s.service_id, s.started_at, \
         s.started_revision, s.expires_at, s.ended_at, s.scope FROM refresh_tokens t JOIN sessions s ON s.id = t.session_id \
         WHERE t.id IN (", token!(), ")"
    );
    FIND_AGENT_BY_TOKEN =
        "SELECT s.agent_id FROM refresh_tokens t JOIN sessions s ON s.id = t.session_id WHERE t.id = $1";
    MARK_TOKENS_USED = concat!("UPDATE refresh_tokens SET used_at = $1 WHERE id IN (", used_token!(), ") AND used_at IS NULL");
    OLDEST_EXPIRY = "SELECT MIN(expires_at) AS oldest FROM sessions WHERE expires_at >= $1";
    /// The first `$3` refresh tokens in the order of the expiry of their sessions. Without this order, PostgreSQL may read refresh
    /// tokens from the beginning of the table until it has found `$3` of expired sessions.
    DELETE_EXPIRED_TOKENS = "DELETE FROM refresh_tokens WHERE id IN (SELECT t.id FROM sessions s \
         JOIN refresh_tokens t ON t.session_id = s.id WHERE s.expires_at >= $1 AND s.expires_at < $2 \
         ORDER BY s.expires_at LIMIT $3 + 0)";
    /// Of the `$3` sessions that expired first, those without refresh tokens.
    DELETE_EXPIRED_SESSIONS = "DELETE FROM sessions WHERE id IN (SELECT e.id FROM \
         (SELECT s.id FROM sessions s WHERE s.expires_at >= $1 AND s.expires_at < $2 ORDER BY s.expires_at LIMIT $3 + 0) e \
         WHERE NOT EXISTS (SELECT 1 FROM refresh_tokens t WHERE t.session_id = e.id))";
}

const INSERT: RowListStatement = RowListStatement { sql: INSERT_SESSIONS, row: session_row!() };
const INSERT_REFRESH: RowListStatement = RowListStatement { sql: INSERT_TOKENS, row: token_row!() };
const FIND_REFRESH: RowListStatement = RowListStatement { sql: FIND_TOKENS, row: token!() };
const MARK_ENDED: RowListStatement = RowListStatement { sql: MARK_SESSIONS_ENDED, row: ended_session!() };
const MARK_USED: RowListStatement = RowListStatement { sql: MARK_TOKENS_USED, row: used_token!() };

/// Inserts the sessions of logins, each with its challenge, which no other session may have. The caller must hold the locks on the
/// agents.
pub async fn insert(conn: &mut Conn, sessions: &[(&Session, String)]) -> Result<(), StoreError> {
    let row = |(session, challenge): &(&Session, String)| -> [Parameter; 8] {
        [
            session.id.to_string().into(),
            challenge.clone().into(),
            session.agent.to_string().into(),
            session.service.map(|service| service.to_string()).into(),
            session.started_at.micros().into(),
            session.started_revision.number().into(),
            session.expires_at.micros().into(),
            session.scope.as_ref().map(ToString::to_string).into(),
        ]
    };
    INSERT.execute(conn, &[], sessions.iter().map(row)).await?;
    Ok(())
}

/// Finds a session by id.
pub async fn find(conn: &mut Conn, id: SessionId) -> Result<Option<Session>, StoreError> {
    sqlx::query(FIND_SESSION)
        .bind(id.to_string())
        .fetch_optional(conn)
        .await?
        .as_ref()
        .map(session_from_row)
        .transpose()
}

/// Lists up to `limit` live sessions of an agent that are older than its newest `kept` live sessions, newest first.
pub async fn list_live_beyond(
    conn: &mut Conn,
    agent: AgentId,
    now: Timestamp,
    (kept, limit): (u32, u32),
) -> Result<Vec<SessionId>, StoreError> {
    let query = sqlx::query(LIST_OLDEST_LIVE).bind(agent.to_string()).bind(now.micros());
    let rows = query.bind(i64::from(kept)).bind(i64::from(limit)).fetch_all(conn).await?;
    rows.iter().map(|row| row::parse(row, "id")).collect()
}

/// Marks sessions as ended. The end of a session is also its expiry, so that it is deleted like a session that expired then. Returns
/// those that had not ended before.
pub async fn mark_ended(conn: &mut Conn, ids: &[SessionId], now: Timestamp) -> Result<Vec<SessionId>, StoreError> {
    let rows = ids.iter().map(|id| [id.to_string().into()]);
    let ended = MARK_ENDED.fetch_all(conn, &[now.micros().into()], rows).await?;
    ended.iter().map(|row| row::parse(row, "id")).collect()
}

/// Inserts new refresh tokens, each with the audience and the expiry of the access token that is issued with it.
pub async fn insert_tokens(
    conn: &mut Conn,
    tokens: &[(RefreshToken, Option<ServiceId>)],
    access_expires_at: Timestamp,
) -> Result<(), StoreError> {
    let row = |(token, audience): &(RefreshToken, Option<ServiceId>)| -> [Parameter; 6] {
        [
            token.id.to_string().into(),
            token.session.to_string().into(),
            token.secret.to_store().to_owned().into(),
            token.issued_at.micros().into(),
            audience_text(*audience).into(),
            access_expires_at.micros().into(),
        ]
    };
    INSERT_REFRESH.execute(conn, &[], tokens.iter().map(row)).await?;
    Ok(())
}

/// Finds the refresh tokens of credentials, each with its session. An unknown id and a wrong secret have no result.
pub async fn find_tokens_by_credential(
    conn: &mut Conn,
    credentials: &[&Credential<RefreshId>],
) -> Result<Vec<(RefreshToken, Session)>, StoreError> {
    let ids = credentials.iter().map(|credential| [credential.id().to_string().into()]);
    let rows = FIND_REFRESH.fetch_all(conn, &[], ids).await?;
    let found: Vec<_> =
        rows.iter().map(|row| Ok((token_from_row(row)?, session_from_row(row)?))).collect::<Result<_, StoreError>>()?;
    let is_proven = |(token, _): &(RefreshToken, Session)| {
        credentials.iter().any(|credential| credential.id() == token.id && token.secret.matches(credential))
    };
    Ok(found.into_iter().filter(is_proven).collect())
}

/// Finds the agent of the session that a refresh token belongs to.
pub async fn find_agent_by_token(conn: &mut Conn, id: RefreshId) -> Result<Option<AgentId>, StoreError> {
    let row = sqlx::query(FIND_AGENT_BY_TOKEN).bind(id.to_string()).fetch_optional(conn).await?;
    row.as_ref().map(|row| row::parse(row, "agent_id")).transpose()
}

/// Marks refresh tokens as used. The caller must hold the locks on the agents, and must have found that no token was used.
pub async fn mark_tokens_used(conn: &mut Conn, ids: &[RefreshId], now: Timestamp) -> Result<(), StoreError> {
    let rows = ids.iter().map(|id| [id.to_string().into()]);
    let marked = MARK_USED.execute(conn, &[now.micros().into()], rows).await?;
    if marked == ids.len() as u64 { Ok(()) } else { Err(StoreError::UnexpectedRowCount("mark_tokens_used")) }
}

/// The statements with several rows, for the conformance tests.
#[cfg(test)]
pub(super) fn dynamic_statements() -> Vec<String> {
    [INSERT, INSERT_REFRESH, FIND_REFRESH, MARK_ENDED, MARK_USED].map(RowListStatement::texts).concat()
}

/// The earliest expiry of a session, at or after `from`.
pub async fn oldest_expiry(conn: &mut Conn, from: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    row::find_oldest(OLDEST_EXPIRY, conn, Some(from)).await
}

/// Deletes sessions that expired at or after `from` and before `horizon`, with their refresh tokens: up to `limit` rows, but at least one refresh token
/// or session. Returns the number of rows. A session can have any number of refresh tokens, because each refresh adds one, so a
/// session is deleted only after its last refresh token.
pub async fn delete_expired(
    conn: &mut Conn,
    (from, horizon): (Timestamp, Timestamp),
    limit: i64,
) -> Result<u64, StoreError> {
    let mut deleted = 0;
    for sql in [DELETE_EXPIRED_TOKENS, DELETE_EXPIRED_SESSIONS] {
        let query = sqlx::query(sql).bind(from.micros()).bind(horizon.micros()).bind((limit / 2).max(1));
        deleted += query.execute(&mut *conn).await?.rows_affected();
    }
    Ok(deleted)
}

fn session_from_row(row: &AnyRow) -> Result<Session, StoreError> {
    Ok(Session {
        id: row::parse(row, "id")?,
        agent: row::parse(row, "agent_id")?,
        service: row::parse_optional(row, "service_id")?,
        scope: row::convert_optional(row, "scope")?,
        started_at: row::timestamp(row, "started_at")?,
        started_revision: Revision::new(row::get(row, "started_revision")?),
        expires_at: row::timestamp(row, "expires_at")?,
        ended_at: row::optional_timestamp(row, "ended_at")?,
    })
}

fn token_from_row(row: &AnyRow) -> Result<RefreshToken, StoreError> {
    Ok(RefreshToken {
        id: row::parse(row, "token_id")?,
        session: row::parse(row, "id")?,
        secret: SecretHash::from_store(row::get(row, "secret_hash")?),
        issued_at: row::timestamp(row, "issued_at")?,
        used_at: row::optional_timestamp(row, "used_at")?,
    })
}
