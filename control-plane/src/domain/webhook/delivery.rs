//! A delivery: how often it is tried, and what may come of a try.

use super::event::EventKind;
use crate::domain::string_enum::string_enum;
use countersign_identity::{EventId, Timestamp};
use std::time::Duration;

/// Of what a receiver answered, so many bytes are kept.
pub const EXCERPT: usize = 1024;

/// Whoever asks us to wait longer than this is asked again all the same.
const LONGEST_WAIT: Duration = Duration::from_hours(24);

/// A target that fails is left alone for this long at the most,
const LONGEST_REST: Duration = Duration::from_mins(1);

/// or for this long, if it asks for it. The delivery that it asked for may wait longer.
const LONGEST_WISH: Duration = Duration::from_mins(5);

/// After so many failures in a row, a target is left alone for a while.
const PATIENCE: u32 = 3;

/// One event on its way to one target.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// What is delivered.
    pub event: EventId,
    /// What kind of event it is.
    pub kind: EventKind,
    /// When it happened.
    pub occurred_at: Timestamp,
    /// How it stands.
    pub state: DeliveryState,
    /// How often it was tried, since it was asked for.
    pub attempts: u32,
    /// The last try, if there was one.
    pub last: Option<Attempt>,
}

/// How a delivery stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryState {
    /// It is to be tried at this instant, or as soon as its target is active.
    Pending(Timestamp),
    /// The target took it.
    Delivered,
    /// It is tried no more, unless somebody asks for it.
    Dead,
}

string_enum! {
    /// What a list of deliveries can be asked for.
    DeliveryStatus {
        /// On its way.
        Pending = "pending";
        /// The target took it.
        Delivered = "delivered";
        /// It is tried no more.
        Dead = "dead";
    }
    /// Why a try failed.
    AttemptFailure {
        /// The status was none of 2xx, and none of what follows.
        Status = "status";
        /// The status was 410: the target wants no more.
        Gone = "gone";
        /// The status was one of 3xx. Nobody follows.
        Redirect = "redirect";
        /// No answer in time.
        Timeout = "timeout";
        /// The name of the host leads nowhere.
        Dns = "dns";
        /// The host has no address that may be connected to.
        AddressRefused = "address_refused";
        /// The certificate is not believed, or TLS failed otherwise.
        Tls = "tls";
        /// No connection, or it broke.
        Connection = "connection";
    }
}

impl DeliveryState {
    /// How it stands, without when.
    pub const fn status(self) -> DeliveryStatus {
        match self {
            Self::Pending(_) => DeliveryStatus::Pending,
            Self::Delivered => DeliveryStatus::Delivered,
            Self::Dead => DeliveryStatus::Dead,
        }
    }
}

/// What came of the last try.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// When it ended.
    pub at: Timestamp,
    /// What was answered.
    pub answer: Option<Answer>,
    /// Why it is not delivered; `None` if it is.
    pub failure: Option<AttemptFailure>,
}

/// What a receiver answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The beginning of the body.
    pub excerpt: String,
}

impl AttemptFailure {
    /// What an HTTP status means; `None` if the event is delivered.
    pub const fn of_status(status: u16) -> Option<Self> {
        match status {
            200..=299 => None,
            300..=399 => Some(Self::Redirect),
            410 => Some(Self::Gone),
            _ => Some(Self::Status),
        }
    }
}

/// When a delivery is tried again.
#[derive(Debug, Clone)]
pub struct Schedule(Vec<Duration>);

impl Schedule {
    /// After each failed try the next of these passes; after the last there is one more try.
    pub const fn new(pauses: Vec<Duration>) -> Self {
        Self(pauses)
    }

    /// When the next try is, after `attempts` of them have failed; `None` if there is none. `dice` spread what failed
    /// together over a fifth of the pause in both directions. Nobody comes before a receiver wants them to.
    pub fn next(&self, attempts: u32, now: Timestamp, asked: Option<Duration>, dice: u32) -> Option<Timestamp> {
        let position = usize::try_from(attempts).ok()?.checked_sub(1)?;
        let pause = jittered(*self.0.get(position)?, dice);
        Some(now.saturating_add(pause.max(asked.unwrap_or_default().min(LONGEST_WAIT))))
    }
}

/// How long a target is left alone after so many failures in a row.
pub fn rest(failures: u32, asked: Option<Duration>, dice: u32) -> Duration {
    let asked = asked.unwrap_or_default().min(LONGEST_WISH);
    if failures < PATIENCE {
        return asked;
    }
    let doubled = Duration::from_secs(1).saturating_mul(1 << (failures - PATIENCE).min(16));
    jittered(doubled.min(LONGEST_REST), dice).max(asked)
}

/// From four fifths to six fifths of it.
fn jittered(pause: Duration, dice: u32) -> Duration {
    pause.mul_f64(0.8 + 0.4 * f64::from(dice) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_seconds(1_000_000);

    #[test]
    fn each_failure_has_its_pause_and_the_last_has_none() {
        let schedule = Schedule::new(vec![Duration::from_secs(5), Duration::from_mins(1)]);
        for dice in [0, u32::MAX / 2, u32::MAX] {
            let first = schedule.next(1, NOW, None, dice).unwrap().duration_since(NOW).as_secs_f64();
            let second = schedule.next(2, NOW, None, dice).unwrap().duration_since(NOW).as_secs_f64();
            assert!((3.99..=6.01).contains(&first) && (47.9..=72.1).contains(&second), "{first} {second}");
        }
        assert_eq!(schedule.next(3, NOW, Some(Duration::from_secs(1)), 7), None);
        assert_eq!(schedule.next(0, NOW, None, 7), None);
    }

    #[test]
    fn whoever_asks_to_wait_is_waited_for_a_day_at_the_most() {
        let schedule = Schedule::new(vec![Duration::from_secs(5)]);
        let waits = |asked| schedule.next(1, NOW, Some(asked), 0).unwrap().duration_since(NOW);
        assert_eq!(waits(Duration::from_mins(2)), Duration::from_mins(2));
        assert_eq!(waits(Duration::from_secs(1)), Duration::from_secs(4));
        assert_eq!(waits(Duration::MAX), LONGEST_WAIT);
    }

    #[test]
    fn a_target_that_fails_is_asked_ever_more_rarely_up_to_a_minute() {
        let rests: Vec<_> = (0..40).map(|failures| rest(failures, None, u32::MAX / 2).as_secs_f64().round()).collect();
        assert_eq!(rests[..10], [0.0, 0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]);
        assert!(rests[10..].iter().all(|rest| (*rest - 60.0).abs() < 0.5));
        assert_eq!(rest(1, Some(Duration::from_secs(9)), 0), Duration::from_secs(9));
        assert_eq!(rest(1, Some(Duration::MAX), 0), LONGEST_WISH);
    }
}
