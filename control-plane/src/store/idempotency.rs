//! Requests that were done, and what was answered.

use super::{Conn, StoreError, row};
use crate::domain::idempotency::{Memory, REMEMBERED, Ticket};
use countersign_identity::Timestamp;

/// Takes a ticket: whoever comes with the same one waits until the transaction ends. So it is taken first.
pub async fn take(conn: &mut Conn, ticket: &Ticket, now: Timestamp) -> Result<Memory, StoreError> {
    let sql = "INSERT INTO idempotency (id, body_digest, response, done_at) VALUES ($1, $2, '', $3) \
               ON CONFLICT (id) DO UPDATE SET body_digest = excluded.body_digest, response = '', done_at = excluded.done_at \
               WHERE idempotency.done_at <= $4";
    let query = sqlx::query(sql).bind(&ticket.id).bind(&ticket.body_digest).bind(now.micros());
    if query.bind(now.saturating_sub(REMEMBERED).micros()).execute(&mut *conn).await?.rows_affected() == 1 {
        return Ok(Memory::New);
    }
    let found = sqlx::query("SELECT body_digest, response FROM idempotency WHERE id = $1").bind(&ticket.id);
    let found = found.fetch_one(conn).await?;
    let same = row::get::<String>(&found, "body_digest")? == ticket.body_digest;
    if same { Ok(Memory::Done(row::get(&found, "response")?)) } else { Ok(Memory::Reused) }
}

/// Keeps what is answered.
pub async fn keep(conn: &mut Conn, ticket: &Ticket, response: &str) -> Result<(), StoreError> {
    let query = sqlx::query("UPDATE idempotency SET response = $1 WHERE id = $2").bind(response).bind(&ticket.id);
    if query.execute(conn).await?.rows_affected() == 1 { Ok(()) } else { Err(StoreError::Rows("keep_response")) }
}

/// Forgets what was done too long ago.
pub async fn forget(conn: &mut Conn, now: Timestamp) -> Result<(), StoreError> {
    let query = sqlx::query("DELETE FROM idempotency WHERE done_at <= $1");
    query.bind(now.saturating_sub(REMEMBERED).micros()).execute(conn).await?;
    Ok(())
}
