//! Timestamps and revisions: distinct types, so that a timestamp cannot be passed as a revision.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A wall-clock time, in microseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Creates a timestamp from microseconds since the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Creates a timestamp from seconds since the Unix epoch, as in a JWT. A time out of range becomes the nearest possible one.
    pub const fn from_seconds(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1_000_000))
    }

    /// Microseconds since the Unix epoch.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Whole seconds since the Unix epoch, rounded down.
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }

    /// Seconds since the Unix epoch, with decimals, as metrics show them.
    #[expect(clippy::cast_precision_loss, reason = "microseconds are exact until the year 2255")]
    pub const fn as_seconds(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The timestamp, rounded down to a whole second.
    pub const fn truncated_to_second(self) -> Self {
        Self::from_seconds(self.seconds())
    }

    /// The timestamp plus `duration`; saturates.
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(to_micros(duration)))
    }

    /// The timestamp minus `duration`; saturates.
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(to_micros(duration)))
    }

    /// The duration since `earlier`; zero if `earlier` is in the future.
    pub fn duration_since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

fn to_micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// The number of a committed change. Later commits have larger numbers, even if a clock is set back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(i64);

impl Revision {
    /// Wraps a revision number from the database or a peer.
    pub const fn new(number: i64) -> Self {
        Self(number)
    }

    /// The revision number.
    pub const fn number(self) -> i64 {
        self.0
    }
}

impl std::fmt::Display for Revision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
