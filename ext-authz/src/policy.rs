//! What a route requires of an agent.
//!
//! Neighbours: `check` hands in the context extensions that Envoy sends for the route, `decide` asks
//! the policy. The rule of the room: a rule that is not understood to the last letter is refused, since
//! one that is half understood would let somebody in.
//!
//! Envoy's context extensions are the only source of rules so far; others come beside `extensions`.

mod extensions;

use countersign_identity::{Permission, RoleName, ServiceId, TrustScore};

pub use extensions::RuleError;

/// What a route requires.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// The service that the route belongs to, if it says so.
    pub service: Option<ServiceId>,
    /// Roles that the agent must hold, all of them.
    pub require_roles: Vec<RoleName>,
    /// Permissions that the agent must have, all of them.
    pub require_permissions: Vec<Permission>,
    /// The least trust.
    pub min_trust_score: Option<TrustScore>,
    /// Lets in agents that hold no role at the service.
    pub allow_unassigned: bool,
    /// Lets in requests without a token. A token that is sent is still judged.
    pub allow_anonymous: bool,
    /// Leaves the token in the request.
    pub forward_token: bool,
}
