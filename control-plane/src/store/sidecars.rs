//! The sync streams of sidecars that may decide, and the control planes that serve them.
//!
//! Each process of a sidecar has one row per API key in its settings. The row has the newest stream: [`write`] never replaces a later
//! one.

use super::{Conn, StoreError, retention, row, statements::statements};
use crate::domain::{
    page::{ListPage, Page},
    sidecar::{SidecarIdentity, SidecarInstance, SidecarProgress},
};
use countersign_identity::{ApiKeyId, Revision, ServiceId, Timestamp};
use sqlx::any::AnyRow;
use std::time::Duration;

/// How long we keep a sidecar after it refuses all requests. Receipts need it: some changes were in force there only from then on.
pub const KEPT_AFTER_EXPIRY: Duration = Duration::from_hours(1);

macro_rules! select_sidecars {
    ($condition:literal) => {
        concat!(
            "SELECT instance, key_id, service_id, control_plane_id, stream, address, release, connected_at, \
             applied_revision, required_revision, applied_at, confirmed_at, ended_at, max_staleness, \
             (SELECT distributed_revision FROM control_planes WHERE id = control_plane_id) AS distributed_revision \
             FROM sidecars WHERE ",
            $condition
        )
    };
}

/// Begins to insert rows.
macro_rules! insert_sidecars {
    () => {
        "INSERT INTO sidecars (service_id, instance, key_id, control_plane_id, stream, address, release, connected_at, \
         applied_revision, required_revision, applied_at, confirmed_at, ended_at, expires_at, max_staleness) "
    };
}

/// Replaces an existing row. An earlier stream may have told the process a longer maximum staleness.
macro_rules! or_replace {
    () => {
        " ON CONFLICT (service_id, instance) DO UPDATE SET key_id = excluded.key_id, \
         control_plane_id = excluded.control_plane_id, stream = excluded.stream, address = excluded.address, \
         release = excluded.release, connected_at = excluded.connected_at, applied_revision = excluded.applied_revision, \
         required_revision = excluded.required_revision, applied_at = excluded.applied_at, \
         confirmed_at = excluded.confirmed_at, ended_at = excluded.ended_at, expires_at = excluded.ended_at + \
         CASE WHEN sidecars.max_staleness > excluded.max_staleness THEN sidecars.max_staleness ELSE excluded.max_staleness END, \
         max_staleness = \
         CASE WHEN sidecars.max_staleness > excluded.max_staleness THEN sidecars.max_staleness ELSE excluded.max_staleness END \
         WHERE sidecars.stream <= excluded.stream"
    };
}

statements! { STATEMENTS:
    WRITE_STREAM = concat!(
        insert_sidecars!(),
        "VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
        or_replace!()
    );
    DELETE_STREAM = "DELETE FROM sidecars WHERE service_id = $1 AND instance = $2 AND control_plane_id = $3 AND stream = $4";
    FIND_PROCESS = "SELECT service_id FROM sidecars WHERE service_id = $1 AND instance = $2";
    FORGET_ENDED = "DELETE FROM sidecars WHERE service_id = $1 AND instance = $2 AND ended_at IS NOT NULL";
    LONGEST_STALENESS = "SELECT CAST(COALESCE(MAX(max_staleness), 0) AS BIGINT) AS longest FROM sidecars";
    WRITE_UNKNOWN = concat!(
        insert_sidecars!(),
        "SELECT id, $1, $2, '', 0, '', '', CAST($3 AS BIGINT), 0, 0, NULL, CAST($3 AS BIGINT), CAST($3 AS BIGINT), \
         CAST($4 AS BIGINT), CAST($5 AS BIGINT) FROM services WHERE deleted_at IS NULL",
        or_replace!()
    );
    COUNT_OF_SERVICE = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM (SELECT 1 AS one FROM sidecars WHERE service_id = $1 \
         AND (expires_at IS NULL OR expires_at > $2) LIMIT $3 + 0) counted";
    /// The position begins with the service, so that the primary key is the only index that fits.
    LIST_OF_SERVICE = select_sidecars!(
        "service_id = $1 AND (service_id, instance) > ($1, $2) AND (expires_at IS NULL OR expires_at > $3) \
         ORDER BY service_id, instance LIMIT $4 + 0 OFFSET $5"
    );
    NEXT_SERVICE = "SELECT MIN(service_id) AS service_id FROM sidecars WHERE service_id > $1";
    /// If the transaction runs again, the row exists.
    REGISTER = "INSERT INTO control_planes (id, seen_at, distributed_revision) VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE \
         SET seen_at = excluded.seen_at, distributed_revision = excluded.distributed_revision";
    RENEW = "UPDATE control_planes SET seen_at = $2, distributed_revision = $3 WHERE id = $1";
    IS_REGISTERED = "SELECT 1 AS found FROM control_planes WHERE id = $1";
    DELETE_CONTROL_PLANE = "DELETE FROM control_planes WHERE id = $1";
    LIST_CONTROL_PLANES = "SELECT id, seen_at FROM control_planes WHERE id <> $1 ORDER BY id";
    /// Waits until open transactions of the control plane have ended.
    DELETE_KILLED = "DELETE FROM control_planes WHERE id = $1 AND seen_at = $2";
    END_STREAMS_OF_KILLED = "UPDATE sidecars SET ended_at = $1, expires_at = $1 + max_staleness \
         WHERE control_plane_id = $2 AND ended_at IS NULL";
    COUNT_SILENT = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM (SELECT 1 AS one FROM sidecars WHERE expires_at > $1 ORDER BY expires_at LIMIT $2 + 0) silent";
    OLDEST_EXPIRY = "SELECT MIN(expires_at) AS oldest FROM sidecars WHERE expires_at >= $1";
    DELETE_EXPIRED = "DELETE FROM sidecars WHERE (service_id, instance) IN (SELECT service_id, instance \
         FROM sidecars WHERE expires_at >= $1 AND expires_at <= $2 ORDER BY expires_at LIMIT $3 + 0) AND +expires_at <= $2";
}

