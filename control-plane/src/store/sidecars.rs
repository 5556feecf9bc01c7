//! The sync streams of sidecars that may decide, and the control planes that serve them.
//!
//! Each process of a sidecar has one row per API key in its settings, which states its newest stream. A control plane changes a row only while the
//! row names this control plane and this stream.

use super::{Conn, StoreError, retention, row, statements::statements};
use crate::domain::{
    page::{ListPage, Page},
    sidecar::{LastConfirmation, Sidecar, SidecarIdentity, SidecarInstance, SidecarKey, SidecarProgress},
};
use countersign_identity::{ApiKeyId, Revision, ServiceId, Timestamp};
use sqlx::{
    Any,
    any::{AnyArguments, AnyRow},
    query::Query,
};
use std::time::Duration;

/// How long a sidecar is kept after it refuses all requests: receipts state that the last changes were in force only then.
pub const KEPT_AFTER_EXPIRY: Duration = Duration::from_hours(1);

macro_rules! select_sidecars {
    ($condition:literal) => {
        concat!(
            "SELECT instance, key_index, key_id, service_id, control_plane_id, address, release, connected_at, \
             applied_revision, required_revision, applied_at, confirmed_at, ended_at, max_staleness, \
             stream, (SELECT distributed_revision FROM control_planes WHERE id = control_plane_id AND killed_at IS NULL) \
             AS distributed_revision \
             FROM sidecars WHERE ",
            $condition
        )
    };
}

/// Begins to insert rows that stand for several sidecars each.
macro_rules! insert_merged {
    () => {
        "INSERT INTO sidecars (instance, key_index, key_id, service_id, control_plane_id, stream, address, release, \
         connected_at, applied_revision, required_revision, confirmed_at, ended_at, expires_at, max_staleness) "
    };
}

/// Lets an existing row stand for the inserted sidecars as well.
macro_rules! add_to_merged {
    () => {
        " ON CONFLICT (service_id, instance, key_index) DO UPDATE SET \
         confirmed_at = CASE WHEN sidecars.confirmed_at > excluded.confirmed_at THEN sidecars.confirmed_at ELSE excluded.confirmed_at END, \
         ended_at = CASE WHEN sidecars.ended_at > excluded.ended_at THEN sidecars.ended_at ELSE excluded.ended_at END, \
         expires_at = CASE WHEN sidecars.expires_at > excluded.expires_at THEN sidecars.expires_at ELSE excluded.expires_at END, \
         max_staleness = CASE WHEN sidecars.max_staleness > excluded.max_staleness THEN sidecars.max_staleness \
         ELSE excluded.max_staleness END"
    };
}

