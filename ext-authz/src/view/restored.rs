//! Views whose data comes from a copy on disk.
//!
//! The confirmation of such a view was received by an earlier process, and possibly before the boot of the system. The time since
//! boot cannot express an instant before the boot, so the time before the boot shortens the maximum staleness of the view.

use super::{ServerClock, View};
use std::time::Duration;

/// The last confirmation of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoredContact {
    /// How long ago the confirmed ping was sent.
    pub age: Duration,
    /// The current time since boot.
    pub since_boot: Duration,
    /// The clock of the control plane, if the copy contains its time.
    pub server_clock: Option<ServerClock>,
}

impl View {
    /// The view of a copy, with the confirmation of the copy.
    #[must_use]
    pub fn restored(&self, contact: RestoredContact) -> Self {
        let RestoredContact { age, since_boot, server_clock } = contact;
        let mut view = self.clone();
        view.confirmed_at = Some(since_boot.saturating_sub(age));
        view.age_before_boot = age.saturating_sub(since_boot);
        view.is_restored = true;
        view.server_clock = server_clock;
        view
    }

    /// Whether the data comes from a copy on disk, and no pong has confirmed it since.
    pub const fn is_restored(&self) -> bool {
        self.is_restored
    }

    /// The time since the confirmation; `None` if the view is not confirmed.
    pub fn age(&self, since_boot: Duration) -> Option<Duration> {
        self.confirmed_at.map(|at| since_boot.saturating_sub(at) + self.age_before_boot)
    }

    /// The view with the maximum staleness in the sidecar's settings.
    #[must_use]
    pub const fn with_staleness_limit(mut self, limit: Option<Duration>) -> Self {
        self.staleness_limit = limit;
        self
    }
}
