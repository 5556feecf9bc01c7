//! Bursts of failed logins. The first failures of a burst become one event each. One summary event counts the others.

use countersign_identity::Timestamp;
use std::time::Duration;

/// How long a burst lasts from its first failure.
pub const BURST_WINDOW: Duration = Duration::from_mins(1);

/// How many failures of a burst become an event of their own.
const MAX_EMITTED: u32 = 10;

/// The failed logins of one agent at one service within [`BURST_WINDOW`], even if none of them is suppressed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuppressedBurst {
    /// Time of the first failure.
    pub began_at: Timestamp,
    /// Number of failures that became an event of their own.
    pub emitted: u32,
    /// Number of failures that are counted without an event.
    pub suppressed: u64,
}

impl SuppressedBurst {
    /// Creates a burst that begins now and has no failures yet.
    pub const fn new(now: Timestamp) -> Self {
        Self { began_at: now, emitted: 0, suppressed: 0 }
    }

    /// The end of the burst. Failures after the end of a burst belong to the next burst.
    pub fn ends_at(&self) -> Timestamp {
        self.began_at.saturating_add(BURST_WINDOW)
    }

    /// Whether the burst has ended.
    pub fn has_ended(&self, now: Timestamp) -> bool {
        self.ends_at() <= now
    }

    /// Counts one failure. Returns whether the failure becomes an event of its own.
    pub const fn record_failure(&mut self) -> bool {
        let emit = self.emitted < MAX_EMITTED;
        if emit {
            self.emitted += 1;
        } else {
            self.suppressed += 1;
        }
        emit
    }

    /// Whether further failures are counted without an event.
    pub const fn is_suppressing(&self) -> bool {
        self.emitted >= MAX_EMITTED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emits_first_ten_failures_and_counts_the_rest() {
        let mut burst = SuppressedBurst::new(Timestamp::from_seconds(100));
        let emitted = (0..47).filter(|_| burst.record_failure()).count();
        assert_eq!((emitted, burst.emitted, burst.suppressed), (10, 10, 37));
        assert!(burst.is_suppressing());
        assert!(!burst.has_ended(Timestamp::from_seconds(159)) && burst.has_ended(Timestamp::from_seconds(160)));
    }
}
