//! Jobs that run at startup or periodically, and health probes.

mod audit_start;
mod counts;
pub(super) mod expiry;
mod housekeeping;
mod key_rotation;
mod master_key_rotation;
mod purge;
mod restore;
mod trust_feed;

pub use audit_start::ensure_audit_started;
pub use counts::{count_services_and_active_agents, recount_totals};
pub use expiry::emit_role_revoked_events;
pub use housekeeping::{DatabaseHealth, delete_expired_events, probe_database, probe_queue, run_housekeeping};
pub use key_rotation::rotate_signing_keys_if_due;
pub use master_key_rotation::{MasterKeyRotation, rotate_master_key};
pub use purge::purge_deleted;
pub use restore::{RestoreReport, invalidate_credentials_after_restore};
pub use trust_feed::publish_trust_changes;
