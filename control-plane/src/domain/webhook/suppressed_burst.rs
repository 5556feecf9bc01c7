//! Failed logins that come thick and fast: the first are told one by one, the rest together.

use countersign_identity::Timestamp;
use std::time::Duration;

/// How long failures are counted together.
pub const WINDOW: Duration = Duration::from_mins(1);

/// So many of them are told one by one.
const ONE_BY_ONE: u32 = 10;

/// The failed logins of one agent at one service, from the first on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Storm {
    /// When the first was.
    pub began_at: Timestamp,
    /// How many were told.
    pub told: u32,
    /// How many were not.
    pub suppressed: u64,
}

impl Storm {
    /// Before the first failure.
    pub const fn new(now: Timestamp) -> Self {
        Self { began_at: now, told: 0, suppressed: 0 }
    }

    /// From then on failures belong to the next one.
    pub fn ends_at(&self) -> Timestamp {
        self.began_at.after(WINDOW)
    }

    /// Whether it is over.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.ends_at() <= now
    }

    /// Notes one more failure; true if it is to be told.
    pub const fn hear(&mut self) -> bool {
        let tell = self.told < ONE_BY_ONE;
        if tell {
            self.told += 1;
        } else {
            self.suppressed += 1;
        }
        tell
    }

    /// Whether none of those to come will be told.
    pub const fn is_full(&self) -> bool {
        self.told >= ONE_BY_ONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_are_told_and_the_rest_counted() {
        let mut storm = Storm::new(Timestamp::from_seconds(100));
        let told = (0..47).filter(|_| storm.hear()).count();
        assert_eq!((told, storm.told, storm.suppressed), (10, 10, 37));
        assert!(
            storm.is_full()
                && !storm.is_over(Timestamp::from_seconds(159))
                && storm.is_over(Timestamp::from_seconds(160))
        );
    }
}
