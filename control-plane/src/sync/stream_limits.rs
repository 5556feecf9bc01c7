//! Limits streams: how many are open at this process, how they are divided among the owners of services, how many an API key has,
//! and how often an API key opens new ones.
//!
//! If all streams of the process are open, a new stream takes the place of one of the owner with the most streams, if the owner
//! of the new stream has at least two fewer. So one owner may use all streams that nobody else needs, and greedy owners end with
//! equal shares. The limits are separate for each process. State of an API key or of an owner remains only while it has open
//! streams, or shortly after it has opened some.

use crate::domain::{agent::Owner, service::ServiceKey};
use countersign_identity::ApiKeyId;
use countersign_process::Clock;
use prometheus::IntCounterVec;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::Notify;
use tonic::Status;

/// The smallest number of keys and owners at which state that is no longer needed is searched for.
const MIN_SWEEP: usize = 64;

/// The log contains at most one refused stream of an owner in this time.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// How many streams of an API key may be open at the same time. An API key can open as many streams at once, and twice as many
/// per minute.
#[derive(Debug, Clone, Copy)]
pub struct StreamsPerKey(u32);

impl StreamsPerKey {
    /// At least one stream.
    pub fn new(count: u32) -> Self {
        Self(count.max(1))
    }

    /// The time after which an API key that has opened a stream may open one more.
    fn interval(self) -> Duration {
        Duration::from_secs(30) / self.0
    }
}

/// How many streams may be open.
#[derive(Debug, Clone, Copy)]
pub struct StreamCaps {
    /// Streams of this process.
    pub total: u32,
    /// Streams of an API key.
    pub per_key: StreamsPerKey,
}

/// Open streams of this process, as a multiple of the connections of the sync port.
const STREAMS_PER_CONNECTION: u32 = 2;

/// An API key may have this part of the connections of the sync port as streams, but at least [`MIN_STREAMS_PER_KEY`].
const KEY_PART: u32 = 8;

/// Streams that each API key may have: one for each sidecar of a service.
const MIN_STREAMS_PER_KEY: u32 = 1000;

impl StreamCaps {
    /// The limits of a sync port with this number of connections.
    pub fn for_connections(connections: u32) -> Self {
        let per_key = (connections / KEY_PART).max(MIN_STREAMS_PER_KEY);
        Self { total: connections.saturating_mul(STREAMS_PER_CONNECTION), per_key: StreamsPerKey::new(per_key) }
    }
}

/// A limit that a new stream can exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamLimit {
    /// The open streams of the API key.
    Key,
    /// The new streams of the API key in the last time.
    KeyRate,
    /// The open streams of this process.
    Process,
    /// The share of the owner in the open streams of this process.
    OwnerShare,
}

/// The names of the limits in metrics.
pub const STREAM_LIMITS: [&str; 4] = {
    use StreamLimit::{Key, KeyRate, OwnerShare, Process};
    [Key.name(), KeyRate.name(), Process.name(), OwnerShare.name()]
};

impl StreamLimit {
    const fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::KeyRate => "key_rate",
            Self::Process => "process",
            Self::OwnerShare => "owner_share",
        }
    }
}

/// The streams of all API keys.
#[derive(Clone)]
pub(super) struct StreamLimits {
    caps: StreamCaps,
    clock: Arc<dyn Clock>,
    /// Counts refused streams, by limit.
    refused: IntCounterVec,
    streams: Arc<Mutex<StreamTable>>,
}

