//! The sync streams of sidecars that may decide, and the control planes that serve them. A sidecar may decide until its maximum
//! staleness has passed since a control plane last confirmed its data. After that, the sidecar refuses all requests by itself.
//!
//! Each process of a sidecar has one row per API key in its settings. The row has the newest stream of the process: [`write`] never
//! replaces it by an earlier one. The row of an ended stream is deleted an hour after the sidecar refuses all requests, or as soon
//! as a sidecar says that the process decides no more.

use super::{
    Conn, StoreError,
    query::{params, text_or_empty},
    retention::ExpiringRows,
    row,
    statements::statements,
};
use crate::domain::{
    page::{ListPage, Page},
    sidecar::{SidecarIdentity, SidecarInstance, SidecarProgress},
};
use countersign_identity::{ApiKeyId, Revision, ServiceId, Timestamp};
use sqlx::any::AnyRow;
use std::time::Duration;

/// How long we keep the row of a sidecar after the sidecar has begun to refuse all requests. Receipts need the row: changes that
/// the sidecar has not received are in force there only from this time on.
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

/// Replaces an existing row, unless it has a later stream. Keeps the longer maximum staleness of the two: an earlier stream may
/// have told this longer time to the process.
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
    /// We compare the service together with the instance, so that the primary key is the only index that fits.
    LIST_OF_SERVICE = select_sidecars!(
        "service_id = $1 AND (service_id, instance) > ($1, $2) AND (expires_at IS NULL OR expires_at > $3) \
         ORDER BY service_id, instance LIMIT $4 + 0 OFFSET $5"
    );
    NEXT_SERVICE = "SELECT MIN(service_id) AS service_id FROM sidecars WHERE service_id > $1";
    /// If the outcome of the first attempt is unknown, the retry may find the row.
    REGISTER = "INSERT INTO control_planes (id, seen_at, distributed_revision) VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE \
         SET seen_at = excluded.seen_at, distributed_revision = excluded.distributed_revision";
    RENEW = "UPDATE control_planes SET seen_at = $2, distributed_revision = $3 WHERE id = $1";
    IS_REGISTERED = "SELECT 1 AS found FROM control_planes WHERE id = $1";
    DELETE_CONTROL_PLANE = "DELETE FROM control_planes WHERE id = $1";
    LIST_CONTROL_PLANES = "SELECT id, seen_at FROM control_planes WHERE id <> $1 ORDER BY id";
    /// Waits for an open transaction in which the control plane renews this row. If that commits, deletes nothing.
    DELETE_KILLED = "DELETE FROM control_planes WHERE id = $1 AND seen_at = $2";
    END_STREAMS_OF_KILLED = "UPDATE sidecars SET ended_at = $1, expires_at = $1 + max_staleness \
         WHERE control_plane_id = $2 AND ended_at IS NULL";
    COUNT_SILENT = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM (SELECT 1 AS one FROM sidecars WHERE expires_at > $1 ORDER BY expires_at LIMIT $2 + 0) silent";
    OLDEST_EXPIRY = "SELECT MIN(expires_at) AS oldest FROM sidecars WHERE expires_at >= $1";
    /// Without the unary plus, SQLite would read all these rows again for the DELETE.
    DELETE_EXPIRED = "DELETE FROM sidecars WHERE (service_id, instance) IN (SELECT service_id, instance \
         FROM sidecars WHERE expires_at >= $1 AND expires_at <= $2 ORDER BY expires_at LIMIT $3 + 0) AND +expires_at <= $2";
}

/// A running control plane.
#[derive(Debug, Clone, Copy)]
pub struct ControlPlane<'a> {
    /// Names the process.
    pub id: &'a str,
    /// The current time by the clock of the control plane.
    pub seen_at: Timestamp,
    /// All changes up to this revision are in the streams of the sidecars that they concern.
    pub distributed: Revision,
}

/// Another control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Names the process.
    pub id: String,
    /// The time at which the control plane last wrote this row, by its own clock.
    pub seen_at: Timestamp,
}

