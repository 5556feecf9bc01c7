//! The time of the control plane, by which the sidecar decides.
//!
//! The control plane writes the times into tokens and role assignments, so a sidecar whose wall clock is wrong must not compare
//! them with its own time. A pong contains the time of the control plane. Between pongs, the sidecar adds the time that has passed
//! on its boot clock, which adjustments of the wall clock do not change.

use countersign_identity::Timestamp;
use std::time::Duration;

/// The time of the control plane, at a time since boot of the sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerClock {
    time: Timestamp,
    since_boot: Duration,
}

impl ServerClock {
    /// The clock of a control plane that read `time` after the sidecar sent a ping at `ping_sent_at`. The clock is fast by at most
    /// the round-trip time, and never slow, so no token is accepted after its expiry.
    pub const fn new(time: Timestamp, ping_sent_at: Duration) -> Self {
        Self { time, since_boot: ping_sent_at }
    }

    /// Whether a pong that arrives now permits this clock. `offered` is the clock that the pong would set: the control plane read
    /// its time before now, and after the ping was sent.
    pub fn is_between(self, offered: Self, since_boot: Duration) -> bool {
        (offered.time..=offered.now(since_boot)).contains(&self.now(since_boot))
    }

    /// The time of the control plane now.
    pub fn now(self, since_boot: Duration) -> Timestamp {
        self.time.saturating_add(since_boot.saturating_sub(self.since_boot))
    }
}