statements! { STATEMENTS:
    /// The row of a later stream remains. An earlier stream of the sidecar may have been confirmed, and may have had a longer maximum
    /// staleness.
    RECORD_STREAM = "INSERT INTO sidecars (instance, key_index, key_id, service_id, control_plane_id, stream, address, release, \
         connected_at, applied_revision, required_revision, applied_at, confirmed_at, max_staleness) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) \
         ON CONFLICT (service_id, instance, key_index) DO UPDATE SET key_id = excluded.key_id, \
         control_plane_id = excluded.control_plane_id, stream = excluded.stream, address = excluded.address, \
         release = excluded.release, connected_at = excluded.connected_at, \
         applied_revision = excluded.applied_revision, required_revision = excluded.required_revision, \
         applied_at = excluded.applied_at, ended_at = NULL, expires_at = NULL, \
         max_staleness = CASE WHEN sidecars.max_staleness > excluded.max_staleness \
         THEN sidecars.max_staleness ELSE excluded.max_staleness END, \
         confirmed_at = CASE WHEN COALESCE(sidecars.confirmed_at, -1) > COALESCE(excluded.confirmed_at, excluded.connected_at) \
         THEN sidecars.confirmed_at ELSE COALESCE(excluded.confirmed_at, excluded.connected_at) END \
         WHERE sidecars.stream <= excluded.stream RETURNING confirmed_at";
    UPDATE_STREAM = "UPDATE sidecars SET applied_revision = $1, required_revision = $2, applied_at = $3, confirmed_at = $4 \
         WHERE service_id = $5 AND instance = $6 AND key_index = $7 AND control_plane_id = $8 AND stream = $9";
    END_STREAM = "UPDATE sidecars SET ended_at = $1, expires_at = $1 + max_staleness \
         WHERE service_id = $2 AND instance = $3 AND key_index = $4 AND control_plane_id = $5 AND stream = $6";
    DELETE_STREAM = "DELETE FROM sidecars \
         WHERE service_id = $1 AND instance = $2 AND key_index = $3 AND control_plane_id = $4 AND stream = $5";
    /// The place of the API key may have changed since.
    FORGET_ENDED = "DELETE FROM sidecars WHERE service_id = $1 AND instance = $2 AND key_id = $3 AND ended_at IS NOT NULL";
    IS_RECORDED = "SELECT 1 AS found FROM sidecars WHERE service_id = $1 AND instance = $2 AND key_id = $3";
    IS_OPEN_AT = "SELECT 1 AS found FROM sidecars WHERE service_id = $1 AND instance = $2 AND key_index = $3 \
         AND control_plane_id = $4 AND ended_at IS NULL";
    COUNT_ENDED = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM (SELECT 1 AS one FROM sidecars WHERE service_id = $1 \
         AND ended_at IS NOT NULL AND instance <> $2 LIMIT $3 + 0) counted";
    /// The merged row counts as long as the last of the rows that it stands for, and has no revision.
    MERGE_ENDED = concat!(
        insert_merged!(),
        "SELECT CAST($1 AS TEXT), 0, MAX(key_id), service_id, '', 0, '', '', MIN(connected_at), 0, \
         MAX(required_revision), MAX(confirmed_at), MAX(ended_at), MAX(expires_at), MAX(max_staleness) FROM (SELECT * FROM sidecars \
         WHERE service_id = $2 AND ended_at IS NOT NULL AND instance <> $1 ORDER BY ended_at, instance, key_index LIMIT $3 + 0) oldest \
         GROUP BY service_id",
        add_to_merged!()
    );
    LONGEST_STALENESS = "SELECT CAST(COALESCE(MAX(max_staleness), 0) AS BIGINT) AS longest FROM sidecars";
    RECORD_UNKNOWN = concat!(
        insert_merged!(),
        "VALUES ($1, 0, $2, $3, '', 0, '', '', $4, 0, 0, $4, $4, $5, $6)",
        add_to_merged!()
    );
    /// Deletes no row that another transaction has opened, or ended later, since the oldest rows were merged.
    DELETE_MERGED = "DELETE FROM sidecars WHERE (service_id, instance, key_index) IN (SELECT service_id, instance, key_index \
         FROM sidecars WHERE service_id = $1 AND ended_at IS NOT NULL AND instance <> $2 ORDER BY ended_at, instance, key_index LIMIT $3 + 0) \
         AND ended_at <= (SELECT m.ended_at FROM sidecars m WHERE m.service_id = $1 AND m.instance = $2 AND m.key_index = 0) \
         AND expires_at <= (SELECT m.expires_at FROM sidecars m WHERE m.service_id = $1 AND m.instance = $2 AND m.key_index = 0) \
         AND max_staleness <= (SELECT m.max_staleness FROM sidecars m WHERE m.service_id = $1 AND m.instance = $2 AND m.key_index = 0)";
    COUNT_OF_SERVICE = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM (SELECT 1 AS one FROM sidecars WHERE service_id = $1 \
         AND (expires_at IS NULL OR expires_at > $2) LIMIT $3 + 0) counted";
    /// The position begins with the service, so that the primary key is the only index that fits.
    LIST_OF_SERVICE = select_sidecars!(
        "service_id = $1 AND (service_id, instance, key_index) > ($1, $2, $3) AND (expires_at IS NULL OR expires_at > $4) \
         ORDER BY service_id, instance, key_index LIMIT $5 + 0 OFFSET $6"
    );
    RECORDED_AFTER = select_sidecars!(
        "service_id = $1 AND (service_id, instance, key_index) > ($1, $2, $3) AND (expires_at IS NULL OR expires_at > $4) \
         ORDER BY service_id, instance, key_index LIMIT $5 + 0"
    );
    NEXT_SERVICE = "SELECT MIN(service_id) AS service_id FROM sidecars WHERE service_id > $1";
    /// The transaction may be run again.
    REGISTER = "INSERT INTO control_planes (id, seen_at, distributed_revision) VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE \
         SET seen_at = excluded.seen_at, distributed_revision = excluded.distributed_revision WHERE control_planes.killed_at IS NULL";
    RENEW = "UPDATE control_planes SET seen_at = $2, distributed_revision = $3 WHERE id = $1 AND killed_at IS NULL";
    /// Waits for transactions of the control plane that are not complete.
    END_CONTROL_PLANE = "INSERT INTO control_planes (id, seen_at, distributed_revision, killed_at) VALUES ($1, $2, 0, $2) \
         ON CONFLICT (id) DO UPDATE SET killed_at = excluded.killed_at WHERE control_planes.killed_at IS NULL";
    IS_REGISTERED = "SELECT 1 AS found FROM control_planes WHERE id = $1 AND killed_at IS NULL";
    DELETE_CONTROL_PLANE = "DELETE FROM control_planes WHERE id = $1";
    LIST_CONTROL_PLANES = "SELECT id, seen_at, killed_at FROM control_planes WHERE id <> $1 ORDER BY id";
    MARK_KILLED = "UPDATE control_planes SET killed_at = $1 WHERE id = $2 AND seen_at = $3 AND killed_at IS NULL";
    END_STREAMS_OF_KILLED = "UPDATE sidecars SET ended_at = $1, expires_at = $1 + max_staleness \
         WHERE (service_id, instance, key_index) IN (SELECT service_id, instance, key_index FROM sidecars \
         WHERE control_plane_id = $2 AND ended_at IS NULL LIMIT $3 + 0) AND control_plane_id = $2 AND ended_at IS NULL";
    COUNT_SILENT = "SELECT CAST(COUNT(*) AS BIGINT) AS total FROM (SELECT 1 AS one FROM sidecars WHERE expires_at > $1 ORDER BY expires_at LIMIT $2 + 0) silent";
    OLDEST_EXPIRY = "SELECT MIN(expires_at) AS oldest FROM sidecars WHERE expires_at >= $1";
    DELETE_EXPIRED = "DELETE FROM sidecars WHERE (service_id, instance, key_index) IN (SELECT service_id, instance, key_index \
         FROM sidecars WHERE expires_at >= $1 AND expires_at <= $2 ORDER BY expires_at LIMIT $3 + 0) AND +expires_at <= $2";
}

