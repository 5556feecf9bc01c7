//! Jobs that run at startup or periodically, and health probes.

mod audit_archive;
mod audit_start;
mod counts;
mod enforcement;
mod expired_agents;
mod expired_rows;
mod expiry;
mod housekeeping;
mod key_rotation;
mod master_key_rotation;
mod probes;
mod purge;
mod restore;
mod trust_feed;

pub use audit_archive::{ArchiveConflict, ArchivedChain, AuditArchive, delete_archived_entries, record_audit_archive};
pub use audit_start::ensure_audit_started;
pub use counts::{correct_totals, count_services_and_active_agents};
pub use enforcement::{EnforcementStatus, confirm_changes};
pub use expiry::emit_role_revoked_events;
pub use housekeeping::{purge_deleted, run_housekeeping};
pub use key_rotation::rotate_signing_keys_if_due;
pub use master_key_rotation::{MasterKeyRotation, rotate_master_key};
pub use probes::{
    DatabaseHealth, check_database_write, lacks_current_master_key, probe_database, probe_housekeeping, probe_queue,
};
pub use restore::{RestoreReport, invalidate_credentials_after_restore};
pub use trust_feed::publish_trust_changes;
