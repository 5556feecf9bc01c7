//! Verification of agent access tokens: who the agent is and what it may do at a service.
//!
//! The control plane calls this crate for `GET /services/:id/verify`, with data from its database. The sidecar calls it for Envoy's
//! `Check`, with data from the sync stream. So both return the same verdict for the same data.
//!
//! Invariant: all functions are pure: no I/O, no clock, no random numbers. The current time is the argument `now`.
//!
//! Reading order: [`ids`] and [`time`] are the vocabulary. [`public_key`] is the key that an agent registers, [`claims`] are the
//! contents of a token, and [`scope`] is what a client asks for. [`bearer`] extracts the token from a header, [`token`] verifies its
//! signature, [`token_cache`] keeps what is known about it, and [`evaluation`] decides what it grants now. [`agent_hash`] names agents
//! in the sync stream, [`identity_headers`] are the headers for the service, and [`refusal`] lists the reasons for a denial.
//! [`grants`] are the roles in an unbound token. [`protected_resource`] is what clients read to find the control plane, and
//! [`dns_rebinding`] recognizes hosts of web pages.

pub mod agent_hash;
pub mod bearer;
pub mod claims;
pub mod dns_rebinding;
pub mod evaluation;
#[cfg(test)]
mod fuzz;
pub mod grants;
pub mod identity_headers;
pub mod ids;
pub mod key_set;
pub mod names;
pub mod protected_resource;
pub mod public_key;
pub mod refusal;
pub mod scope;
pub mod time;
pub mod token;
pub mod token_cache;
pub mod trust;

pub use agent_hash::{AgentHash, AgentHashKey};
pub use claims::{Audience, Claims};
pub use evaluation::{
    AgentChanges, AgentStatus, EvaluationContext, RoleDefinition, RoleGrant, RoleTable, StatusWithCutoff,
    VerifiedIdentity, Versioned, names_and_permissions,
};
pub use grants::{Grants, KeyedGrant, MAX_GRANTS};
pub use ids::{AgentId, ApiKeyId, EventId, FeedbackId, RoleId, ServiceId, SessionId, TokenId, WebhookId};
pub use key_set::{KeySet, Kid};
pub use names::{Permission, RoleName};
pub use public_key::{P256PublicKey, PublicKeyError, SignatureError};
pub use refusal::{Code, Reason, Refusal};
pub use scope::Scope;
pub use time::{Revision, Timestamp};
pub use token::{SignedToken, UnverifiedToken};
pub use token_cache::TokenCache;
pub use trust::TrustScore;
