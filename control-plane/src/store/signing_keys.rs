//! Signing keys: the public point in the open, the private half sealed.

use super::{StoreError, row};
use countersign_identity::Timestamp;
use sqlx::AnyConnection;

/// A signing key as it is kept.
#[derive(Clone)]
pub struct StoredKey {
    /// Its identifier.
    pub kid: String,
    /// The uncompressed point, hex.
    pub public_point: String,
    /// The private half under the master key, hex.
    pub sealed_private: String,
    /// The instant from which it signs.
    pub signs_from: Timestamp,
}

/// All keys whose tokens are believed, oldest first.
pub async fn published(conn: &mut AnyConnection) -> Result<Vec<StoredKey>, StoreError> {
    let sql = "SELECT kid, public_point, sealed_private, signs_from FROM signing_keys WHERE removed_at IS NULL ORDER BY signs_from, kid";
    let rows = sqlx::query(sql).fetch_all(conn).await?;
    rows.iter()
        .map(|found| {
            Ok(StoredKey {
                kid: row::get(found, "kid")?,
                public_point: row::get(found, "public_point")?,
                sealed_private: row::get(found, "sealed_private")?,
                signs_from: row::instant(found, "signs_from")?,
            })
        })
        .collect()
}

/// Publishes a new key.
pub async fn insert(conn: &mut AnyConnection, key: &StoredKey, now: Timestamp) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO signing_keys (kid, public_point, sealed_private, published_at, signs_from) VALUES ($1, $2, $3, $4, $5)")
        .bind(&key.kid)
        .bind(&key.public_point)
        .bind(&key.sealed_private)
        .bind(now.micros())
        .bind(key.signs_from.micros())
        .execute(conn)
        .await?;
    Ok(())
}
