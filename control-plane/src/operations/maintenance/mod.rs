//! Jobs that run at startup or periodically, and health probes.

mod audit_log;
mod enforcement;
mod expired_rows;
mod housekeeping;
mod master_key_rotation;
mod probes;
mod purge;
mod restore;

pub use audit_log::{ArchivedChain, AuditArchive, delete_archived_entries, ensure_audit_started, record_audit_archive};
pub use enforcement::{EnforcementStatus, confirm_changes};
pub use housekeeping::{purge_deleted, run_housekeeping};
pub use master_key_rotation::{MasterKeyRotation, rotate_master_key};
pub use probes::{
    DatabaseHealth, check_database_write, correct_totals, count_services_and_active_agents, lacks_current_master_key,
    probe_database, probe_dispatcher, probe_housekeeping,
};
pub use purge::emit_role_revoked_events;
pub use restore::{RestoreReport, invalidate_credentials_after_restore};
