//! The sync streams of sidecars that may decide, and the control planes that serve them.
//!
//! A stream that has moved to another control plane is the same row, so a control plane changes a row only while the row names this
//! control plane and the number of the stream.

use super::{Conn, StoreError, retention, row, statements::statements};
use crate::domain::{
    page::{ListPage, Page},
    sidecar::{
        LastConfirmation, REPORTS_SINCE_VERSION, Sidecar, SidecarIdentity, SidecarInstance, SidecarKey, SidecarProgress,
    },
};
use countersign_identity::{ApiKeyId, Revision, ServiceId, Timestamp};
use sqlx::any::AnyRow;
use std::time::Duration;

/// A control plane that has not written its row for this time is not running.
pub const CONTROL_PLANE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a sidecar is kept after it refuses all requests: receipts state that the last changes were in force only then.
pub const KEPT_AFTER_EXPIRY: Duration = Duration::from_hours(1);

macro_rules! select_sidecars {
    ($condition:literal) => {
        concat!(
            "SELECT instance, key_id, service_id, control_plane_id, address, release, protocol_version, connected_at, \
             applied_revision, required_revision, applied_at, confirmed_at, ended_at, max_staleness, \
             (SELECT seen_at FROM control_planes WHERE id = control_plane_id) AS seen_at, \
             (SELECT distributed_revision FROM control_planes WHERE id = control_plane_id) AS distributed_revision \
             FROM sidecars WHERE ",
            $condition
        )
    };
}

