//! The requirements of a route.
//!
//! `check` parses a policy from the context extensions of the route, `rules` parses policies from the rules file, and `decide`
//! checks the policy. A policy has keys, such as `require_roles`, with values. Invariant: a policy with an unknown key or an
//! invalid value is refused as a whole. If the key were ignored, the policy could allow more requests than the operator intends.

mod cache;
mod extensions;

use countersign_identity::{Permission, RoleName, ServiceId, TrustScore};

pub use cache::PolicyCache;
pub use extensions::{POLICY_KEYS, PolicyError, PolicyValue};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// The service of the route, if the route has the key `service_id`.
    pub service: Option<ServiceId>,
    /// The agent must have all of these roles.
    pub require_roles: Vec<RoleName>,
    /// The agent must have at least one of these roles, unless the list is empty.
    pub any_role: Vec<RoleName>,
    /// The agent must have all of these permissions.
    pub require_permissions: Vec<Permission>,
    /// The agent must have at least one of these permissions, unless the list is empty.
    pub any_permission: Vec<Permission>,
    /// The agent must have at least this trust score.
    pub min_trust_score: Option<TrustScore>,
    /// Whether agents without a role at the service are allowed.
    pub allow_unassigned: bool,
    /// Whether requests without a token are allowed. If a request has a token, the token must be valid.
    pub allow_anonymous: bool,
    /// Whether Envoy forwards the token to the service.
    pub forward_token: bool,
}

impl Policy {
    /// The names and values of all settings of the policy that differ from the default.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let Self { service, require_roles, any_role, require_permissions, any_permission, min_trust_score, .. } = self;
        let lists = [
            ("require_roles", join(require_roles)),
            ("any_role", join(any_role)),
            ("require_permissions", join(require_permissions)),
            ("any_permission", join(any_permission)),
        ];
        let flags = [
            ("allow_unassigned", self.allow_unassigned),
            ("allow_anonymous", self.allow_anonymous),
            ("forward_token", self.forward_token),
        ];
        let service = service.map(|service| ("service_id", service.to_string()));
        let trust = min_trust_score.map(|score| ("min_trust_score", score.to_string()));
        let flags = flags.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| (key, "true".to_owned()));
        let lists = lists.into_iter().filter(|(_, items)| !items.is_empty());
        service.into_iter().chain(lists).chain(trust).chain(flags).collect()
    }
}

fn join(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
