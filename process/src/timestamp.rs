//! The text of timestamps, in responses, webhook payloads, errors and the log.

use countersign_identity::Timestamp;

/// Formats a timestamp as RFC 3339 in UTC, such as `2030-01-31T12:00:00.5Z`. A time outside the years that RFC 3339 can express
/// becomes its Unix seconds, so that a log line about a certificate still says something.
pub fn format_rfc3339(at: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(at.micros()).map_or_else(|_| at.seconds().to_string(), |at| at.to_string())
}