statements! { STATEMENTS:
    /// The view of the sidecar may have been confirmed by an earlier stream.
    RECORD_STREAM = "INSERT INTO sidecars (instance, key_id, service_id, control_plane_id, stream, address, release, \
         protocol_version, connected_at, applied_revision, required_revision, applied_at, confirmed_at, max_staleness) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) \
         ON CONFLICT (instance, key_id) DO UPDATE SET service_id = excluded.service_id, \
         control_plane_id = excluded.control_plane_id, stream = excluded.stream, address = excluded.address, \
         release = excluded.release, protocol_version = excluded.protocol_version, connected_at = excluded.connected_at, \
         applied_revision = excluded.applied_revision, required_revision = excluded.required_revision, \
         applied_at = excluded.applied_at, max_staleness = excluded.max_staleness, ended_at = NULL, expires_at = NULL, \
         confirmed_at = CASE WHEN COALESCE(sidecars.confirmed_at, -1) > COALESCE(excluded.confirmed_at, -1) \
         THEN sidecars.confirmed_at ELSE excluded.confirmed_at END RETURNING confirmed_at";
    UPDATE_STREAM = "UPDATE sidecars SET applied_revision = $1, required_revision = $2, applied_at = $3, confirmed_at = $4, \
         ended_at = $5, expires_at = $6 WHERE instance = $7 AND key_id = $8 AND control_plane_id = $9 AND stream = $10";
    DELETE_STREAM = "DELETE FROM sidecars WHERE instance = $1 AND key_id = $2 AND control_plane_id = $3 AND stream = $4";
    FORGET = "DELETE FROM sidecars WHERE instance = $1 AND key_id = $2";
    COUNT_ENDED = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM (SELECT 1 AS one FROM sidecars WHERE key_id = $1 \
         AND ended_at IS NOT NULL AND instance <> $2 LIMIT $3) counted";
    /// The merged row counts as long as the last of the rows that it stands for, and has no revision.
    MERGE_ENDED = "INSERT INTO sidecars (instance, key_id, service_id, control_plane_id, stream, address, release, protocol_version, \
         connected_at, applied_revision, required_revision, confirmed_at, ended_at, expires_at, max_staleness) \
         SELECT CAST($1 AS TEXT), key_id, service_id, '', 0, '', '', MAX(protocol_version), MIN(connected_at), 0, \
         MAX(required_revision), MAX(confirmed_at), MAX(ended_at), MAX(expires_at), MAX(max_staleness) FROM (SELECT * FROM sidecars \
         WHERE key_id = $2 AND ended_at IS NOT NULL AND instance <> $1 ORDER BY ended_at LIMIT $3) oldest \
         GROUP BY key_id, service_id ON CONFLICT (instance, key_id) DO UPDATE SET \
         confirmed_at = CASE WHEN sidecars.confirmed_at > excluded.confirmed_at THEN sidecars.confirmed_at ELSE excluded.confirmed_at END, \
         ended_at = CASE WHEN sidecars.ended_at > excluded.ended_at THEN sidecars.ended_at ELSE excluded.ended_at END, \
         expires_at = CASE WHEN sidecars.expires_at > excluded.expires_at THEN sidecars.expires_at ELSE excluded.expires_at END, \
         max_staleness = CASE WHEN sidecars.max_staleness > excluded.max_staleness THEN sidecars.max_staleness \
         ELSE excluded.max_staleness END";
    DELETE_MERGED = "DELETE FROM sidecars WHERE (instance, key_id) IN (SELECT instance, key_id FROM sidecars WHERE key_id = $1 \
         AND ended_at IS NOT NULL AND instance <> $2 ORDER BY ended_at LIMIT $3)";
    IS_RECORDED = "SELECT 1 AS found FROM sidecars WHERE instance = $1 AND key_id = $2";
    COUNT_OF_SERVICE = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM (SELECT 1 AS one FROM sidecars WHERE service_id = $1 \
         AND (expires_at IS NULL OR expires_at > $2) LIMIT $3) counted";
    /// The position begins with the service, so that the index of the service is the only one that fits.
    LIST_OF_SERVICE = select_sidecars!(
        "service_id = $1 AND (service_id, instance, key_id) > ($1, $2, $3) AND (expires_at IS NULL OR expires_at > $4) \
         ORDER BY service_id, instance, key_id LIMIT $5 OFFSET $6"
    );
    LIST_ELSEWHERE = select_sidecars!(
        "service_id = $1 AND (service_id, instance, key_id) > ($1, $2, $3) AND (control_plane_id <> $4 OR ended_at IS NOT NULL) \
         ORDER BY service_id, instance, key_id LIMIT $5"
    );
    LIST_ALL_ELSEWHERE = select_sidecars!(
        "(instance, key_id) > ($1, $2) AND (control_plane_id <> $3 OR ended_at IS NOT NULL) ORDER BY instance, key_id LIMIT $4"
    );
    RECORD_CONTROL_PLANE = "INSERT INTO control_planes (id, seen_at, distributed_revision) VALUES ($1, $2, $3) \
         ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, distributed_revision = excluded.distributed_revision";
    DELETE_CONTROL_PLANE = "DELETE FROM control_planes WHERE id = $1";
    HAS_PEERS = "SELECT 1 AS found FROM control_planes WHERE id <> $1 AND seen_at > $2 LIMIT 1";
    FIND_KILLED = "SELECT id, seen_at FROM control_planes WHERE seen_at <= $1 ORDER BY seen_at LIMIT 1";
    /// The process may have confirmed views until it was killed.
    END_STREAMS_OF_KILLED = "UPDATE sidecars SET ended_at = $1, confirmed_at = $1, expires_at = $1 + max_staleness \
         WHERE (instance, key_id) IN (SELECT instance, key_id FROM sidecars WHERE control_plane_id = $2 AND ended_at IS NULL \
         LIMIT $3) AND control_plane_id = $2 AND ended_at IS NULL";
    OLDEST_EXPIRY = "SELECT MIN(expires_at) AS oldest FROM sidecars WHERE expires_at >= $1";
    DELETE_EXPIRED = "DELETE FROM sidecars WHERE (instance, key_id) IN (SELECT instance, key_id FROM sidecars \
         WHERE expires_at >= $1 AND expires_at <= $2 ORDER BY expires_at LIMIT $3) AND +expires_at <= $2";
}

/// A stream of a control plane.
#[derive(Debug, Clone, Copy)]
pub struct StreamId<'a> {
    /// The control plane.
    pub control_plane: &'a str,
    /// The number of the stream there.
    pub number: i64,
}

