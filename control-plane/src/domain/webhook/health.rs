//! Health of webhook delivery, as `/health` reports it.

use std::{sync::Arc, time::Duration};

/// Maximum time between two polls of the queue by a dispatcher that works.
const MAX_POLL_AGE: Duration = Duration::from_secs(15);

/// Maximum time that a deliverable event waits while the dispatcher keeps up.
const MAX_DELIVERY_AGE: Duration = Duration::from_mins(5);

/// Whether webhook delivery keeps up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueHealth {
    /// Events are delivered in time.
    Up,
    /// Deliveries to targets that do not fail wait for more than five minutes.
    Behind,
    /// The webhook dispatcher does not run.
    Down,
}

/// Returns the current health. It is a function, so that its callers do not depend on the webhook dispatcher.
pub type QueueHealthProbe = Arc<dyn Fn() -> QueueHealth + Send + Sync>;

impl QueueHealth {
    /// Derives the health from the time since the last poll by the dispatcher and the age of the oldest deliverable event.
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
    fn health_depends_on_last_poll_and_oldest_delivery() {
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
