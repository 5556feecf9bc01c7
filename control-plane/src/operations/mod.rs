//! The operations of the control plane, grouped by subject.
//!
//! `http` parses requests into the inputs of operations and presents their results. Operations depend on `store`, `keyring`,
//! `address_guard` and `domain`. Each takes a [`Context`] and typed input, decides, and returns its result or a [`OperationError`].

mod agents;
mod audit;
mod auth;
mod authorize;
mod context;
mod error;
mod idempotency;
mod maintenance;
mod roles;
mod services;
mod signing_keys;
mod trust;
mod webhooks;

pub use agents::{
    AgentFilter, AgentWithRoles, RegistrationRequest, list_agents, read_agent, register_agent, set_agent_status,
};
pub use audit::{AuditFilter, list_audit_entries};
pub use auth::{
    Login, SuppressedBursts, TokenPair, authenticate, find_refresh_token_agent, flush_suppressed_bursts,
    issue_challenge, refresh, revoke_token, verify,
};
pub use authorize::{find_service_key, require_manager, require_owner};
pub use context::{Context, ContextParts, OperationConfig};
pub use error::{NotFound, OperationError};
pub use idempotency::IdempotentReply;
pub use maintenance::{
    DatabaseHealth, RestoreReport, count_active_records, delete_expired_events, emit_ended_roles, ensure_audit_started,
    invalidate_credentials_after_restore, probe_database, probe_queue, publish_trust_changes,
    rotate_signing_keys_if_due, run_housekeeping,
};
pub use roles::{
    AssignmentRequest, RoleChange, RoleRequest, assign_role, change_role, create_role, delete_role, list_roles,
    revoke_role,
};
pub use services::{
    NewKey, NewService, ServiceChange, change_service, create_service, create_service_key, list_service_keys,
    list_services, revoke_service_key,
};
pub use signing_keys::{list_signing_keys, published_keys, revoke_signing_key, rotate_signing_key};
pub use trust::{FeedbackRequest, submit_feedback, trust_history};
pub use webhooks::{
    NewWebhook, Replay, WebhookChange, change_webhook, create_webhook, delete_webhook, list_deliveries, list_webhooks,
    read_delivery, read_webhook, replay_deliveries, rotate_webhook_secret, test_webhook,
};
