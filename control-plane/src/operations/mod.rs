//! The operations of the control plane, grouped by subject.
//!
//! `http` parses requests into the inputs of operations and presents their results. Operations depend on `store`, `keyring`,
//! `sidecars`, `address_guard` and `domain`. Each operation has a [`Context`] and typed input as parameters, and returns a result or an
//! [`OperationError`].

mod agents;
mod audit;
mod auth;
mod authorize;
mod batches;
mod context;
mod error;
mod find;
mod idempotency;
mod maintenance;
mod memory;
mod roles;
mod services;
mod sidecars;
mod signing_keys;
mod trust;
mod webhooks;

pub use agents::{
    AgentFilter, AgentWithRoles, ManagedGrant, RegistrationRequest, delete_agent, leave_service, list_agents,
    list_own_agents, list_services_of_agent, read_agent, readmit_service, register_agent, set_agent_status,
};
pub use audit::{AuditFilter, AuditPosition, list_audit_entries};
pub use auth::{
    LoginRequest, RequestedToken, TokenPair, Verified, begin_session, find_refresh_token_agent,
    flush_suppressed_bursts, issue_challenge, parse_assertion, refresh_session, revoke_token, verify_assertion,
    verify_login, verify_refresh, verify_token,
};
pub use authorize::{authenticate_service, require_manager, require_owner, require_service_creator};
pub use context::{Context, ContextParts, OperationConfig};
pub use error::{NotFound, OperationError};
pub use idempotency::IdempotentResponse;
pub use maintenance::{
    ArchivedChain, AuditArchive, DatabaseHealth, EnforcementStatus, MasterKeyRotation, RestoreReport,
    check_database_write, confirm_changes, correct_totals, count_services_and_active_agents, delete_archived_entries,
    emit_role_revoked_events, ensure_audit_started, invalidate_credentials_after_restore, lacks_current_master_key,
    probe_database, probe_housekeeping, probe_queue, purge_deleted, record_audit_archive, rotate_master_key,
    run_housekeeping,
};
pub use memory::{CurrentState, HousekeepingSample};
pub use roles::{
    AssignmentRequest, RoleChange, RoleRequest, assign_role, change_role, create_role, delete_role, list_roles,
    revoke_role,
};
pub use services::{
    NewService, NewServiceKey, ServiceChange, accept_service, change_service, create_service, create_service_key,
    delete_service, find_service_of_resource, list_service_keys, list_service_offers, list_services, offer_service,
    read_resource_uris, read_service_offer, revoke_service_key, withdraw_service_offer,
};
pub use sidecars::{UNKNOWN_REVISION, list_sidecars, read_enforcement};
pub use signing_keys::{
    SigningKeyPosition, list_signing_keys, published_keys, revoke_signing_key, rotate_signing_key,
    rotate_signing_keys_if_due,
};
pub use trust::{FeedbackPosition, FeedbackRequest, list_trust_history, publish_trust_changes, submit_feedback};
pub use webhooks::{
    NewWebhook, ReplaySelection, WebhookChange, change_webhook, create_webhook, delete_webhook, list_deliveries,
    list_webhooks, read_delivery, read_webhook, replay_deliveries, rotate_webhook_secret, send_test_event,
};
