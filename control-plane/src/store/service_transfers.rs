//! The table of offers to other persons to become the owner of a service.

use super::{Conn, StoreError, agents::owner_from_row, query::params, row, statements::statements};
use crate::domain::{
    agent::Owner,
    page::{ListPage, Page},
    service::ServiceTransfer,
};
use countersign_identity::{ServiceId, Timestamp};
use sqlx::any::AnyRow;

macro_rules! columns {
    () => {
        "t.service_id, s.name, s.owner_issuer, s.owner_subject, t.new_owner_issuer, t.new_owner_subject, t.offered_at, \
         t.expires_at \
         FROM service_transfers t JOIN services s ON s.id = t.service_id"
    };
}

/// The condition for offers to a person (`$1`, `$2`) that can be accepted at a time (`$3`).
macro_rules! concerns_person {
    () => {
        "t.new_owner_issuer = $1 AND t.new_owner_subject = $2 AND t.expires_at > $3"
    };
}

statements! { STATEMENTS:
    UPSERT_OFFER = "INSERT INTO service_transfers (service_id, new_owner_issuer, new_owner_subject, offered_at, expires_at) \
         VALUES ($1, $2, $3, $4, $5) ON CONFLICT (service_id) DO UPDATE SET new_owner_issuer = excluded.new_owner_issuer, \
         new_owner_subject = excluded.new_owner_subject, offered_at = excluded.offered_at, expires_at = excluded.expires_at";
    FIND_OFFER = concat!("SELECT ", columns!(), " WHERE t.service_id = $1 AND t.expires_at > $2");
    /// An index without the expiry is enough, because housekeeping deletes expired offers.
    COUNT_OFFERS = concat!(
        "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM (SELECT 1 AS one FROM service_transfers t WHERE ", concerns_person!(),
        " LIMIT $4 + 0) counted"
    );
    LIST_OFFERS = concat!(
        "SELECT ", columns!(), " WHERE ", concerns_person!(),
        " AND t.service_id < $4 ORDER BY t.service_id DESC LIMIT $5 + 0 OFFSET $6"
    );
    DELETE_OFFER = "DELETE FROM service_transfers WHERE service_id = $1";
    OLDEST_EXPIRY = "SELECT MIN(expires_at) AS oldest FROM service_transfers";
    /// The DELETE repeats the condition of its inner SELECT, because another transaction may replace an offer between the SELECT
    /// and the DELETE. Without the unary plus, SQLite would read all these rows again for the DELETE.
    DELETE_EXPIRED_OFFERS = "DELETE FROM service_transfers WHERE service_id IN (SELECT service_id FROM service_transfers \
         WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 + 0) AND +expires_at <= $1";
}

/// Stores an offer, which replaces an earlier offer of the service.
pub async fn upsert(conn: &mut Conn, offer: &ServiceTransfer) -> Result<(), StoreError> {
    let ServiceTransfer { service, name: _, offered_by: _, new_owner, offered_at, expires_at } = offer;
    conn.apply(UPSERT_OFFER, params![service, new_owner.issuer, new_owner.subject, offered_at, expires_at]).await
}

/// Finds the offer of a service that can be accepted at `now`.
pub async fn find(conn: &mut Conn, service: ServiceId, now: Timestamp) -> Result<Option<ServiceTransfer>, StoreError> {
    conn.find_row(FIND_OFFER, params![service, now], offer_from_row).await
}

/// Lists the offers to a person that can be accepted at `now`, newest service first.
pub async fn list(
    conn: &mut Conn,
    person: &Owner,
    now: Timestamp,
    page: Page<ServiceId>,
) -> Result<ListPage<ServiceTransfer, ServiceId>, StoreError> {
    let Owner { issuer, subject } = person;
    let total = conn.count_items(COUNT_OFFERS, params![issuer, subject, now]).await?;
    let before = page.after.unwrap_or(ServiceId::from_bits(u128::MAX));
    let parameters = params![issuer, subject, now, before];
    conn.list_page(LIST_OFFERS, parameters, &page, total, offer_from_row, |offer| offer.service).await
}

/// Deletes the offer of a service, if there is one.
pub async fn delete(conn: &mut Conn, service: ServiceId) -> Result<(), StoreError> {
    conn.apply(DELETE_OFFER, params![service]).await
}

/// The earliest expiry of an offer; `None` if there are no offers.
pub async fn oldest_expiry(conn: &mut Conn) -> Result<Option<Timestamp>, StoreError> {
    conn.find_oldest(OLDEST_EXPIRY, params![]).await
}

/// Deletes up to `limit` offers that can no longer be accepted. Returns their number.
pub async fn delete_expired(conn: &mut Conn, now: Timestamp, limit: i64) -> Result<u64, StoreError> {
    conn.count_changes(DELETE_EXPIRED_OFFERS, params![now, limit]).await
}

fn offer_from_row(row: &AnyRow) -> Result<ServiceTransfer, StoreError> {
    let new_owner = Owner { issuer: row::get(row, "new_owner_issuer")?, subject: row::get(row, "new_owner_subject")? };
    Ok(ServiceTransfer {
        service: row::parse(row, "service_id")?,
        name: row::convert(row, "name")?,
        offered_by: owner_from_row(row)?.ok_or(StoreError::Corrupt("owner_issuer"))?,
        new_owner,
        offered_at: row::timestamp(row, "offered_at")?,
        expires_at: row::timestamp(row, "expires_at")?,
    })
}
