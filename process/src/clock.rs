//! The only place that asks what time it is. Everything else is told.

use countersign_identity::Timestamp;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tells the time. Tests bring their own.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock: for what is compared with a date, such as a token's expiry.
    fn now(&self) -> Timestamp;

    /// Time since the machine started, sleep included: for ages and timeouts, which a corrected wall
    /// clock must not stretch.
    fn since_boot(&self) -> Duration;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    fn now(&self) -> Timestamp {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX))
    }

    fn since_boot(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    }
}
