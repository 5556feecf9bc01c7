//! Instants as we write them, in answers and in what is told to webhooks.

use countersign_identity::Timestamp;

/// RFC 3339, UTC.
pub fn rfc3339(at: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(at.micros()).map(|at| at.to_string()).unwrap_or_default()
}
