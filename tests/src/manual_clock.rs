//! A clock that only advances when a test says so.

use countersign_identity::Timestamp;
use countersign_process::{Clock, SystemClock};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// The clock; counts microseconds.
#[derive(Debug)]
pub struct ManualClock {
    started_at: i64,
    elapsed: AtomicU64,
}

impl ManualClock {
    /// Starts at the current time, because certificates must be valid.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { started_at: SystemClock.now().truncated_to_second().micros(), elapsed: AtomicU64::new(0) })
    }

    /// Advances the clock.
    pub fn advance(&self, span: Duration) {
        self.elapsed.fetch_add(u64::try_from(span.as_micros()).expect("no such span"), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.started_at.saturating_add_unsigned(self.elapsed.load(Ordering::SeqCst)))
    }

    fn since_boot(&self) -> Duration {
        Duration::from_micros(self.elapsed.load(Ordering::SeqCst)) + Duration::from_hours(1)
    }
}
