//! Logins and their refresh tokens.

use super::{Conn, StoreError, row};
use crate::domain::{
    credential::{Credential, SecretHash},
    session::{RefreshToken, Session},
};
use countersign_identity::{AgentId, RefreshId, Revision, SessionId, Timestamp};
use sqlx::any::AnyRow;

/// Records a login with a challenge; false if somebody logged in with that challenge before.
pub async fn begin(conn: &mut Conn, session: &Session, challenge: &str) -> Result<bool, StoreError> {
    let sql = "INSERT INTO sessions (id, challenge_id, agent_id, service_id, begun_at, begun_revision, expires_at) \
               VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (challenge_id) DO NOTHING";
    let done = sqlx::query(sql)
        .bind(session.id.to_string())
        .bind(challenge)
        .bind(session.agent.to_string())
        .bind(session.service.map(|service| service.to_string()))
        .bind(session.started_at.micros())
        .bind(session.started_revision.number())
        .bind(session.expires_at.micros())
        .execute(conn)
        .await?;
    Ok(done.rows_affected() == 1)
}

/// True if somebody logged in with this challenge.
pub async fn used_challenge(conn: &mut Conn, challenge: &str) -> Result<bool, StoreError> {
    let sql = "SELECT 1 AS used FROM sessions WHERE challenge_id = $1";
    Ok(sqlx::query(sql).bind(challenge).fetch_optional(conn).await?.is_some())
}

/// The login with this id.
pub async fn find(conn: &mut Conn, id: SessionId) -> Result<Option<Session>, StoreError> {
    let sql =
        "SELECT id, agent_id, service_id, begun_at, begun_revision, expires_at, ended_at FROM sessions WHERE id = $1";
    sqlx::query(sql).bind(id.to_string()).fetch_optional(conn).await?.as_ref().map(read_session).transpose()
}

/// Ends a login; false if it had ended before.
pub async fn end(conn: &mut Conn, id: SessionId, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE sessions SET ended_at = $1 WHERE id = $2 AND ended_at IS NULL";
    Ok(sqlx::query(sql).bind(now.micros()).bind(id.to_string()).execute(conn).await?.rows_affected() == 1)
}

/// Issues a refresh token.
pub async fn insert_token(conn: &mut Conn, token: &RefreshToken) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO refresh_tokens (id, session_id, secret_hash, issued_at) VALUES ($1, $2, $3, $4)")
        .bind(token.id.to_string())
        .bind(token.session.to_string())
        .bind(token.secret.to_store())
        .bind(token.issued_at.micros())
        .execute(conn)
        .await?;
    Ok(())
}

/// The refresh token that a credential is. Unknown and wrong look the same.
pub async fn find_presented(
    conn: &mut Conn,
    presented: &Credential<RefreshId>,
) -> Result<Option<RefreshToken>, StoreError> {
    let sql = "SELECT id, session_id, secret_hash, issued_at, used_at FROM refresh_tokens WHERE id = $1";
    let found = sqlx::query(sql).bind(presented.id().to_string()).fetch_optional(conn).await?;
    let token = found.as_ref().map(read_token).transpose()?;
    Ok(token.filter(|token| token.secret.matches(presented)))
}

/// The agent whose login a refresh token continues.
pub async fn find_holder(conn: &mut Conn, id: RefreshId) -> Result<Option<AgentId>, StoreError> {
    let sql = "SELECT s.agent_id FROM refresh_tokens t JOIN sessions s ON s.id = t.session_id WHERE t.id = $1";
    let found = sqlx::query(sql).bind(id.to_string()).fetch_optional(conn).await?;
    found.as_ref().map(|found| row::parse(found, "agent_id")).transpose()
}

/// Marks a refresh token as used; false if it had been used before.
pub async fn use_token(conn: &mut Conn, id: RefreshId, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE refresh_tokens SET used_at = $1 WHERE id = $2 AND used_at IS NULL";
    Ok(sqlx::query(sql).bind(now.micros()).bind(id.to_string()).execute(conn).await?.rows_affected() == 1)
}

/// Forgets logins that ended by themselves before `horizon`.
pub async fn forget_before(conn: &mut Conn, horizon: Timestamp) -> Result<(), StoreError> {
    let tokens = "DELETE FROM refresh_tokens WHERE session_id IN (SELECT id FROM sessions WHERE expires_at < $1)";
    sqlx::query(tokens).bind(horizon.micros()).execute(&mut *conn).await?;
    sqlx::query("DELETE FROM sessions WHERE expires_at < $1").bind(horizon.micros()).execute(conn).await?;
    Ok(())
}

fn read_session(found: &AnyRow) -> Result<Session, StoreError> {
    Ok(Session {
        id: row::parse(found, "id")?,
        agent: row::parse(found, "agent_id")?,
        service: row::parse_optional(found, "service_id")?,
        started_at: row::instant(found, "begun_at")?,
        started_revision: Revision::new(row::get(found, "begun_revision")?),
        expires_at: row::instant(found, "expires_at")?,
        ended_at: row::optional_instant(found, "ended_at")?,
    })
}

fn read_token(found: &AnyRow) -> Result<RefreshToken, StoreError> {
    Ok(RefreshToken {
        id: row::parse(found, "id")?,
        session: row::parse(found, "session_id")?,
        secret: SecretHash::from_store(row::get(found, "secret_hash")?),
        issued_at: row::instant(found, "issued_at")?,
        used_at: row::optional_instant(found, "used_at")?,
    })
}