/// A running control plane.
#[derive(Debug, Clone, Copy)]
pub struct ControlPlane<'a> {
    /// Names the process.
    pub id: &'a str,
    /// The current time by its clock.
    pub seen_at: Timestamp,
    /// Its streams contain all changes up to this revision.
    pub distributed: Revision,
}

/// Another control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Names the process.
    pub id: String,
    /// The time that it last wrote, by its own clock.
    pub seen_at: Timestamp,
}

/// A stream to record.
#[derive(Debug)]
pub struct StreamRecord<'a> {
    /// The sidecar.
    pub identity: &'a SidecarIdentity,
    /// The control plane with the stream.
    pub control_plane: &'a str,
    /// The number of the stream in the process of the sidecar.
    pub stream: i64,
    /// When it connected.
    pub connected_at: Timestamp,
    /// How far its data reaches.
    pub progress: SidecarProgress,
    /// When it was last confirmed.
    pub confirmed_at: Option<Timestamp>,
    /// The stream has ended at this time or before.
    pub ended_at: Option<Timestamp>,
    /// The age of the confirmation at which it refuses all requests.
    pub max_staleness: Duration,
}

/// A recorded sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedSidecar {
    /// What it says of itself.
    pub identity: SidecarIdentity,
    /// The control plane with its stream.
    pub control_plane: String,
    /// The number of the stream in the process of the sidecar.
    pub stream: i64,
    /// When it connected.
    pub connected_at: Timestamp,
    /// How far its data reaches.
    pub progress: SidecarProgress,
    /// The last confirmation that was recorded.
    pub confirmed_at: Option<Timestamp>,
    /// When its stream had ended.
    pub ended_at: Option<Timestamp>,
    /// The longest that the process was ever told.
    pub max_staleness: Duration,
    /// What the control plane has distributed; `None` if it was killed.
    pub distributed: Option<Revision>,
}

/// Writes the state of a stream, and replaces an earlier stream of the process. Returns false, and changes nothing, if the row has a
/// later stream of the process.
pub async fn write(conn: &mut Conn, record: &StreamRecord<'_>) -> Result<bool, StoreError> {
    let StreamRecord { identity, control_plane, stream, connected_at, progress, confirmed_at, ended_at, max_staleness } =
        record;
    let SidecarIdentity { instance, api_key, service, address, release } = identity;
    let SidecarProgress { applied, required, applied_at } = progress;
    let expires_at = ended_at.map(|at| at.saturating_add(*max_staleness));
    let query = sqlx::query(WRITE_STREAM).bind(service.to_string()).bind(instance.to_string());
    let query = query.bind(api_key.to_string()).bind(*control_plane).bind(stream).bind(address).bind(release);
    let query = query.bind(connected_at.micros()).bind(applied.number()).bind(required.number());
    let query = query.bind(applied_at.map(Timestamp::micros)).bind(confirmed_at.map(Timestamp::micros));
    let query = query.bind(ended_at.map(Timestamp::micros)).bind(expires_at.map(Timestamp::micros));
    Ok(query.bind(micros(*max_staleness)).execute(conn).await?.rows_affected() > 0)
}

