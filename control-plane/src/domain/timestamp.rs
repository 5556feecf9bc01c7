//! Formatting of timestamps in responses and webhook payloads.

use countersign_identity::Timestamp;

/// Formats a timestamp as RFC 3339 in UTC, such as `2030-01-31T12:00:00.5Z`.
pub fn format_rfc3339(at: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(at.micros()).map(|at| at.to_string()).unwrap_or_default()
}