/// A stream to record.
#[derive(Debug)]
pub struct NewRecord<'a> {
    /// The sidecar.
    pub identity: &'a SidecarIdentity,
    /// When it connected.
    pub connected_at: Timestamp,
    /// How far its data reaches.
    pub progress: SidecarProgress,
    /// When it was last confirmed.
    pub confirmed_at: Option<Timestamp>,
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
    connected_at: Timestamp,
    progress: SidecarProgress,
    confirmed_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    max_staleness: Duration,
    /// When the control plane last wrote its row.
    seen_at: Option<Timestamp>,
    distributed: Revision,
}

impl RecordedSidecar {
    /// The sidecar, as far as the row shows.
    pub fn into_sidecar(self, now: Timestamp) -> Sidecar {
        let Self {
            identity,
            control_plane: _,
            connected_at,
            progress,
            confirmed_at,
            ended_at,
            max_staleness,
            seen_at,
            distributed,
        } = self;
        let reports = identity.protocol_version >= REPORTS_SINCE_VERSION;
        let is_served = seen_at.is_some_and(|seen_at| now < seen_at.saturating_add(CONTROL_PLANE_TIMEOUT));
        let confirmed = match (ended_at, confirmed_at) {
            (None, reported) => LastConfirmation::Continuing(reported),
            (Some(_), Some(at)) => LastConfirmation::By(at),
            (Some(_), None) => LastConfirmation::Never,
        };
        let in_force = if ended_at.is_none() { progress.in_force(distributed) } else { progress.applied };
        Sidecar {
            identity,
            connected_at,
            is_connected: ended_at.is_none() && is_served,
            in_force: reports.then_some(in_force),
            applied_at: progress.applied_at,
            confirmed,
            max_staleness,
        }
    }
}

/// Records a stream, in place of an earlier one of the same sidecar. Returns when the sidecar was last confirmed.
pub async fn record(
    conn: &mut Conn,
    StreamId { control_plane, number }: StreamId<'_>,
    record: &NewRecord<'_>,
) -> Result<Option<Timestamp>, StoreError> {
    let NewRecord { identity, connected_at, progress, confirmed_at, max_staleness } = record;
    let SidecarIdentity { key, service, address, release, protocol_version } = identity;
    let SidecarProgress { applied, required, applied_at } = progress;
    let query = sqlx::query(RECORD_STREAM).bind(key.instance.to_string()).bind(key.key.to_string());
    let query = query.bind(service.to_string()).bind(control_plane).bind(number).bind(address).bind(release);
    let query = query.bind(i64::from(*protocol_version)).bind(connected_at.micros()).bind(applied.number());
    let query = query.bind(required.number()).bind(applied_at.map(Timestamp::micros));
    let query = query.bind(confirmed_at.map(Timestamp::micros)).bind(micros(*max_staleness));
    row::optional_timestamp(&query.fetch_one(conn).await?, "confirmed_at")
}

/// Writes the progress of a stream, and its end if `ended_at` is set. Does nothing if the sidecar has another stream.
pub async fn update(
    conn: &mut Conn,
    StreamId { control_plane, number }: StreamId<'_>,
    record: &NewRecord<'_>,
    ended_at: Option<Timestamp>,
) -> Result<(), StoreError> {
    let NewRecord { identity, connected_at: _, progress, confirmed_at, max_staleness } = record;
    let SidecarProgress { applied, required, applied_at } = progress;
    let expires_at = ended_at.map(|ended_at| confirmed_at.unwrap_or(ended_at).saturating_add(*max_staleness));
    let query = sqlx::query(UPDATE_STREAM).bind(applied.number()).bind(required.number());
    let query = query.bind(applied_at.map(Timestamp::micros)).bind(confirmed_at.map(Timestamp::micros));
    let query = query.bind(ended_at.map(Timestamp::micros)).bind(expires_at.map(Timestamp::micros));
    let SidecarKey { instance, key } = identity.key;
    let query = query.bind(instance.to_string()).bind(key.to_string()).bind(control_plane).bind(number);
    query.execute(conn).await?;
    Ok(())
}

