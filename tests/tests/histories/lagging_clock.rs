//! The clock of the sidecar, whose wall time can lag behind that of the control plane.

use countersign_identity::Timestamp;
use countersign_process::{BootId, Clock};
use countersign_tests::ManualClock;
use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

/// Shifts the wall time of a manual clock and leaves its time since boot unchanged.
#[derive(Debug)]
pub struct LaggingClock {
    clock: Arc<ManualClock>,
    lag: AtomicI64,
}

impl LaggingClock {
    pub fn new(clock: Arc<ManualClock>) -> Arc<Self> {
        Arc::new(Self { clock, lag: AtomicI64::new(0) })
    }

    pub fn set_lag(&self, seconds: u32) {
        self.lag.store(i64::from(seconds) * 1_000_000, Ordering::SeqCst);
    }
}

impl Clock for LaggingClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.clock.now().micros() - self.lag.load(Ordering::SeqCst))
    }

    fn since_boot(&self) -> Duration {
        self.clock.since_boot()
    }

    /// All processes of a history run within one boot of the system, so the id is constant.
    fn boot_id(&self) -> Option<BootId> {
        Some(BootId(1))
    }
}
