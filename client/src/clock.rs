//! The only place of the client that asks what time it is.

use countersign_identity::Timestamp;
use std::time::{SystemTime, UNIX_EPOCH};

/// Now, by the wall clock.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
pub fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX))
}