/// Deletes a stream of a sidecar that decides no more. Does nothing if the sidecar has another stream.
pub async fn delete(
    conn: &mut Conn,
    StreamId { control_plane, number }: StreamId<'_>,
    SidecarKey { instance, key }: SidecarKey,
) -> Result<(), StoreError> {
    let query = sqlx::query(DELETE_STREAM).bind(instance.to_string()).bind(key.to_string());
    query.bind(control_plane).bind(number).execute(conn).await?;
    Ok(())
}

/// Deletes a sidecar that has ended for certain.
pub async fn forget(conn: &mut Conn, SidecarKey { instance, key }: SidecarKey) -> Result<(), StoreError> {
    sqlx::query(FORGET).bind(instance.to_string()).bind(key.to_string()).execute(conn).await?;
    Ok(())
}

/// Whether a sidecar is recorded, with any stream.
pub async fn is_recorded(conn: &mut Conn, SidecarKey { instance, key }: SidecarKey) -> Result<bool, StoreError> {
    let query = sqlx::query(IS_RECORDED).bind(instance.to_string()).bind(key.to_string());
    Ok(query.fetch_optional(conn).await?.is_some())
}

/// If more than `kept` sidecars of an API key have no stream, the oldest ones become one row, which stands for the instance
/// [`SidecarInstance::MERGED`].
pub async fn merge_oldest_ended(conn: &mut Conn, key: ApiKeyId, kept: i64) -> Result<(), StoreError> {
    let (key, merged) = (key.to_string(), SidecarInstance::MERGED.to_string());
    let count = sqlx::query(COUNT_ENDED).bind(&key).bind(&merged).bind(kept.saturating_add(1));
    if row::total_count(&count.fetch_one(&mut *conn).await?)? <= kept {
        return Ok(());
    }
    let surplus = kept / 10 + 1;
    sqlx::query(MERGE_ENDED).bind(&merged).bind(&key).bind(surplus).execute(&mut *conn).await?;
    sqlx::query(DELETE_MERGED).bind(&key).bind(&merged).bind(surplus).execute(conn).await?;
    Ok(())
}

/// A page of the recorded sidecars of a service that may decide at `now`.
pub async fn list(
    conn: &mut Conn,
    (service, now): (ServiceId, Timestamp),
    page: Page<SidecarKey>,
) -> Result<ListPage<RecordedSidecar, SidecarKey>, StoreError> {
    let count = sqlx::query(COUNT_OF_SERVICE).bind(service.to_string()).bind(now.micros()).bind(row::ROWS_TO_COUNT);
    let total = row::item_count(&count.fetch_one(&mut *conn).await?)?;
    let (instance, key) = position(page.after);
    let query = sqlx::query(LIST_OF_SERVICE).bind(service.to_string()).bind(instance).bind(key).bind(now.micros());
    let rows = query.bind(page.items_to_read()).bind(page.items_to_skip()).fetch_all(conn).await?;
    let items = rows.iter().map(from_row).collect::<Result<_, _>>()?;
    Ok(ListPage::new(&page, items, total, (|sidecar: &RecordedSidecar| sidecar.identity.key, None)))
}

/// Up to `limit` sidecars of a service, or of all services, after a position whose streams are at other control planes or have ended.
pub async fn list_elsewhere(
    conn: &mut Conn,
    (service, control_plane): (Option<ServiceId>, &str),
    after: Option<SidecarKey>,
    limit: i64,
) -> Result<Vec<RecordedSidecar>, StoreError> {
    let (instance, key) = position(after);
    let query = match service {
        Some(service) => sqlx::query(LIST_ELSEWHERE).bind(service.to_string()),
        None => sqlx::query(LIST_ALL_ELSEWHERE),
    };
    let query = query.bind(instance).bind(key);
    query.bind(control_plane).bind(limit).fetch_all(conn).await?.iter().map(from_row).collect()
}

