//! What runs at the start or periodically, and not because of a request.

mod audit_start;
mod counts;
pub(super) mod expiry;
mod housekeeping;
mod key_rotation;
mod restored;
mod trust_feed;

pub use audit_start::begin_audit;
pub use counts::count_active;
pub use expiry::tell_ended_roles;
pub use housekeeping::{DatabaseHealth, forget_events, housekeep, probe_database, probe_queue};
pub use key_rotation::tend_signing_keys;
pub use restored::{Settled, settle_restored};
pub use trust_feed::announce_trust;
