//! A clock that only advances when a test calls `advance`.

use countersign_identity::Timestamp;
use countersign_process::{Clock, SystemClock};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// A clock with microsecond resolution.
#[derive(Debug)]
pub struct ManualClock {
    started_at: i64,
    elapsed: AtomicU64,
}

impl ManualClock {
    /// Starts at the current time, so that certificates that tests generate are valid.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { started_at: SystemClock.now().truncated_to_second().micros(), elapsed: AtomicU64::new(0) })
    }

    /// Advances the clock.
    pub fn advance(&self, duration: Duration) {
        self.elapsed.fetch_add(
            u64::try_from(duration.as_micros()).expect("the duration fits into u64 microseconds"),
            Ordering::SeqCst,
        );
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.started_at.saturating_add_unsigned(self.elapsed.load(Ordering::SeqCst)))
    }

    /// The machine has been up for an hour at the start, so a test can subtract from this time.
    fn since_boot(&self) -> Duration {
        Duration::from_micros(self.elapsed.load(Ordering::SeqCst)) + Duration::from_hours(1)
    }
}
