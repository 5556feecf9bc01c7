//! The requirements of a route.
//!
//! `check` parses a policy from the context extensions of the route, and `decide` checks it. Invariant: a policy with
//! an unknown rule or an invalid value is refused, because a policy without the refused rule could allow more requests
//! than the operator intends.
//!
//! Envoy's context extensions are the only source of rules. A second source of rules would be a module next to
//! `extensions`.

mod extensions;

use countersign_identity::{Permission, RoleName, ServiceId, TrustScore};

pub use extensions::RuleError;

/// The requirements of a route.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// The service of the route, if the route has the context extension `service_id`.
    pub service: Option<ServiceId>,
    /// The agent must have all of these roles.
    pub require_roles: Vec<RoleName>,
    /// The agent must have all of these permissions.
    pub require_permissions: Vec<Permission>,
    /// The agent must have at least this trust score.
    pub min_trust_score: Option<TrustScore>,
    /// Whether agents without a role at the service are allowed.
    pub allow_unassigned: bool,
    /// Whether requests without a token are allowed. If a request has a token, the token must be valid.
    pub allow_anonymous: bool,
    /// Whether Envoy forwards the token to the service.
    pub forward_token: bool,
}