/// Records that a control plane runs, and that its streams contain all changes up to a revision.
pub async fn record_control_plane(
    conn: &mut Conn,
    id: &str,
    (now, distributed): (Timestamp, Revision),
) -> Result<(), StoreError> {
    sqlx::query(RECORD_CONTROL_PLANE).bind(id).bind(now.micros()).bind(distributed.number()).execute(conn).await?;
    Ok(())
}

/// Deletes the row of a control plane that stops.
pub async fn delete_control_plane(conn: &mut Conn, id: &str) -> Result<(), StoreError> {
    sqlx::query(DELETE_CONTROL_PLANE).bind(id).execute(conn).await?;
    Ok(())
}

/// Whether other control planes run.
pub async fn has_peers(conn: &mut Conn, id: &str, now: Timestamp) -> Result<bool, StoreError> {
    let query = sqlx::query(HAS_PEERS).bind(id).bind(now.saturating_sub(CONTROL_PLANE_TIMEOUT).micros());
    Ok(query.fetch_optional(conn).await?.is_some())
}

/// Ends up to `limit` streams of a control plane that was killed, and deletes its row when no stream is left.
pub async fn end_streams_of_killed(conn: &mut Conn, now: Timestamp, limit: i64) -> Result<(), StoreError> {
    let query = sqlx::query(FIND_KILLED).bind(now.saturating_sub(CONTROL_PLANE_TIMEOUT).micros());
    let Some(killed) = query.fetch_optional(&mut *conn).await? else { return Ok(()) };
    let id: String = row::get(&killed, "id")?;
    let ended_at = row::timestamp(&killed, "seen_at")?.saturating_add(CONTROL_PLANE_TIMEOUT);
    let query = sqlx::query(END_STREAMS_OF_KILLED).bind(ended_at.micros()).bind(&id).bind(limit);
    if query.execute(&mut *conn).await?.rows_affected() == 0 {
        delete_control_plane(conn, &id).await?;
    }
    Ok(())
}

/// Since when the oldest sidecar of an ended stream can be deleted, at or after `from`.
pub async fn oldest_expiry(conn: &mut Conn, from: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    retention::oldest_deletable(OLDEST_EXPIRY, conn, from, KEPT_AFTER_EXPIRY).await
}

/// Deletes up to `limit` sidecars that could be deleted since a time between two times. Returns their number.
pub async fn delete_expired(conn: &mut Conn, range: (Timestamp, Timestamp), limit: i64) -> Result<u64, StoreError> {
    retention::delete(DELETE_EXPIRED, conn, range, KEPT_AFTER_EXPIRY, limit).await
}

/// The values of a position in a list; empty texts are before all others.
fn position(after: Option<SidecarKey>) -> (String, String) {
    after.map_or_else(Default::default, |SidecarKey { instance, key }| (instance.to_string(), key.to_string()))
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

fn from_row(row: &AnyRow) -> Result<RecordedSidecar, StoreError> {
    let revision = |column| Ok::<_, StoreError>(Revision::new(row::get(row, column)?));
    Ok(RecordedSidecar {
        identity: SidecarIdentity {
            key: SidecarKey { instance: row::parse(row, "instance")?, key: row::parse(row, "key_id")? },
            service: row::parse(row, "service_id")?,
            address: row::get(row, "address")?,
            release: row::get(row, "release")?,
            protocol_version: row::number(row, "protocol_version")?,
        },
        control_plane: row::get(row, "control_plane_id")?,
        connected_at: row::timestamp(row, "connected_at")?,
        progress: SidecarProgress {
            applied: revision("applied_revision")?,
            required: revision("required_revision")?,
            applied_at: row::optional_timestamp(row, "applied_at")?,
        },
        confirmed_at: row::optional_timestamp(row, "confirmed_at")?,
        ended_at: row::optional_timestamp(row, "ended_at")?,
        max_staleness: Duration::from_micros(row::number(row, "max_staleness")?),
        seen_at: row::optional_timestamp(row, "seen_at")?,
        distributed: Revision::new(row::get::<Option<i64>>(row, "distributed_revision")?.unwrap_or_default()),
    })
}
