//! Clocks that stand still until they are told to go on, so that every answer can be foretold.

use countersign_identity::Timestamp;
use countersign_process::{Clock, SystemClock};
use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

/// The control plane's clock.
#[derive(Debug)]
pub struct Hand {
    began: i64,
    passed: AtomicI64,
}

/// The sidecar's: its wall clock may be behind, its boot-time clock runs alike.
#[derive(Debug)]
pub struct Lagging {
    hand: Arc<Hand>,
    behind: AtomicI64,
}

impl Hand {
    /// Stands at the present, for certificates are valid now.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { began: SystemClock.now().whole_second().micros(), passed: AtomicI64::new(0) })
    }

    /// Goes on.
    pub fn advance(&self, span: Duration) {
        self.passed.fetch_add(i64::try_from(span.as_micros()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for Hand {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.began + self.passed.load(Ordering::SeqCst))
    }

    fn since_boot(&self) -> Duration {
        Duration::from_micros(self.passed.load(Ordering::SeqCst).unsigned_abs()) + Duration::from_hours(1)
    }
}

impl Lagging {
    pub fn new(hand: Arc<Hand>) -> Arc<Self> {
        Arc::new(Self { hand, behind: AtomicI64::new(0) })
    }

    pub fn be_behind(&self, seconds: u32) {
        self.behind.store(i64::from(seconds) * 1_000_000, Ordering::SeqCst);
    }
}

impl Clock for Lagging {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.hand.now().micros() - self.behind.load(Ordering::SeqCst))
    }

    fn since_boot(&self) -> Duration {
        self.hand.since_boot()
    }
}