#[derive(Debug, Default)]
struct StreamTable {
    open: usize,
    /// The number of streams that were ever opened.
    opened: u64,
    by_key: HashMap<ApiKeyId, KeyStreams>,
    by_owner: HashMap<Owner, OwnerStreams>,
    /// The number of keys and owners at which state that is no longer needed is searched for: twice the number after the last
    /// search.
    sweep_at: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct KeyStreams {
    open: u32,
    /// When all streams that the key has opened are paid for, at one stream per interval; in time since boot.
    paid_at: Duration,
}

#[derive(Debug, Default)]
struct OwnerStreams {
    /// The open streams by number, and how each is told to end.
    open: BTreeMap<u64, Arc<Notify>>,
    /// Until when refused streams of this owner are not logged; in time since boot.
    silent_until: Duration,
}

impl KeyStreams {
    fn is_needed(self, now: Duration) -> bool {
        self.open > 0 || self.paid_at > now
    }
}

impl OwnerStreams {
    fn is_needed(&self, now: Duration) -> bool {
        !self.open.is_empty() || self.silent_until > now
    }
}

/// An open stream of an API key. Dropping it allows another stream.
pub(super) struct StreamPermit {
    limits: StreamLimits,
    key: ApiKeyId,
    /// The owner of the service when the stream was opened.
    owner: Owner,
    number: u64,
    displaced: Arc<Notify>,
}

impl StreamPermit {
    /// Completes when the stream must end because a stream of another owner takes its place.
    pub(super) fn displaced(&self) -> impl Future<Output = Status> + Send + use<> {
        let displaced = self.displaced.clone();
        async move {
            displaced.notified().await;
            Status::resource_exhausted(
                "the services of this owner have more than their share of the streams (connections.max)",
            )
        }
    }
}

impl StreamLimits {
    pub(super) fn new(caps: StreamCaps, clock: Arc<dyn Clock>, refused: IntCounterVec) -> Self {
        Self { caps, clock, refused, streams: Arc::default() }
    }

    /// Counts a new stream, or refuses it.
    pub(super) fn open(&self, key: &ServiceKey) -> Result<StreamPermit, Status> {
        let now = self.clock.since_boot();
        let mut table = self.lock();
        table.remove_unneeded(now);
        let (limit, message) = match table.check(key, self.caps, now) {
            Ok(()) => {
                let (number, displaced) = table.insert(key, self.caps.per_key, now);
                let is_displacing = table.open > self.total() && table.displace_one();
                drop(table);
                if is_displacing {
                    self.refused.with_label_values(&[StreamLimit::OwnerShare.name()]).inc();
                }
                return Ok(StreamPermit {
                    limits: self.clone(),
                    key: key.id,
                    owner: key.owner.clone(),
                    number,
                    displaced,
                });
            }
            Err(refusal) => refusal,
        };
        let owner = table.by_owner.entry(key.owner.clone()).or_default();
        let is_logged = owner.silent_until <= now;
        if is_logged {
            owner.silent_until = now + LOG_INTERVAL;
        }
        drop(table);
        self.refused.with_label_values(&[limit.name()]).inc();
        if is_logged {
            tracing::warn!(service = %key.service, key = %key.id, limit = limit.name(), "sync stream refused: {message}");
        }
        Err(Status::resource_exhausted(message))
    }