/// Deletes the row of a sidecar that decides no more. Does nothing if the row has another stream.
pub async fn delete(conn: &mut Conn, record: &StreamRecord<'_>) -> Result<(), StoreError> {
    let SidecarIdentity { service, instance, .. } = record.identity;
    let query = sqlx::query(DELETE_STREAM).bind(service.to_string()).bind(instance.to_string());
    query.bind(record.control_plane).bind(record.stream).execute(conn).await?;
    Ok(())
}

/// Deletes the row of a process, if its stream has ended. Another process says that this one is gone. Returns whether the row is gone.
pub async fn forget(conn: &mut Conn, service: ServiceId, instance: SidecarInstance) -> Result<bool, StoreError> {
    let (service, instance) = (service.to_string(), instance.to_string());
    sqlx::query(FORGET_ENDED).bind(&service).bind(&instance).execute(&mut *conn).await?;
    let recorded = sqlx::query(FIND_PROCESS).bind(&service).bind(&instance).fetch_optional(conn).await?;
    Ok(recorded.is_none())
}

/// Records for each service that it may have sidecars which the database does not know. Their last confirmation is not later than
/// `now`. They refuse all requests `max_staleness` later, or after the longest maximum staleness in the database if that is longer.
pub async fn record_unknown(conn: &mut Conn, now: Timestamp, max_staleness: Duration) -> Result<(), StoreError> {
    let longest: i64 = row::get(&sqlx::query(LONGEST_STALENESS).fetch_one(&mut *conn).await?, "longest")?;
    let max_staleness = micros(max_staleness).max(longest);
    let query = sqlx::query(WRITE_UNKNOWN).bind(SidecarInstance::UNKNOWN.to_string());
    let query = query.bind(ApiKeyId::from_bits(0).to_string()).bind(now.micros());
    query.bind(now.micros().saturating_add(max_staleness)).bind(max_staleness).execute(conn).await?;
    Ok(())
}

/// A page of the recorded sidecars of a service, without sidecars that already refused all requests at `since`.
pub async fn list(
    conn: &mut Conn,
    service: ServiceId,
    since: Timestamp,
    page: Page<SidecarInstance>,
) -> Result<ListPage<RecordedSidecar, SidecarInstance>, StoreError> {
    let count = sqlx::query(COUNT_OF_SERVICE).bind(service.to_string()).bind(since.micros()).bind(row::ROWS_TO_COUNT);
    let total = row::item_count(&count.fetch_one(&mut *conn).await?)?;
    let query = sqlx::query(LIST_OF_SERVICE).bind(service.to_string()).bind(position(page.after)).bind(since.micros());
    let rows = query.bind(page.items_to_read()).bind(page.items_to_skip()).fetch_all(conn).await?;
    let items = rows.iter().map(from_row).collect::<Result<_, _>>()?;
    Ok(ListPage::new(&page, items, total, |sidecar: &RecordedSidecar| sidecar.identity.instance, None))
}

/// Up to `limit` recorded sidecars of a service after a position, without sidecars that already refused all requests at `since`.
pub async fn recorded_after(
    conn: &mut Conn,
    service: ServiceId,
    since: Timestamp,
    after: Option<SidecarInstance>,
    limit: i64,
) -> Result<Vec<RecordedSidecar>, StoreError> {
    let query = sqlx::query(LIST_OF_SERVICE).bind(service.to_string()).bind(position(after));
    query.bind(since.micros()).bind(limit).bind(0_i64).fetch_all(conn).await?.iter().map(from_row).collect()
}

/// The next service with recorded sidecars.
pub async fn next_service(conn: &mut Conn, after: Option<ServiceId>) -> Result<Option<ServiceId>, StoreError> {
    let after = after.map_or_else(String::new, |service| service.to_string());
    let row = sqlx::query(NEXT_SERVICE).bind(after).fetch_one(conn).await?;
    row::get::<Option<String>>(&row, "service_id")?.map(|_| row::parse(&row, "service_id")).transpose()
}

/// Writes the row of a new control plane.
pub async fn register(conn: &mut Conn, control_plane: ControlPlane<'_>) -> Result<bool, StoreError> {
    write_control_plane(conn, REGISTER, control_plane).await
}

