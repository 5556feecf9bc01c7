//! Sidecars, as far as the control planes know them, and the receipt of a revision: at which sidecars it is in force.
//!
//! Invariant: a receipt never claims more than the sidecars do. A confirmation follows all changes up to a revision that is read after
//! the ping. So the last confirmation of a sidecar without a revision is older than the commit of this revision, and the sidecar
//! refuses all requests by itself when its view is as old as its maximum staleness.

use countersign_identity::{ApiKeyId, Revision, ServiceId, Timestamp};
use std::{
    fmt::{self, Display},
    str::FromStr,
    time::Duration,
};

/// The longest time from the revision of a transaction until its commit, and until the control planes know it.
pub const MAX_COMMIT_TIME: Duration = Duration::from_secs(5);

/// How many silent sidecars a receipt names.
pub const MAX_NAMED_SIDECARS: usize = 100;

/// Identifies a process of a sidecar: 16 random bytes, which the process draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SidecarInstance([u8; 16]);

impl SidecarInstance {
    /// Stands for sidecars that are not recorded one by one: a service had too many, or they connected after the backup of a restored
    /// database. No process has this instance.
    pub const MERGED: Self = Self([0; 16]);

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

/// The text is not 32 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidInstance;

impl FromStr for SidecarInstance {
    type Err = InvalidInstance;

    fn from_str(text: &str) -> Result<Self, InvalidInstance> {
        let mut bytes = [0; 16];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| InvalidInstance)?;
        Ok(Self(bytes))
    }
}

/// Names a sidecar among those of a service: one process has a stream for each API key in its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SidecarKey {
    /// The process.
    pub instance: SidecarInstance,
    /// The place of the API key in the settings. A key that replaces another one has its place.
    pub index: u32,
}

impl Display for SidecarKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.instance, self.index)
    }
}

impl FromStr for SidecarKey {
    type Err = InvalidInstance;

    fn from_str(text: &str) -> Result<Self, InvalidInstance> {
        let (instance, index) = text.split_once('.').ok_or(InvalidInstance)?;
        Ok(Self { instance: instance.parse()?, index: index.parse().map_err(|_| InvalidInstance)? })
    }
}

/// What a sidecar says of itself when it connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SidecarIdentity {
    /// The process, and which of its streams it is.
    pub key: SidecarKey,
    /// The API key.
    pub api_key: ApiKeyId,
    /// The service.
    pub service: ServiceId,
    /// The address of its connection.
    pub address: String,
    /// Its release.
    pub release: String,
}

/// How far the data reaches with which a sidecar decides.
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
    /// The value of `required` while it is not known which changes the sidecar misses.
    pub const NOT_KNOWN: Revision = Revision::new(i64::MAX);

    /// Whether the sidecar has applied all changes that concern it.
    fn has_all(self) -> bool {
        self.applied >= self.required
    }

    /// Whether another progress says the same: beyond the newest change that concerns the sidecar, `applied` does not matter.
    pub fn is_equivalent(self, other: Self) -> bool {
        self == other || (self.has_all() && other.has_all() && self.required == other.required)
    }

    /// The revision in force at the sidecar. `distributed`: `required` contains all changes up to this revision. A sidecar that has
    /// applied all changes that concern it decides as one that has all changes.
    pub fn in_force(self, distributed: Revision) -> Revision {
        if self.has_all() { self.applied.max(distributed) } else { self.applied }
    }
}

/// When a sidecar was last confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastConfirmation {
    /// It was never confirmed, so it refuses all requests.
    Never,
    /// At this time or earlier, because it has no stream any more.
    By(Timestamp),
    /// Its stream may be open, so it may be confirmed again and again.
    Continuing,
}

/// A sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sidecar {
    /// What it says of itself.
    pub identity: SidecarIdentity,
    /// When it connected.
    pub connected_at: Timestamp,
    /// Whether its stream is open, as far as is known.
    pub is_connected: bool,
    /// The revision in force.
    pub in_force: Revision,
    /// When it reported the data with which it decides, or connected with it.
    pub applied_at: Option<Timestamp>,
    /// Its last confirmation.
    pub confirmed: LastConfirmation,
    /// The last confirmation that is known. There can be later ones.
    pub last_known_confirmation: Option<Timestamp>,
    /// The age of the confirmation at which it refuses all requests.
    pub max_staleness: Duration,
}

/// The times that matter for a receipt, by a clock that is never ahead of the wall clock. Revisions and reports have times of the wall
/// clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiptTimes {
    /// The current time.
    pub now: Timestamp,
    /// No sidecar was confirmed later than this without the revision.
    pub last_confirmation_without: Timestamp,
    /// How far the clocks of other control planes may be behind, which end streams.
    pub skew: Duration,
    /// How far the clock is behind the wall clock.
    pub lag: Duration,
}

