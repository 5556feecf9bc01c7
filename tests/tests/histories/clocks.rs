//! The clock of the sidecar, which may fall behind that of the control plane.

use countersign_identity::Timestamp;
use countersign_process::Clock;
use countersign_tests::ManualClock;
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
    clock: Arc<ManualClock>,
    behind: AtomicI64,
}

impl Lagging {
    pub fn new(clock: Arc<ManualClock>) -> Arc<Self> {
        Arc::new(Self { clock, behind: AtomicI64::new(0) })
    }

    pub fn be_behind(&self, seconds: u32) {
        self.behind.store(i64::from(seconds) * 1_000_000, Ordering::SeqCst);
    }
}

impl Clock for Lagging {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.clock.now().micros() - self.behind.load(Ordering::SeqCst))
    }

    fn since_boot(&self) -> Duration {
        self.clock.since_boot()
    }
}
