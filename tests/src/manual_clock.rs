//! A clock that stands still until it is told to go on, so that every answer can be foretold.

use countersign_identity::Timestamp;
use countersign_process::{Clock, SystemClock};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// The clock, in microseconds.
#[derive(Debug)]
pub struct ManualClock {
    began: i64,
    passed: AtomicU64,
}

impl ManualClock {
    /// Stands at the present, for certificates are valid now.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { began: SystemClock.now().truncated_to_second().micros(), passed: AtomicU64::new(0) })
    }

    /// Goes on.
    pub fn advance(&self, span: Duration) {
        self.passed.fetch_add(u64::try_from(span.as_micros()).expect("no such span"), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.began.saturating_add_unsigned(self.passed.load(Ordering::SeqCst)))
    }

    fn since_boot(&self) -> Duration {
        Duration::from_micros(self.passed.load(Ordering::SeqCst)) + Duration::from_hours(1)
    }
}
