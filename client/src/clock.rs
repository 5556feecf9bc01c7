//! The wall clock. No other module of this crate reads the system clock.

use countersign_identity::Timestamp;
use std::time::{SystemTime, UNIX_EPOCH};

/// The current wall-clock time.
#[expect(clippy::disallowed_methods, reason = "the only module of this crate that reads the wall clock")]
pub fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX))
}
