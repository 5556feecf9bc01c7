//! Deliveries of events: their states, the outcomes of attempts, and the times of retries.

use crate::domain::string_enum::string_enum;
use countersign_identity::{EventId, Timestamp};
use std::time::Duration;

/// Maximum number of bytes of a response body that are stored.
pub const EXCERPT_BYTES: usize = 1024;

/// Maximum time for which a delivery waits because the response to an attempt has a `Retry-After`.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(24);

/// Maximum pause of deliveries to a target after repeated failures, unless its `Retry-After` asks for a longer one.
const MAX_TARGET_BACKOFF: Duration = Duration::from_mins(1);

/// Maximum time for which the other deliveries to the target wait because of a `Retry-After`.
const MAX_TARGET_RETRY_AFTER: Duration = Duration::from_mins(5);

/// Number of failures in a row after which we pause deliveries to a target.
const FAILURES_BEFORE_BACKOFF: u32 = 3;

/// The delivery of one event to one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub event: EventId,
    /// The kind of the event. It is a text, because a later version of Countersign may have stored a kind that is unknown here.
    pub kind: String,
    /// When the event happened.
    pub occurred_at: Timestamp,
    pub state: DeliveryState,
    /// Number of attempts since the delivery was created or last replayed.
    pub attempts: u32,
    pub last_attempt: Option<Attempt>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryState {
    /// The next attempt is due at this time. While the target is paused or disabled, the attempt waits longer.
    Pending(Timestamp),
    /// The receiver accepted the event.
    Delivered,
    /// All attempts failed; only a replay causes more attempts.
    Dead,
}

string_enum! {
    /// The state of a delivery without the due time, for filters of lists.
    DeliveryStatus {
        /// Another attempt will be made.
        Pending = "pending";
        /// The receiver accepted the event.
        Delivered = "delivered";
        /// All attempts failed.
        Dead = "dead";
    }
    /// Why an attempt failed.
    AttemptFailure {
        /// The response status was not 2xx, 3xx or 410.
        Status = "status";
        /// The response status was 410 Gone: the receiver does not accept events any more.
        Gone = "gone";
        /// The response status was 3xx. Redirects are not followed.
        Redirect = "redirect";
        /// No response before the timeout.
        Timeout = "timeout";
        /// The host name does not resolve.
        Dns = "dns";
        /// The host has no address that events may be sent to.
        AddressRefused = "address_refused";
        /// The certificate is not trusted, or the TLS handshake failed.
        Tls = "tls";
        /// The connection was not established, or broke.
        Connection = "connection";
    }
}

impl DeliveryState {
    /// The state without the due time.
    pub const fn status(self) -> DeliveryStatus {
        match self {
            Self::Pending(_) => DeliveryStatus::Pending,
            Self::Delivered => DeliveryStatus::Delivered,
            Self::Dead => DeliveryStatus::Dead,
        }
    }
}

/// The outcome of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// When the attempt ended.
    pub at: Timestamp,
    /// The response, if one arrived.
    pub response: Option<ResponseExcerpt>,
    /// Why the attempt failed; `None` after success.
    pub failure: Option<AttemptFailure>,
}

/// The part of a response that is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseExcerpt {
    /// The HTTP status.
    pub status: u16,
    /// At most [`EXCERPT_BYTES`] from the start of the body.
    pub body: String,
}

impl AttemptFailure {
    /// The failure for an HTTP status; `None` for 2xx.
    pub const fn from_http_status(status: u16) -> Option<Self> {
        match status {
            200..=299 => None,
            300..=399 => Some(Self::Redirect),
            410 => Some(Self::Gone),
            _ => Some(Self::Status),
        }
    }
}

/// The delays between the attempts of one delivery.
#[derive(Debug, Clone)]
pub struct RetrySchedule(Vec<Duration>);

impl RetrySchedule {
    /// Creates a schedule with one attempt more than there are delays.
    pub const fn new(delays: Vec<Duration>) -> Self {
        Self(delays)
    }

    /// The time of the next attempt after `attempts` failures; `None` if there are no more attempts. `jitter` is a random number
    /// that changes the delay by up to a fifth, so that deliveries which failed together are not retried together. A longer
    /// `retry_after` replaces the delay, but counts as at most [`MAX_RETRY_AFTER`].
    pub fn next_attempt(
        &self,
        attempts: u32,
        now: Timestamp,
        retry_after: Option<Duration>,
        jitter: u32,
    ) -> Option<Timestamp> {
        let position = usize::try_from(attempts).ok()?.checked_sub(1)?;
        let delay = with_jitter(*self.0.get(position)?, jitter);
        Some(now.saturating_add(delay.max(retry_after.unwrap_or_default().min(MAX_RETRY_AFTER))))
    }
}

/// How long we pause deliveries to a target after a number of failures in a row.
pub fn target_backoff(failures: u32, retry_after: Option<Duration>, jitter: u32) -> Duration {
    let retry_after = retry_after.unwrap_or_default().min(MAX_TARGET_RETRY_AFTER);
    if failures < FAILURES_BEFORE_BACKOFF {
        return retry_after;
    }
    let backoff = Duration::from_secs(1).saturating_mul(1 << (failures - FAILURES_BEFORE_BACKOFF).min(16));
    with_jitter(backoff.min(MAX_TARGET_BACKOFF), jitter).max(retry_after)
}

/// Returns between 80 and 120 percent of the delay, depending on `jitter`.
fn with_jitter(delay: Duration, jitter: u32) -> Duration {
    delay.mul_f64(0.8 + 0.4 * f64::from(jitter) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_seconds(1_000_000);

    #[test]
    fn schedule_has_one_delay_after_each_failure_except_the_last() {
        let schedule = RetrySchedule::new(vec![Duration::from_secs(5), Duration::from_mins(1)]);
        for jitter in [0, u32::MAX / 2, u32::MAX] {
            let first = schedule.next_attempt(1, NOW, None, jitter).unwrap().duration_since(NOW).as_secs_f64();
            let second = schedule.next_attempt(2, NOW, None, jitter).unwrap().duration_since(NOW).as_secs_f64();
            assert!((3.99..=6.01).contains(&first) && (47.9..=72.1).contains(&second), "{first} {second}");
        }
        assert_eq!(schedule.next_attempt(3, NOW, Some(Duration::from_secs(1)), 7), None);
        assert_eq!(schedule.next_attempt(0, NOW, None, 7), None);
    }

    #[test]
    fn schedule_honours_retry_after_up_to_one_day() {
        let schedule = RetrySchedule::new(vec![Duration::from_secs(5)]);
        let wait = |retry_after| schedule.next_attempt(1, NOW, Some(retry_after), 0).unwrap().duration_since(NOW);
        assert_eq!(wait(Duration::from_mins(2)), Duration::from_mins(2));
        assert_eq!(wait(Duration::from_secs(1)), Duration::from_secs(4));
        assert_eq!(wait(Duration::MAX), MAX_RETRY_AFTER);
    }

    #[test]
    fn target_backoff_doubles_up_to_one_minute() {
        let backoffs: Vec<_> =
            (0..40).map(|failures| target_backoff(failures, None, u32::MAX / 2).as_secs_f64().round()).collect();
        assert_eq!(backoffs[..10], [0.0, 0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]);
        assert!(backoffs[10..].iter().all(|backoff| (*backoff - 60.0).abs() < 0.5));
        assert_eq!(target_backoff(1, Some(Duration::from_secs(9)), 0), Duration::from_secs(9));
        assert_eq!(target_backoff(1, Some(Duration::MAX), 0), MAX_TARGET_RETRY_AFTER);
    }
}
