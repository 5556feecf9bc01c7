//! What the control planes know of sidecars, and the receipt of a revision: at which sidecars it is in force.
//!
//! Invariant: if a receipt says that a revision is in force, it is. A control plane that confirms a view first reads the newest
//! revision after the ping, and sends all changes up to it. So if a sidecar lacks a revision, its last confirmation is older than the
//! commit of this revision. The sidecar refuses all requests by itself when this confirmation is older than its maximum staleness.

use countersign_identity::{ApiKeyId, Revision, ServiceId, Timestamp};
use std::{
    fmt::{self, Display},
    str::FromStr,
    time::Duration,
};

/// How far apart the clocks of two control planes may be, and also the revision of a change and the time of its commit.
pub const CLOCK_MARGIN: Duration = Duration::from_mins(5);

/// How many silent sidecars a receipt names.
pub const MAX_NAMED_SIDECARS: usize = 100;

/// Identifies a process of a sidecar and one of the API keys in its settings, by 16 random bytes that the process draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SidecarInstance([u8; 16]);

impl SidecarInstance {
    /// Stands for the sidecars that a restored database does not know, because they connected after the backup. No process has it.
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

/// What a sidecar says of itself when it connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SidecarIdentity {
    /// The process.
    pub instance: SidecarInstance,
    /// The API key of its stream.
    pub api_key: ApiKeyId,
    /// The service.
    pub service: ServiceId,
    /// The address of its connection.
    pub address: String,
    /// Its release.
    pub release: String,
}

/// Up to which revision a sidecar has the data, and how far it must have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SidecarProgress {
    /// The sidecar has reported that it decides with all changes up to this revision.
    pub applied: Revision,
    /// The newest change that concerns the service. [`Self::NOT_KNOWN`] while the stream is behind.
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

    /// Whether both say the same. If the sidecar has applied all changes that concern it, it does not matter how far `applied` is above.
    pub fn is_equivalent(self, other: Self) -> bool {
        self == other || (self.has_all() && other.has_all() && self.required == other.required)
    }

    /// The revision in force at the sidecar. `distributed`: `required` accounts for all changes up to this revision. If the sidecar has
    /// applied all changes that concern it, it decides as if it had all changes up to `distributed`.
    pub fn in_force(self, distributed: Revision) -> Revision {
        if self.has_all() { self.applied.max(distributed) } else { self.applied }
    }
}

/// A sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sidecar {
    /// What it says of itself.
    pub identity: SidecarIdentity,
    /// When it connected.
    pub connected_at: Timestamp,
    /// Whether its stream is open, as far as we know.
    pub is_connected: bool,
    /// The revision in force.
    pub in_force: Revision,
    /// When it reported the data with which it decides.
    pub applied_at: Option<Timestamp>,
    /// The last confirmation that we know. There may be later ones.
    pub last_known_confirmation: Option<Timestamp>,
    /// If nobody confirms it again, it refuses all requests by itself from this time on, or earlier. `None`: it was never confirmed.
    pub refuses_by: Option<Timestamp>,
    /// When its last confirmation is this old, it refuses all requests.
    pub max_staleness: Duration,
}

/// The receipt of a revision: at which sidecars it is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enforcement {
    /// The revision.
    pub revision: Revision,
    /// The number of sidecars that may decide.
    pub sidecars: usize,
    /// How many of these decide with the revision.
    pub enforced: usize,
    /// The number of sidecars that have not reported the revision, but refuse all requests by themselves.
    pub expired: usize,
    /// Sidecars that may decide and have not reported the revision, at most [`MAX_NAMED_SIDECARS`].
    pub unconfirmed: Vec<Sidecar>,
    /// From this time on, all sidecars without the revision refuse all requests by themselves. `None` if there are none.
    pub refuses_by: Option<Timestamp>,
    /// When the last sidecar reported its data, or began to refuse all requests by itself.
    enforced_at: Option<Timestamp>,
    /// The longest maximum staleness of the sidecars.
    max_staleness: Duration,
    /// The time of the receipt.
    now: Timestamp,
}

impl Enforcement {
    /// The receipt of a revision without sidecars.
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

    /// Adds a sidecar.
    pub fn add(&mut self, mut sidecar: Sidecar) {
        let Some(decides_until) = sidecar.refuses_by else { return };
        self.max_staleness = self.max_staleness.max(sidecar.max_staleness);
        if sidecar.in_force >= self.revision {
            // We count it until its confirmation expires, even if its stream has ended: it may decide with its copy after a restart.
            if self.now < decides_until {
                self.sidecars += 1;
                self.enforced += 1;
                self.enforced_at = self.enforced_at.max(sidecar.applied_at);
            }
            return;
        }
        // The sidecar lacks the change, so its last confirmation is older than the commit. See the invariant above.
        let last_confirmation_without = self.changed_at().saturating_add(CLOCK_MARGIN);
        let refuses_by = decides_until.min(last_confirmation_without.saturating_add(sidecar.max_staleness));
        if refuses_by <= self.now {
            // If it has refused all requests since before the change, the change does not concern it.
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

    /// The time of the change: a revision is the time of its transaction in microseconds, or a later time.
    const fn changed_at(&self) -> Timestamp {
        Timestamp::from_micros(self.revision.number())
    }

    /// If a sidecar has refused all requests since before this time, the change does not concern it. A revision can be ahead of all
    /// clocks, so we take the current time if this is earlier.
    pub fn concerned_since(&self) -> Timestamp {
        self.changed_at().min(self.now).saturating_sub(CLOCK_MARGIN)
    }

    /// Whether the revision is in force at all sidecars.
    pub const fn is_complete(&self) -> bool {
        self.enforced == self.sidecars
    }

    /// The time from the revision until it was in force at the last sidecar. It is too long if this sidecar has reported a later revision
    /// since. `None` if the revision is not in force at all sidecars, or if there are none. Also `None` if we do not know it any more:
    /// after the maximum staleness and [`CLOCK_MARGIN`], every revision is in force, even without a report.
    pub fn elapsed(&self) -> Option<Duration> {
        self.elapsed_since(self.changed_at())
    }

    /// The time from a change with this or a lower revision until it was in force at the last sidecar.
    pub fn elapsed_since(&self, changed_at: Timestamp) -> Option<Duration> {
        let enforced_at = self.enforced_at.filter(|_| self.is_complete() && self.sidecars + self.expired > 0)?;
        Some(enforced_at.duration_since(changed_at)).filter(|elapsed| *elapsed <= self.max_staleness + CLOCK_MARGIN)
    }
}

#[cfg(test)]
mod tests;