    fn total(&self) -> usize {
        usize::try_from(self.caps.total).unwrap_or(usize::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, StreamTable> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamTable {
    /// Returns the limit that a new stream exceeds, and its description.
    fn check(&self, key: &ServiceKey, caps: StreamCaps, now: Duration) -> Result<(), (StreamLimit, String)> {
        let StreamCaps { total, per_key: StreamsPerKey(max) } = caps;
        let interval = caps.per_key.interval();
        let of_key = self.by_key.get(&key.id).copied().unwrap_or_default();
        if of_key.open >= max {
            let message = format!("the API key already has {max} open streams (connections.max)");
            return Err((StreamLimit::Key, message));
        }
        if of_key.paid_at.max(now) + interval > now + interval * max {
            let per_minute = u64::from(max) * 2;
            let message = format!(
                "the API key opens streams too often: at most {max} at once and {per_minute} per minute (connections.max)"
            );
            return Err((StreamLimit::KeyRate, message));
        }
        let of_owner = self.by_owner.get(&key.owner).map_or(0, |owner| owner.open.len());
        // The search for the owner with the most streams is needed only while all streams are open.
        let is_full = self.open >= usize::try_from(total).unwrap_or(usize::MAX);
        if is_full && self.by_owner.values().all(|owner| owner.open.len() < of_owner + 2) {
            let message = format!(
                "the control plane has {total} open streams, {of_owner} of them of this owner, and no owner has more (connections.max)"
            );
            return Err((StreamLimit::Process, message));
        }
        Ok(())
    }

    /// Counts a new stream. Returns its number, and how it is told to end.
    fn insert(&mut self, key: &ServiceKey, per_key: StreamsPerKey, now: Duration) -> (u64, Arc<Notify>) {
        let displaced = Arc::new(Notify::new());
        self.open += 1;
        self.opened += 1;
        let of_key = self.by_key.entry(key.id).or_default();
        of_key.open += 1;
        of_key.paid_at = of_key.paid_at.max(now) + per_key.interval();
        self.by_owner.entry(key.owner.clone()).or_default().open.insert(self.opened, displaced.clone());
        (self.opened, displaced)
    }

    /// Ends the newest stream of the owner with the most streams.
    fn displace_one(&mut self) -> bool {
        let greediest = self.by_owner.values_mut().max_by_key(|owner| owner.open.len());
        let newest = greediest.and_then(|owner| owner.open.pop_last());
        newest.is_some_and(|(_, displaced)| {
            self.open -= 1;
            displaced.notify_one();
            true
        })
    }

    fn close(&mut self, permit: &StreamPermit, now: Duration) {
        if let Some(streams) = self.by_key.get_mut(&permit.key) {
            streams.open = streams.open.saturating_sub(1);
            if !streams.is_needed(now) {
                self.by_key.remove(&permit.key);
            }
        }
        if let Some(streams) = self.by_owner.get_mut(&permit.owner) {
            // A displaced stream is no longer in the table.
            self.open -= usize::from(streams.open.remove(&permit.number).is_some());
            if !streams.is_needed(now) {
                self.by_owner.remove(&permit.owner);
            }
        }
    }

    fn remove_unneeded(&mut self, now: Duration) {
        let size = |table: &Self| table.by_key.len() + table.by_owner.len();
        if size(self) >= self.sweep_at.max(MIN_SWEEP) {
            self.by_key.retain(|_, streams| streams.is_needed(now));
            self.by_owner.retain(|_, streams| streams.is_needed(now));
            self.sweep_at = size(self) * 2;
        }
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let now = self.limits.clock.since_boot();
        self.limits.lock().close(self, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{credential::SecretHash, service::KeyScope};
    use countersign_identity::{ServiceId, Timestamp};
    use countersign_test_engines::ManualClock;
    use futures_util::FutureExt as _;
    use prometheus::Opts;

    fn key_of(owner: &str, bits: u128) -> ServiceKey {
        ServiceKey {
            id: ApiKeyId::from_bits(bits),
            service: ServiceId::from_bits(bits),
            owner: Owner { issuer: "https://issuer.example".to_owned(), subject: owner.to_owned() },
            name: "key".to_owned().try_into().unwrap(),
            scope: KeyScope::Sync,
            managed_by: None,
            secret: SecretHash::from_store("hash".to_owned()),
            created_at: Timestamp::from_micros(0),
            revoked_at: None,
        }
    }

    fn key(bits: u128) -> ServiceKey {
        key_of("anna", bits)
    }

    fn limits(clock: Arc<ManualClock>, total: u32, per_key: u32) -> StreamLimits {
        let refused = IntCounterVec::new(Opts::new("refused", "refused streams"), &["limit"]).unwrap();
        StreamLimits::new(StreamCaps { total, per_key: StreamsPerKey::new(per_key) }, clock, refused)
    }

    #[test]
    fn open_streams_and_new_streams_are_limited_per_key() {
        let clock = ManualClock::new();
        let limits = limits(clock.clone(), 1000, 3);
        let streams: Vec<_> = (0..3).map(|_| limits.open(&key(1)).unwrap()).collect();
        assert!(limits.open(&key(1)).err().unwrap().message().contains("3 open streams"));
        let other = limits.open(&key(2)).unwrap();
        drop(streams);
        let refusal = limits.open(&key(1)).err().unwrap();
        assert!(refusal.message().contains("6 per minute"), "{}", refusal.message());
        clock.advance(Duration::from_secs(10));
        drop(limits.open(&key(1)).unwrap());
        assert!(limits.open(&key(1)).is_err());
        clock.advance(Duration::from_secs(30));
        let again: Vec<_> = (0..3).map(|_| limits.open(&key(1)).unwrap()).collect();
        clock.advance(LOG_INTERVAL);
        drop((again, other));
        let table = limits.lock();
        assert!(table.by_key.is_empty() && table.by_owner.is_empty() && table.open == 0);
    }

    /// Opens streams with new API keys of an owner until one is refused.
    fn open_all(limits: &StreamLimits, owner: &str, open: &mut Vec<StreamPermit>) -> Status {
        loop {
            // Each stream has another key, so no limit of keys applies.
            match limits.open(&key_of(owner, 1 + open.len() as u128)) {
                Ok(permit) => open.push(permit),
                Err(status) => return status,
            }
        }
    }

    fn open_of(limits: &StreamLimits, owner: &str) -> usize {
        limits.lock().by_owner.get(&key_of(owner, 1).owner).map_or(0, |streams| streams.open.len())
    }

    #[test]
    fn greedy_owners_end_with_equal_shares() {
        let limits = limits(ManualClock::new(), 12, 1000);
        let mut open = Vec::new();
        let refusal = open_all(&limits, "anna", &mut open);
        assert!(refusal.message().contains("12 open streams, 12 of them of this owner"), "{}", refusal.message());
        for owner in ["bob", "carol", "anna", "bob"] {
            open_all(&limits, owner, &mut open);
        }
        assert_eq!(["anna", "bob", "carol"].map(|owner| open_of(&limits, owner)), [4, 4, 4]);
        let (displaced, kept): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|permit| permit.displaced().now_or_never().is_some());
        assert_eq!((displaced.len(), kept.len(), limits.lock().open), (6 + 4, 12, 12));
        drop(displaced);
        assert_eq!(limits.lock().open, 12);
        drop(kept);
        assert_eq!((limits.lock().open, limits.refused.with_label_values(&["owner_share"]).get()), (0, 10));
    }

    #[test]
    fn stream_of_an_owner_with_few_streams_displaces_nobody_else_with_few() {
        let limits = limits(ManualClock::new(), 2, 10);
        let streams = [limits.open(&key_of("anna", 1)).unwrap(), limits.open(&key_of("bob", 2)).unwrap()];
        let refusal = limits.open(&key_of("carol", 3)).err().unwrap();
        assert!(refusal.message().contains("2 open streams, 0 of them"), "{}", refusal.message());
        assert!(streams.iter().all(|permit| permit.displaced().now_or_never().is_none()));
        drop(streams);
        limits.open(&key_of("carol", 3)).unwrap();
    }

    #[test]
    fn state_of_keys_without_streams_is_removed() {
        let clock = ManualClock::new();
        let limits = limits(clock.clone(), 1000, 1);
        let open = limits.open(&key(0)).unwrap();
        for second in 0..10_000 {
            drop(limits.open(&key(1 + second)).unwrap());
            clock.advance(Duration::from_secs(1));
            assert!(limits.lock().by_key.len() <= MIN_SWEEP + 1);
        }
        assert!(limits.lock().by_key.contains_key(&key(0).id));
        drop(open);
        assert!(!limits.lock().by_key.contains_key(&key(0).id));
    }
}
