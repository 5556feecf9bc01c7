//! The table of signing keys. Public keys are stored in the clear, private keys are encrypted with the master key.

use super::{Conn, StoreError, query::params, row, statements::statements};
use crate::domain::{
    page::{ListPage, NumberThen, Page},
    signing_key::{SigningKey, SigningKeyRing},
};
use countersign_identity::{Kid, Timestamp};
use sqlx::any::AnyRow;

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT kid, public_point, published_at, signs_from, retires_at, token_lifetime, removed_at, revoked_at FROM signing_keys ",
            $rest
        )
    };
}

// If it is not decided when a key begins to sign, the largest number stands for the time, so that the key comes last.
statements! { STATEMENTS:
    LIST_LIVE_KEYS = select!("WHERE removed_at IS NULL ORDER BY published_at, COALESCE(signs_from, 9223372036854775807), kid");
    COUNT_KEYS = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM (SELECT 1 AS one FROM signing_keys LIMIT $1 + 0) counted";
    LIST_KEYS = select!(
        "WHERE (published_at, COALESCE(signs_from, 9223372036854775807), kid) < ($1, $2, $3) \
         ORDER BY published_at DESC, COALESCE(signs_from, 9223372036854775807) DESC, kid DESC LIMIT $4 + 0 OFFSET $5"
    );
    KEY_EXISTS = "SELECT 1 AS existed FROM signing_keys WHERE kid = $1";
    FIND_SEALED_PRIVATE = "SELECT sealed_private FROM signing_keys WHERE kid = $1 AND removed_at IS NULL";
    INSERT_KEY = "INSERT INTO signing_keys (kid, public_point, sealed_private, published_at, signs_from, token_lifetime) \
         VALUES ($1, $2, $3, $4, $5, $6)";
    UPDATE_KEY = "UPDATE signing_keys SET signs_from = $2, retires_at = $3, token_lifetime = $4, removed_at = $5, revoked_at = $6, \
         sealed_private = CASE WHEN CAST($5 AS BIGINT) IS NULL THEN sealed_private END WHERE kid = $1";
}

/// Loads the key ring: all keys whose tokens are accepted, in order of publication.
pub async fn load_ring(conn: &mut Conn) -> Result<SigningKeyRing, StoreError> {
    conn.list_rows(LIST_LIVE_KEYS, params![], signing_key_from_row).await
}

/// The position of a signing key in a list: the times of its publication and of its first signature in microseconds, then the
/// key id.
pub type SigningKeyPosition = NumberThen<NumberThen<String>>;

/// Lists all keys, including removed keys, newest first.
pub async fn list(
    conn: &mut Conn,
    page: &Page<SigningKeyPosition>,
) -> Result<ListPage<SigningKey, SigningKeyPosition>, StoreError> {
    let total = conn.count_items(COUNT_KEYS, params![]).await?;
    let before = match &page.after {
        None => params![i64::MAX, i64::MAX, ""],
        Some(NumberThen { number, then }) => params![number, then.number, then.then],
    };
    let position = |key: &SigningKey| {
        let signs_from = key.signs_from.map_or(i64::MAX, Timestamp::micros);
        NumberThen {
            number: key.published_at.micros(),
            then: NumberThen { number: signs_from, then: key.kid.as_str().to_owned() },
        }
    };
    conn.list_page(LIST_KEYS, before, page, total, signing_key_from_row, position).await
}

/// Whether a key exists, removed or not.
pub async fn exists(conn: &mut Conn, kid: &Kid) -> Result<bool, StoreError> {
    conn.has_row(KEY_EXISTS, params![kid]).await
}

/// Finds the encrypted private key, in hex; `None` if the key is removed.
pub async fn find_sealed_private(conn: &mut Conn, kid: &Kid) -> Result<Option<String>, StoreError> {
    conn.find_row(FIND_SEALED_PRIVATE, params![kid], |row| row::get(row, "sealed_private")).await
}

/// Inserts a new key.
pub async fn insert(conn: &mut Conn, key: &SigningKey, sealed_private: &str) -> Result<(), StoreError> {
    let SigningKey { kid, public, published_at, signs_from, token_lifetime, .. } = key;
    let public = hex::encode(public.to_sec1());
    conn.apply(INSERT_KEY, params![kid, public, sealed_private, published_at, signs_from, token_lifetime]).await
}

/// Updates the schedule of a key. Erases the private key if the key is removed. The key must exist.
pub async fn update(conn: &mut Conn, key: &SigningKey) -> Result<(), StoreError> {
    let SigningKey { kid, signs_from, retires_at, token_lifetime, removed_at, revoked_at, .. } = key;
    let parameters = params![kid, signs_from, retires_at, token_lifetime, removed_at, revoked_at];
    conn.must_change_row(UPDATE_KEY, "signing_keys", parameters).await
}

fn signing_key_from_row(row: &AnyRow) -> Result<SigningKey, StoreError> {
    Ok(SigningKey {
        kid: row::parse(row, "kid")?,
        public: row::public_key(row, "public_point")?,
        published_at: row::timestamp(row, "published_at")?,
        signs_from: row::optional_timestamp(row, "signs_from")?,
        retires_at: row::optional_timestamp(row, "retires_at")?,
        token_lifetime: row::duration(row, "token_lifetime")?,
        removed_at: row::optional_timestamp(row, "removed_at")?,
        revoked_at: row::optional_timestamp(row, "revoked_at")?,
    })
}