/// A sidecar, as the database has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedSidecar {
    /// What the sidecar says of itself.
    pub identity: SidecarIdentity,
    /// The control plane that serves the stream.
    pub control_plane: String,
    /// The number of the stream: the process of the sidecar counts its streams.
    pub stream: i64,
    /// When it connected.
    pub connected_at: Timestamp,
    /// Which changes the sidecar has, and which it needs.
    pub progress: SidecarProgress,
    /// When it was last confirmed.
    pub confirmed_at: Option<Timestamp>,
    /// The stream has ended at this time or before.
    pub ended_at: Option<Timestamp>,
    /// The age of the confirmation at which the sidecar refuses all requests: the longest that the process was ever told.
    pub max_staleness: Duration,
    /// [`ControlPlane::distributed`] in the row of the control plane; `None` if the control plane stopped or was killed.
    pub distributed: Option<Revision>,
}

/// Writes the state of a stream, in place of an earlier stream of the process. Returns false, and changes nothing, if the row has a
/// later stream of the process.
pub async fn write(conn: &mut Conn, sidecar: &RecordedSidecar) -> Result<bool, StoreError> {
    let RecordedSidecar {
        identity,
        control_plane,
        stream,
        connected_at,
        progress,
        confirmed_at,
        ended_at,
        max_staleness,
        distributed: _,
    } = sidecar;
    let SidecarIdentity { instance, api_key, service, address, release } = identity;
    let SidecarProgress { applied, required, applied_at } = progress;
    let expires_at = ended_at.map(|at| at.saturating_add(*max_staleness));
    let parameters = params![
        service,
        instance,
        api_key,
        control_plane,
        stream,
        address,
        release,
        connected_at,
        applied,
        required,
        applied_at,
        confirmed_at,
        ended_at,
        expires_at,
        max_staleness,
    ];
    conn.changes_row(WRITE_STREAM, parameters).await
}

/// Deletes a stream of a sidecar that decides no more. Does nothing if the sidecar has another stream.
pub async fn delete(conn: &mut Conn, sidecar: &RecordedSidecar) -> Result<(), StoreError> {
    let RecordedSidecar { identity: SidecarIdentity { service, instance, .. }, control_plane, stream, .. } = sidecar;
    conn.apply(DELETE_STREAM, params![service, instance, control_plane, stream]).await
}

/// Deletes the row of a process, if its stream has ended, after another process has said that it replaced this one. Returns whether
/// the process has no row any more.
pub async fn forget(conn: &mut Conn, service: ServiceId, instance: SidecarInstance) -> Result<bool, StoreError> {
    conn.apply(FORGET_ENDED, params![service, instance]).await?;
    Ok(!conn.has_row(FIND_PROCESS, params![service, instance]).await?)
}

/// Records for each service that it may have sidecars which the database does not know. We assume that they last confirmed their
/// view at `now`, the latest possible time. They refuse all requests `max_staleness` later, or after the longest maximum staleness
/// in the database if that is longer.
pub async fn record_unknown(conn: &mut Conn, now: Timestamp, max_staleness: Duration) -> Result<(), StoreError> {
    let longest = conn.read_row(LONGEST_STALENESS, params![], |row| row::duration(row, "longest")).await?;
    let max_staleness = max_staleness.max(longest);
    let expires_at = now.saturating_add(max_staleness);
    let parameters = params![SidecarInstance::UNKNOWN, ApiKeyId::from_bits(0), now, expires_at, max_staleness];
    conn.apply(WRITE_UNKNOWN, parameters).await
}

/// Lists a page of the recorded sidecars of a service, without those that already refused all requests at `since`.
pub async fn list(
    conn: &mut Conn,
    service: ServiceId,
    since: Timestamp,
    page: Page<SidecarInstance>,
) -> Result<ListPage<RecordedSidecar, SidecarInstance>, StoreError> {
    let total = conn.count_items(COUNT_OF_SERVICE, params![service, since]).await?;
    let parameters = params![service, text_or_empty(page.after), since];
    conn.list_page(LIST_OF_SERVICE, parameters, &page, total, from_row, |sidecar| sidecar.identity.instance).await
}

