//! Decides whether a request is allowed, from the view (the local data of the service), the policy of the route, the
//! token and the time.
//!
//! `check` calls [`decide`], and `response` converts the decision to a response. Invariant: this module does not wait,
//! lock or read the clock. The sidecar checks a token in the same order as the control plane: format, key and signature
//! of the token; then [`VerifiedIdentity::evaluate`]; then the roles, permissions and trust score that the route
//! requires.

mod cache;
mod evaluated;

use crate::{policy::Policy, view::View};
use countersign_identity::{
    AgentId, Claims, Permission, Reason, Refusal, RoleName, Timestamp, TrustScore, UnverifiedToken, VerifiedIdentity,
};
use std::{sync::Arc, time::Duration};

pub use cache::{CachedToken, VerifiedTokens};
pub use evaluated::EvaluatedIdentity;

/// The token of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PresentedToken<'a> {
    /// The request has no token.
    Absent,
    /// The request has one token, which is not verified yet.
    Unverified(&'a str),
    /// The headers do not contain exactly one well-formed token.
    Invalid(Reason),
}

/// The current time.
#[derive(Debug, Clone, Copy)]
pub struct CurrentTime {
    /// The time by which the sidecar judges tokens and roles: that of the control plane, as [`View::now`] returns it.
    pub now: Timestamp,
    /// The time since boot, to compute the age of the sidecar's data.
    pub since_boot: Duration,
}

/// The decision about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The request is allowed, with this identity, for this time.
    Verified(Arc<EvaluatedIdentity>, Validity),
    /// The request is allowed without an identity.
    Anonymous,
    /// The request is allowed without an identity, because the rule that refuses it is a dry run.
    DryRun(Denial),
    /// The request is denied.
    Denied(Denial),
}

/// How long an allowed request stays allowed if the sidecar receives no change: until the identity ends, or until the view
/// would be too old for decisions. So whoever ends a stream at this time relies on no older data than the sidecar itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The end, by the clock of the control plane.
    pub until: Timestamp,
    /// The time that remains; never zero.
    pub remaining: Duration,
}

impl Decision {
    /// Denies a request that would be allowed.
    #[must_use]
    pub fn or_deny(self, reason: Reason) -> Self {
        match self {
            Self::Verified(evaluated, _) => {
                Self::Denied(Denial { agent: Some(evaluated.identity.agent), ..reason.into() })
            }
            Self::Anonymous => Self::Denied(reason.into()),
            Self::Denied(_) | Self::DryRun(_) => self,
        }
    }

    /// The decision of a rule that is a dry run: a denial becomes an allowed request without an identity.
    #[must_use]
    pub fn into_dry_run(self) -> Self {
        match self {
            Self::Denied(denial) => Self::DryRun(denial),
            Self::Verified(..) | Self::Anonymous | Self::DryRun(_) => self,
        }
    }
}

/// Why a request is denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The reason of the denial.
    pub refusal: Refusal,
    /// The agent, if the signature of the token is valid.
    pub agent: Option<AgentId>,
    /// The requirement of the route that the agent does not meet.
    pub unmet_requirement: Option<UnmetRequirement>,
}

/// A requirement of a route that the agent does not meet, and the agent's roles, permissions or trust score.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnmetRequirement {
    /// The agent needs all required roles or, if the list of required roles is empty, any role.
    Roles {
        /// The roles that the route requires.
        required: Vec<RoleName>,
        /// The roles of the agent at the service.
        actual: Vec<RoleName>,
    },
    /// The agent needs at least one of these roles.
    AnyRole {
        /// The roles of which the route requires one.
        required: Vec<RoleName>,
        /// The roles of the agent at the service.
        actual: Vec<RoleName>,
    },
    /// The agent needs all required permissions.
    Permissions {
        /// The permissions that the route requires.
        required: Vec<Permission>,
        /// The permissions of the agent at the service.
        actual: Vec<Permission>,
    },
    /// The agent needs at least one of these permissions.
    AnyPermission {
        /// The permissions of which the route requires one.
        required: Vec<Permission>,
        /// The permissions of the agent at the service.
        actual: Vec<Permission>,
    },
    /// The agent needs at least the required trust score.
    TrustScore {
        /// The minimum score of the route.
        required: TrustScore,
        /// The score of the agent.
        actual: TrustScore,
    },
}

impl From<Refusal> for Denial {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, agent: None, unmet_requirement: None }
    }
}

impl From<Reason> for Denial {
    fn from(reason: Reason) -> Self {
        Refusal::from(reason).into()
    }
}

/// Decides whether a request is allowed.
pub fn decide(
    view: &View,
    policy: &Policy,
    token: PresentedToken<'_>,
    time: CurrentTime,
    cache: &VerifiedTokens,
) -> Decision {
    evaluate(view, policy, token, time, cache).unwrap_or_else(Decision::Denied)
}

fn evaluate(
    view: &View,
    policy: &Policy,
    token: PresentedToken<'_>,
    time: CurrentTime,
    cache: &VerifiedTokens,
) -> Result<Decision, Denial> {
    let usable_for = remaining_staleness(view, time.since_boot)?;
    let text = match token {
        PresentedToken::Unverified(text) => text,
        PresentedToken::Absent if policy.allow_anonymous => return Ok(Decision::Anonymous),
        PresentedToken::Absent => return Err(Reason::TokenMissing.into()),
        PresentedToken::Invalid(reason) => return Err(reason.into()),
    };
    let now = time.now;
    let evaluated = identify(view, text, now, cache)?;
    let identity = &evaluated.identity;
    check_policy(identity, policy).map_err(|(reason, unmet_requirement)| {
        let is_narrowed = reason == Reason::PermissionMissing && meets_without_scope(view, policy, text, now, cache);
        let reason = if is_narrowed { Reason::TokenScopeInsufficient } else { reason };
        Denial { refusal: reason.into(), agent: Some(identity.agent), unmet_requirement: Some(unmet_requirement) }
    })?;
    let remaining = identity.valid_until.duration_since(now).min(usable_for);
    Ok(Decision::Verified(evaluated, Validity { until: now.saturating_add(remaining), remaining }))
}

