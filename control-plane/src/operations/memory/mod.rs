//! What a process remembers between requests. All of it can be lost.

mod cached;
mod jobs;
mod recent_changes;
mod suppressed_bursts;

pub use cached::Verification;
pub(in crate::operations) use cached::{Basis, CachedKey, cache_of_keys, cache_of_verifications};
pub use jobs::HousekeepingSample;
pub(in crate::operations) use jobs::{ConfirmationTurn, HousekeepingStatus};
pub use recent_changes::CurrentState;
pub(in crate::operations) use recent_changes::{ReadAt, RecentChanges};
pub(in crate::operations) use suppressed_bursts::{BurstKey, SuppressedBursts};
