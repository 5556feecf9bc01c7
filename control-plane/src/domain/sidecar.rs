//! What the control planes know of sidecars, and the receipt of a revision: at which sidecars it is in force.
//!
//! To *confirm* a sidecar means to answer its ping. A sidecar *may decide* until its last confirmation is older than its maximum
//! staleness. From then on, it refuses all requests by itself.
//!
//! Invariant: if a receipt says that a revision is in force, it is. After a ping, a control plane reads the newest revision, and
//! sends all changes up to it before it confirms. So if a sidecar lacks a change, its last confirmation is older than the commit.

use countersign_identity::{ApiKeyId, Revision, ServiceId, Timestamp};
use std::{
    fmt::{self, Display},
    str::FromStr,
    time::Duration,
};

/// How far the clocks of two control planes may differ. The time in a revision may differ as much from the time of its commit.
pub const CLOCK_MARGIN: Duration = Duration::from_mins(5);

/// Maximum number of sidecars that a receipt names because they have not reported the revision.
pub const MAX_NAMED_SIDECARS: usize = 100;

/// Identifies a process of a sidecar and one of the API keys in its settings. The process chooses 16 random bytes for each key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SidecarInstance([u8; 16]);

impl SidecarInstance {
    /// Stands for sidecars that a restored database does not know, because they connected after the backup. No process has this
    /// value.
    pub const UNKNOWN: Self = Self([0; 16]);

    /// The instance with these bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl Display for SidecarInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl FromStr for SidecarInstance {
    type Err = hex::FromHexError;

    fn from_str(text: &str) -> Result<Self, hex::FromHexError> {
        let mut bytes = [0; 16];
        hex::decode_to_slice(text, &mut bytes)?;
        Ok(Self(bytes))
    }
}

/// Who a sidecar is, as known from its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SidecarIdentity {
    /// The process, and which of the API keys in its settings.
    pub instance: SidecarInstance,
    /// The API key of its stream.
    pub api_key: ApiKeyId,
    pub service: ServiceId,
    /// The address of its connection.
    pub address: String,
    pub release: String,
}

/// Up to which revision a sidecar has applied changes, and up to which revision there are changes that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SidecarProgress {
    /// The sidecar has reported that it decides with all changes up to this revision.
    pub applied: Revision,
    /// The revision of the newest change for the service. [`Self::NOT_KNOWN`] until the stream has caught up with the change feed.
    pub required: Revision,
    /// When the sidecar reported `applied`.
    pub applied_at: Option<Timestamp>,
}

impl SidecarProgress {
    /// The value of `required` while we do not know which changes the sidecar lacks.
    pub const NOT_KNOWN: Revision = Revision::new(i64::MAX);

    /// Whether the sidecar has applied all changes that concern it.
    fn has_all(self) -> bool {
        self.applied >= self.required
    }

    /// Whether `other` says the same, so no row need be written. If a sidecar has all changes, a higher `applied` says no more.
    pub fn is_equivalent(self, other: Self) -> bool {
        self == other || (self.has_all() && other.has_all() && self.required == other.required)
    }

    /// The revision in force at the sidecar. All changes up to `distributed` were considered in `required`. So a sidecar that has
    /// applied `required` decides as if it had applied `distributed`: the changes between the two are for other services.
    pub fn in_force(self, distributed: Revision) -> Revision {
        if self.has_all() { self.applied.max(distributed) } else { self.applied }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sidecar {
    /// Who the sidecar is.
    pub identity: SidecarIdentity,
    /// When it connected.
    pub connected_at: Timestamp,
    /// Whether its stream is open, as far as we know.
    pub is_connected: bool,
    /// The revision in force.
    pub in_force: Revision,
    /// When it reported the revision that it has applied.
    pub applied_at: Option<Timestamp>,
    /// The last confirmation that we know. There may be later ones.
    pub last_known_confirmation: Option<Timestamp>,
    /// Unless confirmed again, the sidecar refuses all requests from this time on, or earlier. `None`: it was never confirmed.
    pub refuses_by: Option<Timestamp>,
    /// The sidecar refuses all requests when its last confirmation is this old.
    pub max_staleness: Duration,
}

/// The receipt of a revision: at which sidecars it is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enforcement {
    pub revision: Revision,
    /// The number of sidecars that may decide.
    pub sidecars: usize,
    /// How many of these sidecars decide with the revision.
    pub enforced: usize,
    /// The number of sidecars that began to refuse all requests by themselves before they reported the revision.
    pub expired: usize,
    /// Sidecars that may decide and have not reported the revision, at most [`MAX_NAMED_SIDECARS`].
    pub unconfirmed: Vec<Sidecar>,
    /// From this time on, all sidecars without the revision refuse all requests by themselves. `None` if all have the revision.
    pub refuses_by: Option<Timestamp>,
    /// When the last sidecar reported its revision, or began to refuse all requests by itself.
    enforced_at: Option<Timestamp>,
    /// The longest maximum staleness of the sidecars.
    max_staleness: Duration,
    /// The time of the receipt.
    now: Timestamp,
}

impl Enforcement {
    /// The receipt of a revision, before any sidecar is added.
    pub const fn new(revision: Revision, now: Timestamp) -> Self {
        Self {
            revision,
            sidecars: 0,
            enforced: 0,
            expired: 0,
            unconfirmed: Vec::new(),
            refuses_by: None,
            enforced_at: None,
            max_staleness: Duration::ZERO,
            now,
        }
    }