/// Lists up to `limit` recorded sidecars of a service after a position, without those that already refused all requests at `since`.
pub async fn recorded_after(
    conn: &mut Conn,
    service: ServiceId,
    since: Timestamp,
    after: Option<SidecarInstance>,
    limit: i64,
) -> Result<Vec<RecordedSidecar>, StoreError> {
    conn.list_rows(LIST_OF_SERVICE, params![service, text_or_empty(after), since, limit, 0_i64], from_row).await
}

/// The next service with recorded sidecars.
pub async fn next_service(conn: &mut Conn, after: Option<ServiceId>) -> Result<Option<ServiceId>, StoreError> {
    let service = |row: &AnyRow| row::parse_optional(row, "service_id");
    conn.read_row(NEXT_SERVICE, params![text_or_empty(after)], service).await
}

/// Writes the row of a new control plane. Always returns true.
pub async fn register(conn: &mut Conn, control_plane: ControlPlane<'_>) -> Result<bool, StoreError> {
    let ControlPlane { id, seen_at, distributed } = control_plane;
    conn.changes_row(REGISTER, params![id, seen_at, distributed]).await
}

/// Writes that a control plane runs. Returns false if another control plane has deleted the row with [`end_killed`].
pub async fn renew(conn: &mut Conn, control_plane: ControlPlane<'_>) -> Result<bool, StoreError> {
    let ControlPlane { id, seen_at, distributed } = control_plane;
    conn.changes_row(RENEW, params![id, seen_at, distributed]).await
}

/// Whether a control plane has a row. It has none if another control plane thinks that it was killed, see [`end_killed`].
pub async fn is_registered(conn: &mut Conn, id: &str) -> Result<bool, StoreError> {
    conn.has_row(IS_REGISTERED, params![id]).await
}

/// Deletes the row of a control plane that stops.
pub async fn delete_control_plane(conn: &mut Conn, id: &str) -> Result<(), StoreError> {
    conn.apply(DELETE_CONTROL_PLANE, params![id]).await
}

/// The other control planes.
pub async fn peers(conn: &mut Conn, id: &str) -> Result<Vec<Peer>, StoreError> {
    let peer = |row: &AnyRow| Ok(Peer { id: row::get(row, "id")?, seen_at: row::timestamp(row, "seen_at")? });
    conn.list_rows(LIST_CONTROL_PLANES, params![id], peer).await
}

/// Ends the streams of a control plane that seems to be killed, unless it has written since we read its row. After this, it cannot
/// confirm sidecars under its name: if it still runs, it must register a new name first.
pub async fn end_killed(conn: &mut Conn, Peer { id, seen_at }: &Peer, now: Timestamp) -> Result<(), StoreError> {
    if conn.changes_row(DELETE_KILLED, params![id, seen_at]).await? {
        conn.apply(END_STREAMS_OF_KILLED, params![now, id]).await?;
    }
    Ok(())
}

/// Counts the sidecars of all services that have no stream and may still decide, up to `limit`.
pub async fn count_silent(conn: &mut Conn, now: Timestamp, limit: i64) -> Result<i64, StoreError> {
    conn.read_row(COUNT_SILENT, params![now, limit], row::total_count).await
}

/// Sidecars whose stream has ended and that refuse all requests by now.
pub const EXPIRED: ExpiringRows =
    ExpiringRows { oldest: OLDEST_EXPIRY, delete: DELETE_EXPIRED, kept: KEPT_AFTER_EXPIRY };

fn from_row(row: &AnyRow) -> Result<RecordedSidecar, StoreError> {
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
            applied: row::revision(row, "applied_revision")?,
            required: row::revision(row, "required_revision")?,
            applied_at: row::optional_timestamp(row, "applied_at")?,
        },
        confirmed_at: row::optional_timestamp(row, "confirmed_at")?,
        ended_at: row::optional_timestamp(row, "ended_at")?,
        max_staleness: row::duration(row, "max_staleness")?,
        distributed: row::get::<Option<i64>>(row, "distributed_revision")?.map(Revision::new),
    })
}
