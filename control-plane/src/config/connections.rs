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
    /// Open connections to the API port.
    pub api: u32,
    /// Open connections to the sync port.
    pub sync: u32,
    /// Open connections of one client to one of these ports.
    pub per_client: u32,
    idle_seconds: u32,
}

impl ConnectionSettings {
    /// How long a connection may wait for the next request.
    pub const fn idle_timeout(self) -> Duration {
        Duration::from_secs(self.idle_seconds as u64)
    }

    /// A message for each invalid setting.
    pub(super) fn problems(self) -> impl Iterator<Item = String> {
        let Self { api, sync, per_client, idle_seconds } = self;
        let counts = [("api", api), ("sync", sync), ("per_client", per_client)];
        let invalid = counts.into_iter().filter(|(_, count)| !(1..=MAX_CONNECTIONS).contains(count));
        let counts =
            invalid.map(|(name, count)| format!("connections.{name}: {count} must be from 1 to {MAX_CONNECTIONS}"));
        let idle = (!IDLE_SECONDS.contains(&idle_seconds)).then(|| {
            let (min, max) = (IDLE_SECONDS.start(), IDLE_SECONDS.end());
            format!("connections.idle_seconds: {idle_seconds} must be from {min} to {max}")
        });
        counts.chain(idle)
    }
}
