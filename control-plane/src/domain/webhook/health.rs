//! Health of webhook delivery, as `/health` reports it.

use std::{sync::Arc, time::Duration};

/// The dispatcher polls the queue more often than this while it works.
const MAX_POLL_AGE: Duration = Duration::from_secs(15);

/// A delivery that can be made waits less than this while the dispatcher keeps up.
const MAX_DELIVERY_AGE: Duration = Duration::from_mins(5);

/// Whether webhook delivery keeps up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueHealth {
    /// Deliveries are made in time.
    Up,
    /// Deliveries to targets that accept them wait for more than five minutes.
    Behind,
    /// The dispatcher does not run.
    Down,
}

/// Reads the current health. Injected where callers must not depend on the dispatcher.
pub type QueueHealthProbe = Arc<dyn Fn() -> QueueHealth + Send + Sync>;

impl QueueHealth {
    /// The health for the time since the dispatcher last polled, and the age of the oldest delivery that can be made.
    pub fn from_ages(last_poll: Duration, oldest_delivery: Option<Duration>) -> Self {
        if last_poll > MAX_POLL_AGE {
            Self::Down
        } else if oldest_delivery.is_some_and(|age| age > MAX_DELIVERY_AGE) {
            Self::Behind
        } else {
            Self::Up
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_depends_on_last_poll_and_on_oldest_delivery() {
        let just_over = |limit: Duration| limit + Duration::from_millis(1);
        for (last_poll, oldest, expected) in [
            (Duration::ZERO, None, QueueHealth::Up),
            (MAX_POLL_AGE, Some(MAX_DELIVERY_AGE), QueueHealth::Up),
            (MAX_POLL_AGE, Some(just_over(MAX_DELIVERY_AGE)), QueueHealth::Behind),
            (just_over(MAX_POLL_AGE), None, QueueHealth::Down),
        ] {
            assert_eq!(QueueHealth::from_ages(last_poll, oldest), expected, "{last_poll:?} {oldest:?}");
        }
    }
}
