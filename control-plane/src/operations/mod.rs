//! What can be asked of the control plane: a file per verb.
//!
//! Neighbours: `http` parses requests into these and presents what they return; below lie `store`,
//! `keyring` and `domain`. The rule of the room: one public function per verb, which takes a
//! [`Context`] and typed input, decides, and returns what was done or why not ([`Denied`]).

mod announce_trust;
mod assign_role;
mod authenticate;
mod authorize;
mod begin_audit;
mod change_role;
mod change_service;
mod change_webhook;
mod context;
mod count_active;
mod create_role;
mod create_service;
mod create_webhook;
mod delete_role;
mod denied;
mod housekeeping;
mod issue_challenge;
mod issue_token;
mod list_acts;
mod list_agents;
mod list_services;
mod list_signing_keys;
mod once;
mod read_agent;
mod read_webhooks;
mod refresh;
mod register_agent;
mod replay_deliveries;
mod revoke_role;
mod revoke_signing_key;
mod revoke_token;
mod rotate_signing_key;
mod set_agent_status;
mod signing_keys;
mod submit_feedback;
mod tell_ended_roles;
mod tell_failed_login;
mod tell_holder;
mod tend_signing_keys;
mod verify;

pub use announce_trust::announce_trust;
pub use assign_role::{AssignmentRequest, assign_role};
pub use authenticate::{Login, authenticate};
pub use authorize::{find_service_key, require_manager, require_owner};
pub use begin_audit::begin_audit;
pub use change_role::{RoleChange, change_role};
pub use change_service::{ServiceChange, change_service};
pub use change_webhook::{WebhookChange, change_webhook, delete_webhook, rotate_webhook_secret};
pub use context::{Context, Rules};
pub use count_active::count_active;
pub use create_role::{create_role, list_roles};
pub use create_service::{NewKey, NewService, create_service, create_service_key, revoke_service_key};
pub use create_webhook::{NewWebhook, create_webhook};
pub use delete_role::delete_role;
pub use denied::{Denied, Missing};
pub use housekeeping::{DatabaseHealth, forget_events, housekeep, probe_database, probe_queue};
pub use issue_challenge::issue_challenge;
pub use issue_token::TokenPair;
pub use list_acts::{LinkFilter, list_acts};
pub use list_agents::{AgentFilter, Holder, list_agents};
pub use list_services::{list_service_keys, list_services};
pub use list_signing_keys::{believed_keys, list_signing_keys};
pub use once::Reply;
pub use read_agent::read_agent;
pub use read_webhooks::{list_deliveries, list_webhooks, read_delivery, read_webhook};
pub use refresh::refresh;
pub use register_agent::{RegistrationRequest, register_agent};
pub use replay_deliveries::{Replay, replay_deliveries, test_webhook};
pub use revoke_role::revoke_role;
pub use revoke_signing_key::revoke_signing_key;
pub use revoke_token::revoke_token;
pub use rotate_signing_key::rotate_signing_key;
pub use set_agent_status::set_agent_status;
pub use submit_feedback::{FeedbackRequest, submit_feedback, trust_history};
pub use tell_ended_roles::tell_ended_roles;
pub use tell_failed_login::{Storms, settle_storms};
pub use tell_holder::tell_holder;
pub use tend_signing_keys::tend_signing_keys;
pub use verify::verify;

pub use crate::webhooks::QueueHealth;