/// A stream of a control plane.
#[derive(Debug, Clone, Copy)]
pub struct StreamId<'a> {
    /// The control plane.
    pub control_plane: &'a str,
    /// The number of the stream in the process of the sidecar.
    pub number: i64,
}

/// A process with an API key that has ended, as another process says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EndedProcess {
    /// The service of the API key.
    pub service: ServiceId,
    /// The process.
    pub instance: SidecarInstance,
    /// The API key.
    pub api_key: ApiKeyId,
}

/// Another control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Names the process.
    pub id: String,
    /// The time that it last wrote, by its own clock.
    pub seen_at: Timestamp,
    /// Whether it was taken for killed.
    pub is_killed: bool,
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
    /// The number of the stream.
    pub stream: i64,
    connected_at: Timestamp,
    progress: SidecarProgress,
    confirmed_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    max_staleness: Duration,
    /// What the control plane has distributed; `None` if it was killed.
    distributed: Option<Revision>,
}

impl RecordedSidecar {
    /// Whether the stream is open, as far as the row shows.
    pub const fn is_open(&self) -> bool {
        self.ended_at.is_none()
    }

    /// The sidecar, as far as the row shows.
    pub fn into_sidecar(self) -> Sidecar {
        let is_open = self.is_open();
        let Self {
            identity,
            control_plane: _,
            stream: _,
            connected_at,
            progress,
            confirmed_at,
            ended_at,
            max_staleness,
            distributed,
        } = self;
        let in_force = if is_open { progress.in_force(distributed.unwrap_or_default()) } else { progress.applied };
        Sidecar {
            identity,
            connected_at,
            is_connected: is_open && distributed.is_some(),
            in_force,
            applied_at: progress.applied_at,
            confirmed: ended_at.map_or(LastConfirmation::Continuing, LastConfirmation::By),
            last_known_confirmation: confirmed_at,
            max_staleness,
        }
    }
}