impl Sidecar {
    /// The latest time at which the sidecar refuses all requests by itself if no confirmation follows `confirmed_until`; `None` if it
    /// was never confirmed. `skew`: how far the clock was behind by which its stream ended.
    fn refuses_by(&self, confirmed_until: Timestamp, skew: Duration) -> Option<Timestamp> {
        let confirmed_by = match self.confirmed {
            LastConfirmation::Never => return None,
            LastConfirmation::By(at) => at.saturating_add(skew).min(confirmed_until),
            LastConfirmation::Continuing => confirmed_until,
        };
        Some(confirmed_by.saturating_add(self.max_staleness))
    }

    /// When the sidecar refuses all requests by itself if it is never confirmed again; `None` if it refuses them already. `skew`: how
    /// far the clock was behind by which its stream ended.
    pub fn decides_until(&self, now: Timestamp, skew: Duration) -> Option<Timestamp> {
        self.refuses_by(now, skew).filter(|refuses_by| now < *refuses_by)
    }
}

/// A sidecar in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedSidecar {
    /// The sidecar.
    pub sidecar: Sidecar,
    /// When it refuses all requests by itself at the latest; `None` if it is connected, or refuses them already.
    pub refuses_by: Option<Timestamp>,
}

/// A sidecar that has not reported a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnconfirmedSidecar {
    /// The sidecar.
    pub sidecar: Sidecar,
    /// The latest time at which it refuses all requests by itself.
    pub refuses_by: Timestamp,
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
    /// The number of sidecars that have not reported the revision, and refuse all requests by themselves.
    pub expired: usize,
    /// When the last sidecar reported its data, or began to refuse all requests by itself.
    enforced_at: Option<Timestamp>,
    /// The longest maximum staleness of the sidecars.
    max_staleness: Duration,
    /// Those that have not reported the revision, at most [`MAX_NAMED_SIDECARS`].
    pub unconfirmed: Vec<UnconfirmedSidecar>,
    /// The latest time at which all others refuse all requests by themselves.
    pub refuses_by: Option<Timestamp>,
    times: ReceiptTimes,
}

impl Enforcement {
    /// The receipt of a revision without sidecars.
    pub const fn new(revision: Revision, times: ReceiptTimes) -> Self {
        Self {
            revision,
            sidecars: 0,
            enforced: 0,
            expired: 0,
            enforced_at: None,
            max_staleness: Duration::ZERO,
            unconfirmed: Vec::new(),
            refuses_by: None,
            times,
        }
    }

    /// Adds a sidecar.
    pub fn add(&mut self, sidecar: Sidecar) {
        let ReceiptTimes { now, last_confirmation_without, skew, lag } = self.times;
        self.max_staleness = self.max_staleness.max(sidecar.max_staleness);
        if sidecar.in_force >= self.revision {
            // A sidecar that has the revision may decide again with the same data, after a restart from its copy.
            if sidecar.decides_until(now, Duration::ZERO).is_some() {
                self.sidecars += 1;
                self.enforced += 1;
                self.enforced_at = self.enforced_at.max(sidecar.applied_at);
            }
            return;
        }
        let changed_at = Timestamp::from_micros(self.revision.number());
        let Some(refuses_by) = sidecar.refuses_by(last_confirmation_without, skew) else { return };
        if refuses_by <= now {
            // A sidecar that has refused all requests since before the change is not concerned.
            let refused_since = refuses_by.saturating_add(lag);
            if refused_since > changed_at {
                self.expired += 1;
                self.enforced_at = self.enforced_at.max(Some(refused_since));
            }
            return;
        }
        self.sidecars += 1;
        self.refuses_by = self.refuses_by.max(Some(refuses_by));
        if self.unconfirmed.len() < MAX_NAMED_SIDECARS {
            self.unconfirmed.push(UnconfirmedSidecar { sidecar, refuses_by });
        }
    }

    /// The receipt with all times by the wall clock.
    #[must_use]
    pub fn by_wall_clock(mut self) -> Self {
        let times = self.unconfirmed.iter_mut().map(|unconfirmed| &mut unconfirmed.refuses_by);
        for time in times.chain(&mut self.refuses_by) {
            *time = time.saturating_add(self.times.lag);
        }
        self
    }

    /// Whether the revision is in force at all sidecars.
    pub const fn is_complete(&self) -> bool {
        self.enforced == self.sidecars
    }

    /// The time from the revision until it was in force at the last sidecar, or a longer one if a sidecar has reported later revisions
    /// since. `None` if it is not in force at all sidecars, if there are none, or if it is not known any more: without a report, it is in
    /// force when the revision is as old as the maximum staleness.
    pub fn elapsed(&self) -> Option<Duration> {
        self.elapsed_since(Timestamp::from_micros(self.revision.number()))
    }

    /// The time from a change with this or a lower revision until it was in force at the last sidecar.
    pub fn elapsed_since(&self, changed_at: Timestamp) -> Option<Duration> {
        let enforced_at = self.enforced_at.filter(|_| self.is_complete() && self.sidecars + self.expired > 0)?;
        Some(enforced_at.duration_since(changed_at)).filter(|elapsed| *elapsed <= self.max_staleness + MAX_COMMIT_TIME)
    }
}

#[cfg(test)]
mod tests;
