//! The only module that reads the system clock. All other code receives a [`Clock`] or a [`Timestamp`].

use countersign_identity::Timestamp;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A source of the current time, which tests replace.
pub trait Clock: Send + Sync + 'static {
    /// The wall-clock time, to compare with timestamps such as the expiry of a token.
    fn now(&self) -> Timestamp;

    /// The time since boot, suspend included, to measure ages and timeouts. Adjustments of the wall clock do not change
    /// the time since boot.
    fn since_boot(&self) -> Duration;
}

/// The clock of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the only code that reads the wall clock")]
    fn now(&self) -> Timestamp {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX))
    }

    fn since_boot(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    }
}
