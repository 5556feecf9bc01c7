//! Responses to requests with an `Idempotency-Key`, stored to return the same response to a repeated request.

use super::{Conn, StoreError, query::params, retention::ExpiringRows, row, statements::statements};
use crate::domain::idempotency::{RESPONSE_RETENTION, RequestFingerprint, StoredResponse};
use countersign_identity::Timestamp;
use sqlx::any::AnyRow;

statements! { STATEMENTS:
    CLAIM_KEY = "INSERT INTO idempotent_requests (id, body_digest, response, completed_at) VALUES ($1, $2, '', $3) \
         ON CONFLICT (id) DO UPDATE SET body_digest = excluded.body_digest, response = '', completed_at = excluded.completed_at \
         WHERE idempotent_requests.completed_at <= $4";
    FIND_RESPONSE = "SELECT body_digest, response FROM idempotent_requests WHERE id = $1";
    SET_RESPONSE = "UPDATE idempotent_requests SET response = $1 WHERE id = $2";
    OLDEST_KEY = "SELECT MIN(completed_at) AS oldest FROM idempotent_requests WHERE completed_at >= $1";
    /// The DELETE repeats the condition of its inner SELECT, because another transaction may claim a key again between the SELECT
    /// and the DELETE. Without the unary plus, SQLite would read all these rows again for the DELETE.
    DELETE_EXPIRED_KEYS = "DELETE FROM idempotent_requests WHERE id IN \
         (SELECT id FROM idempotent_requests WHERE completed_at >= $1 AND completed_at <= $2 ORDER BY completed_at LIMIT $3 + 0) \
         AND +completed_at <= $2";
}

/// Claims an idempotency key, or finds the response of the request that claimed the key before. Call this first in the transaction:
/// it locks the key until the transaction ends, so that a concurrent request with the same key waits.
pub async fn claim_key(
    conn: &mut Conn,
    fingerprint: &RequestFingerprint,
    now: Timestamp,
) -> Result<StoredResponse, StoreError> {
    let RequestFingerprint { id, body_digest } = fingerprint;
    let expired = now.saturating_sub(RESPONSE_RETENTION);
    if conn.changes_row(CLAIM_KEY, params![id, body_digest, now, expired]).await? {
        return Ok(StoredResponse::New);
    }
    let response_from_row = |row: &AnyRow| {
        let same_body = row::get::<String>(row, "body_digest")? == *body_digest;
        Ok(if same_body { StoredResponse::Completed(row::get(row, "response")?) } else { StoredResponse::BodyDiffers })
    };
    conn.read_row(FIND_RESPONSE, params![id], response_from_row).await
}

/// Sets the response for a claimed idempotency key.
pub async fn set_response(conn: &mut Conn, fingerprint: &RequestFingerprint, response: &str) -> Result<(), StoreError> {
    conn.must_change_row(SET_RESPONSE, "set_response", params![response, fingerprint.id]).await
}

/// Idempotency keys that have expired.
pub const EXPIRED: ExpiringRows =
    ExpiringRows { oldest: OLDEST_KEY, delete: DELETE_EXPIRED_KEYS, kept: RESPONSE_RETENTION };
