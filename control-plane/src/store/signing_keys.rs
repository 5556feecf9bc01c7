//! Signing keys: the public point in the open, the private half sealed.

use super::{Conn, StoreError, row};
use crate::domain::{
    page::{Listed, Page},
    signing_key::{SigningKey, SigningKeyRing},
};
use countersign_identity::{AgentKey, Kid, Timestamp};
use sqlx::any::AnyRow;
use std::time::Duration;

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT kid, public_point, published_at, signs_from, retires_at, token_life, removed_at, revoked_at FROM signing_keys ",
            $rest
        )
    };
}

/// All keys whose tokens are believed, in the order of their publication.
pub async fn ring(conn: &mut Conn) -> Result<SigningKeyRing, StoreError> {
    let sql = select!("WHERE removed_at IS NULL ORDER BY published_at, COALESCE(signs_from, 9223372036854775807), kid");
    sqlx::query(sql).fetch_all(conn).await?.iter().map(read).collect()
}

/// All keys that ever were, the one published last first.
pub async fn list(conn: &mut Conn, page: Page) -> Result<Listed<SigningKey>, StoreError> {
    let count = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM signing_keys";
    let total = row::total(&sqlx::query(count).fetch_one(&mut *conn).await?)?;
    let sql =
        select!("ORDER BY published_at DESC, COALESCE(signs_from, 9223372036854775807) DESC, kid LIMIT $1 OFFSET $2");
    let rows = sqlx::query(sql).bind(page.limit).bind(page.offset).fetch_all(conn).await?;
    Ok(Listed { items: rows.iter().map(read).collect::<Result<_, _>>()?, total })
}

/// True if there ever was this key.
pub async fn existed(conn: &mut Conn, kid: &Kid) -> Result<bool, StoreError> {
    let sql = "SELECT 1 AS existed FROM signing_keys WHERE kid = $1";
    Ok(sqlx::query(sql).bind(kid.as_str()).fetch_optional(conn).await?.is_some())
}

/// The private half of a key under the master key, hex; `None` if the key is removed.
pub async fn sealed_private(conn: &mut Conn, kid: &Kid) -> Result<Option<String>, StoreError> {
    let sql = "SELECT sealed_private FROM signing_keys WHERE kid = $1 AND removed_at IS NULL";
    let found = sqlx::query(sql).bind(kid.as_str()).fetch_optional(conn).await?;
    found.map(|found| row::get(&found, "sealed_private")).transpose()
}

/// Publishes a new key.
pub async fn insert(conn: &mut Conn, key: &SigningKey, sealed_private: &str) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO signing_keys (kid, public_point, sealed_private, published_at, signs_from, token_life) VALUES ($1, $2, $3, $4, $5, $6)")
        .bind(key.kid.as_str())
        .bind(hex::encode(key.public.to_sec1()))
        .bind(sealed_private)
        .bind(key.published_at.micros())
        .bind(key.signs_from.map(Timestamp::micros))
        .bind(micros(key.token_lifetime))
        .execute(conn)
        .await?;
    Ok(())
}

/// Keeps what became of a key. The private half of one that is removed is forgotten.
pub async fn update(conn: &mut Conn, key: &SigningKey) -> Result<(), StoreError> {
    let sql = "UPDATE signing_keys SET signs_from = $2, retires_at = $3, token_life = $4, removed_at = $5, revoked_at = $6, \
               sealed_private = CASE WHEN $5 IS NULL THEN sealed_private END WHERE kid = $1";
    let done = sqlx::query(sql)
        .bind(key.kid.as_str())
        .bind(key.signs_from.map(Timestamp::micros))
        .bind(key.retires_at.map(Timestamp::micros))
        .bind(micros(key.token_lifetime))
        .bind(key.removed_at.map(Timestamp::micros))
        .bind(key.revoked_at.map(Timestamp::micros))
        .execute(conn)
        .await?;
    if done.rows_affected() == 1 { Ok(()) } else { Err(StoreError::Rows("signing_keys")) }
}

fn micros(life: Duration) -> i64 {
    i64::try_from(life.as_micros()).unwrap_or(i64::MAX)
}

fn read(found: &AnyRow) -> Result<SigningKey, StoreError> {
    let corrupt = || StoreError::Corrupt("public_point");
    let point = hex::decode(row::get::<String>(found, "public_point")?).map_err(|_| corrupt())?;
    let public = AgentKey::from_sec1(&point).map_err(|_| corrupt())?;
    let life = u64::try_from(row::get::<i64>(found, "token_life")?).map_err(|_| StoreError::Corrupt("token_life"))?;
    Ok(SigningKey {
        kid: row::parse(found, "kid")?,
        public,
        published_at: row::instant(found, "published_at")?,
        signs_from: row::optional_instant(found, "signs_from")?,
        retires_at: row::optional_instant(found, "retires_at")?,
        token_lifetime: Duration::from_micros(life),
        removed_at: row::optional_instant(found, "removed_at")?,
        revoked_at: row::optional_instant(found, "revoked_at")?,
    })
}