/// The effect of [`record`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// The sidecar was last confirmed at this time or earlier; `None` if it was never confirmed for certain.
    Confirmed(Option<Timestamp>),
    /// The row of a later stream of the sidecar remains.
    Superseded,
}

/// Records a stream, in place of an earlier one of the same sidecar.
pub async fn record(
    conn: &mut Conn,
    StreamId { control_plane, number }: StreamId<'_>,
    record: &NewRecord<'_>,
) -> Result<Recorded, StoreError> {
    let NewRecord { identity, connected_at, progress, confirmed_at, max_staleness } = record;
    let SidecarIdentity { key, api_key, service, address, release } = identity;
    let SidecarProgress { applied, required, applied_at } = progress;
    let query = sqlx::query(RECORD_STREAM).bind(key.instance.to_string()).bind(i64::from(key.index));
    let query = query.bind(api_key.to_string());
    let query = query.bind(service.to_string()).bind(control_plane).bind(number).bind(address).bind(release);
    let query = query.bind(connected_at.micros()).bind(applied.number());
    let query = query.bind(required.number()).bind(applied_at.map(Timestamp::micros));
    let query = query.bind(confirmed_at.map(Timestamp::micros)).bind(micros(*max_staleness));
    match query.fetch_optional(conn).await? {
        Some(row) => Ok(Recorded::Confirmed(row::optional_timestamp(&row, "confirmed_at")?)),
        None => Ok(Recorded::Superseded),
    }
}

/// Writes the progress of a stream. Does nothing if the sidecar has another stream.
pub async fn update(
    conn: &mut Conn,
    StreamId { control_plane, number }: StreamId<'_>,
    record: &NewRecord<'_>,
) -> Result<(), StoreError> {
    let NewRecord { identity, connected_at: _, progress, confirmed_at, max_staleness: _ } = record;
    let SidecarProgress { applied, required, applied_at } = progress;
    let query = sqlx::query(UPDATE_STREAM).bind(applied.number()).bind(required.number());
    let query = query.bind(applied_at.map(Timestamp::micros)).bind(confirmed_at.map(Timestamp::micros));
    bind_name(query, identity).bind(control_plane).bind(number).execute(conn).await?;
    Ok(())
}

/// Writes that a stream had ended at a time. Does nothing if the sidecar has another stream.
pub async fn end(
    conn: &mut Conn,
    StreamId { control_plane, number }: StreamId<'_>,
    identity: &SidecarIdentity,
    ended_at: Timestamp,
) -> Result<(), StoreError> {
    let query = bind_name(sqlx::query(END_STREAM).bind(ended_at.micros()), identity);
    query.bind(control_plane).bind(number).execute(conn).await?;
    Ok(())
}

/// Deletes a stream of a sidecar that decides no more. Does nothing if the sidecar has another stream.
pub async fn delete(
    conn: &mut Conn,
    StreamId { control_plane, number }: StreamId<'_>,
    identity: &SidecarIdentity,
) -> Result<(), StoreError> {
    let query = bind_name(sqlx::query(DELETE_STREAM), identity);
    query.bind(control_plane).bind(number).execute(conn).await?;
    Ok(())
}

