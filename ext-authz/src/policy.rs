//! The requirements of a route.
//!
//! `check` passes the context extensions of the route, `decide` checks the policy. Invariant: a rule that is not fully
//! understood is refused, because ignoring a part of it would admit requests.
//!
//! Envoy's context extensions are the only source of rules; a new source is a module beside `extensions`.

mod extensions;

use countersign_identity::{Permission, RoleName, ServiceId, TrustScore};

pub use extensions::RuleError;

/// The requirements of a route.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// The service of the route, if the route names one.
    pub service: Option<ServiceId>,
    /// All of these roles are required.
    pub require_roles: Vec<RoleName>,
    /// All of these permissions are required.
    pub require_permissions: Vec<Permission>,
    /// The minimum trust score.
    pub min_trust_score: Option<TrustScore>,
    /// Allows agents without a role at the service.
    pub allow_unassigned: bool,
    /// Allows requests without a token. A token that is sent must still be valid.
    pub allow_anonymous: bool,
    /// Leaves the token in the forwarded request.
    pub forward_token: bool,
}
