//! What a process remembers between requests. All of it can be lost.

mod confirmation_turn;
mod housekeeping_status;
mod recent_changes;
mod service_keys;
mod shared_read;
mod suppressed_bursts;
mod verifications;

pub(in crate::operations) use confirmation_turn::{ConfirmationTurn, Turn};
pub use housekeeping_status::HousekeepingSample;
pub(in crate::operations) use housekeeping_status::HousekeepingStatus;
pub use recent_changes::CurrentState;
pub(in crate::operations) use recent_changes::{ReadAt, RecentChanges};
pub(in crate::operations) use service_keys::{CachedKey, ServiceKeys};
pub(in crate::operations) use shared_read::{SHARED_READ_TIMEOUT, SharedRead};
pub(in crate::operations) use suppressed_bursts::{BurstKey, SuppressedBursts};
pub use verifications::Verification;
pub(in crate::operations) use verifications::{Basis, Verifications};