    /// Adds a sidecar, unless it was never confirmed: such a sidecar refuses all requests.
    pub fn add(&mut self, mut sidecar: Sidecar) {
        let Some(decides_until) = sidecar.refuses_by else { return };
        self.max_staleness = self.max_staleness.max(sidecar.max_staleness);
        if sidecar.in_force >= self.revision {
            // It counts until its confirmation expires, even without a stream: it may restart and decide with its copy on disk.
            if self.now < decides_until {
                self.sidecars += 1;
                self.enforced += 1;
                self.enforced_at = self.enforced_at.max(sidecar.applied_at);
            }
            return;
        }
        // The sidecar lacks the change, so its last confirmation is older than the commit (see the invariant of this module).
        let latest_confirmation = self.changed_at().saturating_add(CLOCK_MARGIN);
        let refuses_by = decides_until.min(latest_confirmation.saturating_add(sidecar.max_staleness));
        if refuses_by <= self.now {
            // A sidecar that already refused all requests before the change does not count: it could not decide without the change.
            if refuses_by > self.changed_at() {
                self.expired += 1;
                self.enforced_at = self.enforced_at.max(Some(refuses_by));
            }
            return;
        }
        self.sidecars += 1;
        self.refuses_by = self.refuses_by.max(Some(refuses_by));
        if self.unconfirmed.len() < MAX_NAMED_SIDECARS {
            sidecar.refuses_by = Some(refuses_by);
            self.unconfirmed.push(sidecar);
        }
    }

    /// The time of the change: the number of a revision is the time of its transaction in microseconds, or a later time.
    const fn changed_at(&self) -> Timestamp {
        Timestamp::from_micros(self.revision.number())
    }

    /// Sidecars that began to refuse all requests before this time cannot change the receipt, so callers need not add them. A
    /// revision can be ahead of all clocks, so we take the current time if that is earlier.
    pub fn concerned_since(&self) -> Timestamp {
        self.changed_at().min(self.now).saturating_sub(CLOCK_MARGIN)
    }

    /// Whether the revision is in force at all sidecars.
    pub const fn is_complete(&self) -> bool {
        self.enforced == self.sidecars
    }

    /// The time from the change until it was in force at the last sidecar. It is too long if that sidecar has reported a later
    /// revision since: we only know when it reported the last one. `None` without sidecars, or if one lacks the revision. Also
    /// `None` beyond the maximum staleness and [`CLOCK_MARGIN`]: by then, the revision is in force without a report.
    pub fn elapsed(&self) -> Option<Duration> {
        self.elapsed_since(self.changed_at())
    }

    /// Like [`Self::elapsed`], for a change at `changed_at`, whose revision is this one or a lower one.
    pub fn elapsed_since(&self, changed_at: Timestamp) -> Option<Duration> {
        let enforced_at = self.enforced_at.filter(|_| self.is_complete() && self.sidecars + self.expired > 0)?;
        Some(enforced_at.duration_since(changed_at)).filter(|elapsed| *elapsed <= self.max_staleness + CLOCK_MARGIN)
    }
}

#[cfg(test)]
mod tests;
