//! Instants and revisions: two kinds of number that must never be mixed up.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// An instant of the wall clock, in microseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// From microseconds since the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// From whole seconds since the Unix epoch, as in a JWT; saturates at the ends of time.
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

    /// This instant without its fraction of a second.
    pub const fn truncated_to_second(self) -> Self {
        Self::from_seconds(self.seconds())
    }

    /// The instant `span` later.
    pub fn saturating_add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros_of(span)))
    }

    /// The instant `span` earlier.
    pub fn saturating_sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(micros_of(span)))
    }

    /// How long ago `earlier` was; zero if it lies ahead.
    pub fn duration_since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

fn micros_of(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// The number of a committed change. Later commits have larger numbers, and no clock decides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(i64);

impl Revision {
    /// Wraps a number that a database or a peer gave.
    pub const fn new(number: i64) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn number(self) -> i64 {
        self.0
    }
}

impl std::fmt::Display for Revision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
