//! What runs at the start or periodically, and not because of a request.

mod audit_start;
mod counts;
pub(super) mod expiry;
mod housekeeping;
mod key_rotation;
mod restored;
mod trust_feed;

pub use audit_start::ensure_audit_started;
pub use counts::count_active_records;
pub use expiry::emit_ended_roles;
pub use housekeeping::{DatabaseHealth, delete_expired_events, probe_database, probe_queue, run_housekeeping};
pub use key_rotation::rotate_signing_keys_if_due;
pub use restored::{RestoreReport, invalidate_credentials_after_restore};
pub use trust_feed::publish_trust_changes;