/// Deletes a process with an API key of which another process with this key says that it has ended, if its stream has ended. Returns
/// whether there is none any more.
pub async fn forget(conn: &mut Conn, ended: &EndedProcess) -> Result<bool, StoreError> {
    let EndedProcess { service, instance, api_key } = ended;
    let name = |query: Query<'static, Any, AnyArguments>| {
        query.bind(service.to_string()).bind(instance.to_string()).bind(api_key.to_string())
    };
    name(sqlx::query(FORGET_ENDED)).execute(&mut *conn).await?;
    Ok(name(sqlx::query(IS_RECORDED)).fetch_optional(conn).await?.is_none())
}

/// Whether a sidecar is recorded with an open stream of a control plane.
pub async fn is_open_at(conn: &mut Conn, control_plane: &str, identity: &SidecarIdentity) -> Result<bool, StoreError> {
    let query = bind_name(sqlx::query(IS_OPEN_AT), identity).bind(control_plane);
    Ok(query.fetch_optional(conn).await?.is_some())
}

/// Binds what names the row of a sidecar.
fn bind_name<'q>(
    query: Query<'q, Any, AnyArguments>,
    SidecarIdentity { key: SidecarKey { instance, index }, service, .. }: &SidecarIdentity,
) -> Query<'q, Any, AnyArguments> {
    query.bind(service.to_string()).bind(instance.to_string()).bind(i64::from(*index))
}

/// If more than `kept` sidecars of a service have no stream, the oldest ones become one row, which stands for the instance
/// [`SidecarInstance::MERGED`].
pub async fn merge_oldest_ended(conn: &mut Conn, service: ServiceId, kept: i64) -> Result<(), StoreError> {
    let (service, merged) = (service.to_string(), SidecarInstance::MERGED.to_string());
    let count = sqlx::query(COUNT_ENDED).bind(&service).bind(&merged).bind(kept.saturating_add(1));
    if row::total_count(&count.fetch_one(&mut *conn).await?)? <= kept {
        return Ok(());
    }
    let surplus = kept / 10 + 1;
    sqlx::query(MERGE_ENDED).bind(&merged).bind(&service).bind(surplus).execute(&mut *conn).await?;
    sqlx::query(DELETE_MERGED).bind(&service).bind(&merged).bind(surplus).execute(conn).await?;
    Ok(())
}

/// The rows of this service, which does not exist, stand for sidecars of any service that the database does not know.
pub const OF_ANY_SERVICE: ServiceId = ServiceId::from_bits(0);

/// Records that there may be sidecars that the database does not know: all of them were confirmed at `now` at the latest, and refuse
/// all requests when this is `max_staleness` ago, or the longest maximum staleness that the database contains.
pub async fn record_unknown(conn: &mut Conn, now: Timestamp, max_staleness: Duration) -> Result<(), StoreError> {
    let longest: i64 = row::get(&sqlx::query(LONGEST_STALENESS).fetch_one(&mut *conn).await?, "longest")?;
    let max_staleness = micros(max_staleness).max(longest);
    let query = sqlx::query(RECORD_UNKNOWN).bind(SidecarInstance::MERGED.to_string());
    let query = query.bind(ApiKeyId::from_bits(0).to_string()).bind(OF_ANY_SERVICE.to_string());
    let query = query.bind(now.micros());
    query.bind(now.micros().saturating_add(max_staleness)).bind(max_staleness).execute(conn).await?;
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
    let (instance, index) = position(page.after);
    let query = sqlx::query(LIST_OF_SERVICE).bind(service.to_string()).bind(instance).bind(index).bind(now.micros());
    let rows = query.bind(page.items_to_read()).bind(page.items_to_skip()).fetch_all(conn).await?;
    let items = rows.iter().map(from_row).collect::<Result<_, _>>()?;
    Ok(ListPage::new(&page, items, total, |sidecar: &RecordedSidecar| sidecar.identity.key, None))
}

