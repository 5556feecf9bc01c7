//! Who an agent is and what it may do, as pure functions.
//!
//! Both the control plane (`GET /services/:id/verify`) and the sidecar (Envoy's `Check`) ask this
//! crate, so they cannot disagree. Neighbours: `control-plane` feeds it from its database,
//! `ext-authz` from its view of the stream.
//!
//! The rule of the room: no I/O, no runtime, no clock, no randomness. `now` is an argument.
//!
//! Reading order: [`ids`] and [`time`] are the vocabulary; [`public_key`] is what an agent registers;
//! [`claims`] is what a token says; [`bearer`] finds it in a header; [`token`] turns a string into signed claims; [`evaluation`] decides
//! what these claims are worth at a service now; [`refusal`] is every way of saying no.

pub mod bearer;
pub mod claims;
pub mod evaluation;
#[cfg(test)]
mod fuzz;
pub mod ids;
pub mod key_set;
pub mod names;
pub mod public_key;
pub mod refusal;
pub mod time;
pub mod token;
pub mod trust;

pub use claims::{Audience, Claims};
pub use evaluation::{
    AgentChanges, AgentStatus, EvaluationContext, RoleDefinition, RoleGrant, RoleTable, StatusWithCutoff,
    VerifiedIdentity, Versioned,
};
pub use ids::{AgentId, ApiKeyId, EventId, FeedbackId, RefreshId, RoleId, ServiceId, SessionId, TokenId, WebhookId};
pub use key_set::{KeySet, Kid};
pub use names::{Permission, RoleName};
pub use public_key::{P256PublicKey, PublicKeyError, SignatureError};
pub use refusal::{Code, Reason, Refusal};
pub use time::{Revision, Timestamp};
pub use token::{SignedToken, UnverifiedToken};
pub use trust::TrustScore;
