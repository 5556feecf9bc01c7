//! Limits the streams of an API key: how many are open, and how often new ones are opened.
//!
//! The limits are separate for each process. State of a key remains only while it has open streams or has recently opened some.

use countersign_identity::ApiKeyId;
use countersign_process::Clock;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tonic::Status;

/// The smallest number of keys at which state that is no longer needed is searched for.
const MIN_SWEEP: usize = 64;

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

/// The streams of all API keys.
#[derive(Clone)]
pub(super) struct StreamLimits {
    limit: StreamsPerKey,
    clock: Arc<dyn Clock>,
    keys: Arc<Mutex<KeyTable>>,
}

#[derive(Debug, Default)]
struct KeyTable {
    by_key: HashMap<ApiKeyId, KeyStreams>,
    /// The number of keys at which state that is no longer needed is searched for: twice the number after the last search.
    sweep_at: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct KeyStreams {
    open: u32,
    /// When all streams that the key has opened are paid for, at one stream per interval; in time since boot.
    paid_at: Duration,
}

impl KeyStreams {
    fn is_needed(self, now: Duration) -> bool {
        self.open > 0 || self.paid_at > now
    }
}

/// An open stream of an API key. Dropping it allows another stream.
pub(super) struct StreamPermit {
    limits: StreamLimits,
    key: ApiKeyId,
}

impl StreamLimits {
    pub(super) fn new(limit: StreamsPerKey, clock: Arc<dyn Clock>) -> Self {
        Self { limit, clock, keys: Arc::default() }
    }

    /// Counts a new stream, or refuses it.
    pub(super) fn open(&self, key: ApiKeyId) -> Result<StreamPermit, Status> {
        let StreamsPerKey(max) = self.limit;
        let now = self.clock.since_boot();
        let mut keys = self.lock();
        if keys.by_key.len() >= keys.sweep_at.max(MIN_SWEEP) {
            keys.by_key.retain(|_, streams| streams.is_needed(now));
            keys.sweep_at = keys.by_key.len() * 2;
        }
        let streams = keys.by_key.entry(key).or_default();
        if streams.open >= max {
            return Err(Status::resource_exhausted(format!(
                "the API key already has {max} open streams (sync.streams_per_key)"
            )));
        }
        let paid_at = streams.paid_at.max(now) + self.limit.interval();
        if paid_at > now + self.limit.interval() * max {
            return Err(Status::resource_exhausted(format!(
                "the API key opens streams too often: at most {max} at once and {} per minute (sync.streams_per_key)",
                u64::from(max) * 2
            )));
        }
        *streams = KeyStreams { open: streams.open + 1, paid_at };
        Ok(StreamPermit { limits: self.clone(), key })
    }

    fn lock(&self) -> MutexGuard<'_, KeyTable> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let now = self.limits.clock.since_boot();
        let mut keys = self.limits.lock();
        if let Some(streams) = keys.by_key.get_mut(&self.key) {
            streams.open = streams.open.saturating_sub(1);
            if !streams.is_needed(now) {
                keys.by_key.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_tests::ManualClock;

    fn key(bits: u128) -> ApiKeyId {
        ApiKeyId::from_bits(bits)
    }

    #[test]
    fn open_streams_and_new_streams_are_limited_per_key() {
        let clock = ManualClock::new();
        let limits = StreamLimits::new(StreamsPerKey::new(3), clock.clone());
        let streams: Vec<_> = (0..3).map(|_| limits.open(key(1)).unwrap()).collect();
        assert!(limits.open(key(1)).err().unwrap().message().contains("3 open streams"));
        let other = limits.open(key(2)).unwrap();
        drop(streams);
        let refusal = limits.open(key(1)).err().unwrap();
        assert!(refusal.message().contains("6 per minute"), "{}", refusal.message());
        clock.advance(Duration::from_secs(10));
        drop(limits.open(key(1)).unwrap());
        assert!(limits.open(key(1)).is_err());
        clock.advance(Duration::from_secs(30));
        let again: Vec<_> = (0..3).map(|_| limits.open(key(1)).unwrap()).collect();
        clock.advance(Duration::from_secs(30));
        drop((again, other));
        assert!(limits.lock().by_key.is_empty());
    }

    #[test]
    fn state_of_keys_without_streams_is_removed() {
        let clock = ManualClock::new();
        let limits = StreamLimits::new(StreamsPerKey::new(1), clock.clone());
        let open = limits.open(key(0)).unwrap();
        for second in 0..10_000 {
            drop(limits.open(key(1 + second)).unwrap());
            clock.advance(Duration::from_secs(1));
            assert!(limits.lock().by_key.len() <= MIN_SWEEP + 1);
        }
        assert!(limits.lock().by_key.contains_key(&key(0)));
        drop(open);
        assert!(!limits.lock().by_key.contains_key(&key(0)));
    }
}
