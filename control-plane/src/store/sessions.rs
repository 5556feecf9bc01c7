//! The tables of sessions and their refresh tokens.

use super::{Conn, StoreError, row, statements::statements, token_audiences::audience_text};
use crate::domain::{
    credential::{Credential, SecretHash},
    session::{RefreshToken, Session},
};
use countersign_identity::{AgentId, RefreshId, Revision, ServiceId, SessionId, Timestamp};
use sqlx::any::AnyRow;

statements! { STATEMENTS:
    INSERT_SESSION = "INSERT INTO sessions (id, challenge_id, agent_id, service_id, begun_at, begun_revision, expires_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (challenge_id) DO NOTHING";
    FIND_SESSION = "SELECT id, agent_id, service_id, begun_at, begun_revision, expires_at, ended_at FROM sessions WHERE id = $1";
    /// The sessions of an agent that can still be refreshed, newest first, after the first `$3`. Their `ended_at` is NULL. The order
    /// contains it so that it is the order of the index, and nothing is sorted.
    LIST_OLDEST_LIVE = "SELECT id FROM sessions WHERE agent_id = $1 AND ended_at IS NULL AND expires_at > $2 \
         ORDER BY ended_at DESC, begun_at DESC, id DESC LIMIT $4 + 0 OFFSET $3";
    MARK_SESSION_ENDED = "UPDATE sessions SET ended_at = $1, expires_at = CASE WHEN expires_at > $1 THEN $1 ELSE expires_at END \
         WHERE id = $2 AND ended_at IS NULL";
    INSERT_TOKEN = "INSERT INTO refresh_tokens (id, session_id, secret_hash, issued_at, audience, access_expires_at) \
         VALUES ($1, $2, $3, $4, $5, $6)";
    FIND_TOKEN = "SELECT t.id AS token_id, t.secret_hash, t.issued_at, t.used_at, s.id, s.agent_id, s.service_id, s.begun_at, \
         s.begun_revision, s.expires_at, s.ended_at FROM refresh_tokens t JOIN sessions s ON s.id = t.session_id WHERE t.id = $1";
    FIND_AGENT_BY_TOKEN =
        "SELECT s.agent_id FROM refresh_tokens t JOIN sessions s ON s.id = t.session_id WHERE t.id = $1";
    MARK_TOKEN_USED = "UPDATE refresh_tokens SET used_at = $1 WHERE id = $2 AND used_at IS NULL";
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

/// Inserts the session of a login with a challenge. Returns false if the challenge was already used.
pub async fn insert(conn: &mut Conn, session: &Session, challenge: &str) -> Result<bool, StoreError> {
    let result = sqlx::query(INSERT_SESSION)
        .bind(session.id.to_string())
        .bind(challenge)
        .bind(session.agent.to_string())
        .bind(session.service.map(|service| service.to_string()))
        .bind(session.started_at.micros())
        .bind(session.started_revision.number())
        .bind(session.expires_at.micros())
        .execute(conn)
        .await?;
    Ok(result.rows_affected() == 1)
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

/// Marks a session as ended. Its end is also its expiry, so that it is deleted like a session that expired then. Returns false if
/// the session had already ended.
pub async fn mark_ended(conn: &mut Conn, id: SessionId, now: Timestamp) -> Result<bool, StoreError> {
    Ok(sqlx::query(MARK_SESSION_ENDED).bind(now.micros()).bind(id.to_string()).execute(conn).await?.rows_affected()
        == 1)
}

/// Inserts a new refresh token, with the audience and the expiry of the access token that is issued with it.
pub async fn insert_token(
    conn: &mut Conn,
    token: &RefreshToken,
    (audience, access_expires_at): (Option<ServiceId>, Timestamp),
) -> Result<(), StoreError> {
    sqlx::query(INSERT_TOKEN)
        .bind(token.id.to_string())
        .bind(token.session.to_string())
        .bind(token.secret.to_store())
        .bind(token.issued_at.micros())
        .bind(audience_text(audience))
        .bind(access_expires_at.micros())
        .execute(conn)
        .await?;
    Ok(())
}

/// Finds the refresh token of a credential, and its session. Returns `None` for an unknown id and for a wrong secret.
pub async fn find_token_by_credential(
    conn: &mut Conn,
    credential: &Credential<RefreshId>,
) -> Result<Option<(RefreshToken, Session)>, StoreError> {
    let row = sqlx::query(FIND_TOKEN).bind(credential.id().to_string()).fetch_optional(conn).await?;
    let found = row.map(|row| Ok::<_, StoreError>((token_from_row(&row)?, session_from_row(&row)?))).transpose()?;
    Ok(found.filter(|(token, _)| token.secret.matches(credential)))
}

/// Finds the agent of the session that a refresh token belongs to.
pub async fn find_agent_by_token(conn: &mut Conn, id: RefreshId) -> Result<Option<AgentId>, StoreError> {
    let row = sqlx::query(FIND_AGENT_BY_TOKEN).bind(id.to_string()).fetch_optional(conn).await?;
    row.as_ref().map(|row| row::parse(row, "agent_id")).transpose()
}

/// Marks a refresh token as used. Returns false if the token was already used. Of several concurrent uses, only one succeeds.
pub async fn mark_token_used(conn: &mut Conn, id: RefreshId, now: Timestamp) -> Result<bool, StoreError> {
    Ok(sqlx::query(MARK_TOKEN_USED).bind(now.micros()).bind(id.to_string()).execute(conn).await?.rows_affected() == 1)
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
        started_at: row::timestamp(row, "begun_at")?,
        started_revision: Revision::new(row::get(row, "begun_revision")?),
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
