//! The clock of the sidecar, which may fall behind that of the control plane.

use countersign_identity::Timestamp;
use countersign_process::Clock;
use countersign_tests::Hand;
use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

/// The sidecar's: its wall clock may be behind, its boot-time clock runs alike.
#[derive(Debug)]
pub struct Lagging {
    hand: Arc<Hand>,
    behind: AtomicI64,
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