/// Writes that a control plane runs. Returns false, and writes nothing, if another control plane took it for killed.
pub async fn renew(conn: &mut Conn, control_plane: ControlPlane<'_>) -> Result<bool, StoreError> {
    write_control_plane(conn, RENEW, control_plane).await
}

async fn write_control_plane(
    conn: &mut Conn,
    sql: &'static str,
    ControlPlane { id, seen_at, distributed }: ControlPlane<'_>,
) -> Result<bool, StoreError> {
    let query = sqlx::query(sql).bind(id).bind(seen_at.micros()).bind(distributed.number());
    Ok(query.execute(conn).await?.rows_affected() == 1)
}

/// Whether a control plane is registered, and was not taken for killed.
pub async fn is_registered(conn: &mut Conn, id: &str) -> Result<bool, StoreError> {
    Ok(sqlx::query(IS_REGISTERED).bind(id).fetch_optional(conn).await?.is_some())
}

/// Deletes the row of a control plane that stops.
pub async fn delete_control_plane(conn: &mut Conn, id: &str) -> Result<(), StoreError> {
    sqlx::query(DELETE_CONTROL_PLANE).bind(id).execute(conn).await?;
    Ok(())
}

/// The other control planes.
pub async fn peers(conn: &mut Conn, id: &str) -> Result<Vec<Peer>, StoreError> {
    let peer = |row: &AnyRow| Ok(Peer { id: row::get(row, "id")?, seen_at: row::timestamp(row, "seen_at")? });
    sqlx::query(LIST_CONTROL_PLANES).bind(id).fetch_all(conn).await?.iter().map(peer).collect()
}

/// Ends the streams of a control plane, unless it has written since we read its row. From then on, it confirms nothing under its name.
pub async fn end_killed(conn: &mut Conn, Peer { id, seen_at }: &Peer, now: Timestamp) -> Result<(), StoreError> {
    let deleted = sqlx::query(DELETE_KILLED).bind(id).bind(seen_at.micros()).execute(&mut *conn).await?;
    if deleted.rows_affected() > 0 {
        sqlx::query(END_STREAMS_OF_KILLED).bind(now.micros()).bind(id).execute(conn).await?;
    }
    Ok(())
}

/// The number of sidecars of all services without a stream that may still decide, up to `limit`.
pub async fn count_silent(conn: &mut Conn, now: Timestamp, limit: i64) -> Result<i64, StoreError> {
    row::total_count(&sqlx::query(COUNT_SILENT).bind(now.micros()).bind(limit).fetch_one(conn).await?)
}

/// Since when the oldest sidecar of an ended stream can be deleted, at or after `from`.
pub async fn oldest_expiry(conn: &mut Conn, from: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    retention::oldest_deletable(OLDEST_EXPIRY, conn, from, KEPT_AFTER_EXPIRY).await
}

/// Deletes up to `limit` sidecars that could be deleted since a time between two times. Returns their number.
pub async fn delete_expired(conn: &mut Conn, from: Timestamp, until: Timestamp, limit: i64) -> Result<u64, StoreError> {
    retention::delete(DELETE_EXPIRED, conn, from, until, KEPT_AFTER_EXPIRY, limit).await
}

/// The value of a position in a list; an empty text is before all others.
fn position(after: Option<SidecarInstance>) -> String {
    after.map_or_else(String::new, |instance| instance.to_string())
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

fn from_row(row: &AnyRow) -> Result<RecordedSidecar, StoreError> {
    let revision = |column| Ok::<_, StoreError>(Revision::new(row::get(row, column)?));
    Ok(RecordedSidecar {
        identity: SidecarIdentity {
            instance: row::parse(row, "instance")?,
            api_key: row::parse(row, "key_id")?,
            service: row::parse(row, "service_id")?,
            address: row::get(row, "address")?,
            release: row::get(row, "release")?,
        },
        control_plane: row::get(row, "control_plane_id")?,
        stream: row::get(row, "stream")?,
        connected_at: row::timestamp(row, "connected_at")?,
        progress: SidecarProgress {
            applied: revision("applied_revision")?,
            required: revision("required_revision")?,
            applied_at: row::optional_timestamp(row, "applied_at")?,
        },
        confirmed_at: row::optional_timestamp(row, "confirmed_at")?,
        ended_at: row::optional_timestamp(row, "ended_at")?,
        max_staleness: Duration::from_micros(row::number(row, "max_staleness")?),
        distributed: row::get::<Option<i64>>(row, "distributed_revision")?.map(Revision::new),
    })
}