/// Up to `limit` recorded sidecars of a service after a position, without those that have refused all requests since before a time.
pub async fn recorded_after(
    conn: &mut Conn,
    (service, since): (ServiceId, Timestamp),
    after: Option<SidecarKey>,
    limit: i64,
) -> Result<Vec<RecordedSidecar>, StoreError> {
    let (instance, index) = position(after);
    let query = sqlx::query(RECORDED_AFTER).bind(service.to_string()).bind(instance).bind(index);
    query.bind(since.micros()).bind(limit).fetch_all(conn).await?.iter().map(from_row).collect()
}

/// The next service with recorded sidecars.
pub async fn next_service(conn: &mut Conn, after: Option<ServiceId>) -> Result<Option<ServiceId>, StoreError> {
    let after = after.map_or_else(String::new, |service| service.to_string());
    let row = sqlx::query(NEXT_SERVICE).bind(after).fetch_one(conn).await?;
    row::get::<Option<String>>(&row, "service_id")?.map(|_| row::parse(&row, "service_id")).transpose()
}

/// Writes that a control plane runs, and that its streams contain all changes up to a revision. Returns false, and changes nothing,
/// if another control plane took it for killed. Only a control plane that `is_new` gets a row.
pub async fn record_control_plane(
    conn: &mut Conn,
    (id, is_new): (&str, bool),
    (now, distributed): (Timestamp, Revision),
) -> Result<bool, StoreError> {
    let query = if is_new { sqlx::query(REGISTER) } else { sqlx::query(RENEW) };
    let query = query.bind(id).bind(now.micros()).bind(distributed.number());
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
    let peer = |row: &AnyRow| {
        Ok(Peer {
            id: row::get(row, "id")?,
            seen_at: row::timestamp(row, "seen_at")?,
            is_killed: row::optional_timestamp(row, "killed_at")?.is_some(),
        })
    };
    sqlx::query(LIST_CONTROL_PLANES).bind(id).fetch_all(conn).await?.iter().map(peer).collect()
}

/// Marks a control plane that has written nothing since it was read: from now on, it confirms nothing.
pub async fn mark_killed(conn: &mut Conn, peer: &Peer, now: Timestamp) -> Result<(), StoreError> {
    let query = sqlx::query(MARK_KILLED).bind(now.micros()).bind(&peer.id).bind(peer.seen_at.micros());
    query.execute(conn).await?;
    Ok(())
}

/// Marks an earlier name of a control plane as killed, whether or not its row exists yet.
pub async fn end_control_plane(conn: &mut Conn, id: &str, now: Timestamp) -> Result<(), StoreError> {
    sqlx::query(END_CONTROL_PLANE).bind(id).bind(now.micros()).execute(conn).await?;
    Ok(())
}

/// Ends up to `limit` streams of a control plane that is marked as killed, and deletes its row when no stream is left.
pub async fn end_streams_of_killed(conn: &mut Conn, id: &str, now: Timestamp, limit: i64) -> Result<(), StoreError> {
    let query = sqlx::query(END_STREAMS_OF_KILLED).bind(now.micros()).bind(id).bind(limit);
    if query.execute(&mut *conn).await?.rows_affected() == 0 {
        delete_control_plane(conn, id).await?;
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

/// The values of a position in a list; an empty text is before all others.
fn position(after: Option<SidecarKey>) -> (String, i64) {
    after.map_or_else(Default::default, |SidecarKey { instance, index }| (instance.to_string(), i64::from(index)))
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

fn from_row(row: &AnyRow) -> Result<RecordedSidecar, StoreError> {
    let revision = |column| Ok::<_, StoreError>(Revision::new(row::get(row, column)?));
    Ok(RecordedSidecar {
        identity: SidecarIdentity {
            key: SidecarKey { instance: row::parse(row, "instance")?, index: row::number(row, "key_index")? },
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
