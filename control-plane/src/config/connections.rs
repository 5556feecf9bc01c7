//! `[connections]`: the limits of network connections.

use serde::Deserialize;
use std::time::Duration;

/// Upper bound of a number of connections.
const MAX_CONNECTIONS: u32 = 1_000_000;

/// Bounds of the idle timeout, in seconds.
const IDLE_SECONDS: std::ops::RangeInclusive<u32> = 10..=3600;

/// `[connections]`
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct ConnectionSettings {
    /// Open connections to the API port, and to the sync port.
    pub max: u32,
    idle_seconds: u32,
}

impl ConnectionSettings {
    /// How long a connection may wait for the next request.
    pub const fn idle_timeout(self) -> Duration {
        Duration::from_secs(self.idle_seconds as u64)
    }

    /// A message for each invalid setting.
    pub(super) fn problems(self) -> impl Iterator<Item = String> {
        let Self { max, idle_seconds } = self;
        let count = (!(1..=MAX_CONNECTIONS).contains(&max))
            .then(|| format!("connections.max: {max} must be from 1 to {MAX_CONNECTIONS}"));
        let idle = (!IDLE_SECONDS.contains(&idle_seconds)).then(|| {
            let (min, max) = (IDLE_SECONDS.start(), IDLE_SECONDS.end());
            format!("connections.idle_seconds: {idle_seconds} must be from {min} to {max}")
        });
        count.into_iter().chain(idle)
    }
}