/// Whether the request would be allowed with a token of the same agent that was requested without a scope. Only denials ask this.
fn meets_without_scope(view: &View, policy: &Policy, text: &str, now: Timestamp, cache: &VerifiedTokens) -> bool {
    let Ok(token) = verify_signature(view, text, cache) else { return false };
    let claims = token.token().claims();
    if claims.requested_scope.is_none() {
        return false;
    }
    let claims = Claims { requested_scope: None, ..claims.clone() };
    let identity = VerifiedIdentity::evaluate(&claims, &view.evaluation_context(&claims), now);
    identity.is_ok_and(|identity| check_policy(&identity, policy).is_ok())
}

/// The identity that a token grants now. Uses the identity that an earlier check evaluated, if it still applies.
fn identify(view: &View, text: &str, now: Timestamp, cache: &VerifiedTokens) -> Result<Arc<EvaluatedIdentity>, Denial> {
    let cached = cache.get(view.service(), text);
    if let Some(identity) = cached.as_ref().and_then(|cached| cached.identity(view.content(), now)) {
        return Ok(identity);
    }
    let token = match cached {
        Some(cached) => check_key(view, cached)?,
        None => verify(view, text, cache)?,
    };
    let claims = token.token().claims();
    let identity = VerifiedIdentity::evaluate(claims, &view.evaluation_context(claims), now)
        .map_err(|refusal| Denial { refusal, agent: Some(claims.sub), unmet_requirement: None })?;
    let identity = Arc::new(EvaluatedIdentity::new(identity, view.content(), now));
    token.keep(&identity);
    Ok(identity)
}

/// Denies the request if the control plane never confirmed that the sidecar's view of the service is current, or if the
/// latest confirmation is too old. Otherwise returns for how long the view can be used without a further confirmation.
fn remaining_staleness(view: &View, since_boot: Duration) -> Result<Duration, Reason> {
    let confirmed_at = view.confirmed_at().ok_or(Reason::ViewMissing)?;
    let age = since_boot.saturating_sub(confirmed_at);
    let remaining = view.max_staleness().saturating_sub(age);
    if remaining.is_zero() { Err(Reason::ViewStale) } else { Ok(remaining) }
}

/// Verifies the signature of the token, unless the token is in the cache.
pub fn verify_signature(view: &View, text: &str, cache: &VerifiedTokens) -> Result<Arc<CachedToken>, Refusal> {
    cache.get(view.service(), text).map_or_else(|| verify(view, text, cache), |cached| check_key(view, cached))
}

/// The signing key of a cached token may have been removed, so the key set must still contain the key.
fn check_key(view: &View, cached: Arc<CachedToken>) -> Result<Arc<CachedToken>, Refusal> {
    if view.keys().get(cached.token().kid()).is_some() { Ok(cached) } else { Err(Reason::TokenKeyUnknown.into()) }
}

fn verify(view: &View, text: &str, cache: &VerifiedTokens) -> Result<Arc<CachedToken>, Refusal> {
    let token = UnverifiedToken::parse(text)?.verify(view.keys())?;
    Ok(cache.insert(view.service(), text, token))
}

fn check_policy(identity: &VerifiedIdentity, policy: &Policy) -> Result<(), (Reason, UnmetRequirement)> {
    let VerifiedIdentity { roles, permissions, trust_score, .. } = identity;
    let Policy { require_roles, any_role, require_permissions, any_permission, min_trust_score, .. } = policy;
    let unmet_roles = || UnmetRequirement::Roles { required: require_roles.clone(), actual: roles.clone() };
    if roles.is_empty() && !policy.allow_unassigned {
        return Err((Reason::NoRole, unmet_roles()));
    }
    if !require_roles.iter().all(|role| roles.binary_search(role).is_ok()) {
        return Err((Reason::RoleMissing, unmet_roles()));
    }
    if has_none_of(roles, any_role) {
        let unmet_requirement = UnmetRequirement::AnyRole { required: any_role.clone(), actual: roles.clone() };
        return Err((Reason::RoleMissing, unmet_requirement));
    }
    if !require_permissions.iter().all(|permission| permissions.binary_search(permission).is_ok()) {
        let unmet_requirement =
            UnmetRequirement::Permissions { required: require_permissions.clone(), actual: permissions.clone() };
        return Err((Reason::PermissionMissing, unmet_requirement));
    }
    if has_none_of(permissions, any_permission) {
        let unmet_requirement =
            UnmetRequirement::AnyPermission { required: any_permission.clone(), actual: permissions.clone() };
        return Err((Reason::PermissionMissing, unmet_requirement));
    }
    if let Some(required) = min_trust_score.filter(|minimum| trust_score < minimum) {
        return Err((Reason::TrustTooLow, UnmetRequirement::TrustScore { required, actual: *trust_score }));
    }
    Ok(())
}

/// Whether at least one name is required, and the sorted list of the agent contains none of them.
fn has_none_of<T: Ord>(actual: &[T], required: &[T]) -> bool {
    !required.is_empty() && !required.iter().any(|name| actual.binary_search(name).is_ok())
}

#[cfg(test)]
mod tests;
