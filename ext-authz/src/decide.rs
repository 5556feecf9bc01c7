//! Decides whether a request is allowed, from the view (the local data of the service), the policy of the route, the token and the
//! time.
//!
//! `check` calls [`decide`], and `response` converts the decision to a response. Invariant: this module does not wait, lock or read
//! the clock. A token passes the same steps as in the control plane: format, key and signature; then
//! [`VerifiedIdentity::evaluate`]; then the roles, permissions and trust score that the route requires.

mod cache;

use crate::{
    policy::Policy,
    view::{ContentId, View},
};
use countersign_identity::{
    AgentId, Claims, Permission, Reason, Refusal, RoleName, Timestamp, TrustScore, UnverifiedToken, VerifiedIdentity,
};
use serde::Serialize;
use std::{sync::Arc, time::Duration};

pub use cache::{CachedToken, VerifiedTokens};

/// The token of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PresentedToken<'a> {
    Absent,
    /// The request has one token, which is not verified yet.
    Unverified(&'a str),
    /// The headers do not contain exactly one well-formed token.
    Invalid(Reason),
}

#[derive(Debug, Clone, Copy)]
pub struct CurrentTime {
    /// The time of the control plane ([`View::now`]), by which tokens and roles end.
    pub now: Timestamp,
    /// The time since boot, by which the view ages.
    pub since_boot: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The request is allowed with this identity, and stays allowed for this time.
    Verified(Arc<EvaluatedIdentity>, Validity),
    /// The request is allowed without an identity.
    Anonymous,
    /// The request is allowed without an identity, because the rule that refuses it is a dry run.
    DryRun(Denial),
    Denied(Denial),
}

/// What a token granted when it was last evaluated.
#[derive(Debug)]
pub struct EvaluatedIdentity {
    pub identity: VerifiedIdentity,
    content: ContentId,
    /// The time of the evaluation, by the clock of the control plane.
    evaluated_at: Timestamp,
}

impl EvaluatedIdentity {
    /// Whether another evaluation, of a view with this content at this time, would have the same result. Until `valid_until`, no
    /// role of the identity ends. If the clock has gone back to before `evaluated_at`, the agent may have had more roles.
    fn applies(&self, content: ContentId, now: Timestamp) -> bool {
        self.content == content && (self.evaluated_at..self.identity.valid_until).contains(&now)
    }
}

impl PartialEq for EvaluatedIdentity {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity
    }
}

impl Eq for EvaluatedIdentity {}

/// How long an allowed request stays allowed if the sidecar receives no change: until the identity ends, or until the view is stale
/// if that is earlier. If Envoy ends an open stream then, it relies on data no longer than the sidecar itself does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The end, by the clock of the control plane.
    pub until: Timestamp,
    /// The time that remains; never zero.
    pub remaining: Duration,
}

impl Decision {
    /// Denies the request unless it is already denied.
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

    pub fn is_denied_because(&self, reason: Reason) -> bool {
        matches!(self, Self::Denied(denial) if denial.refusal.reason == reason)
    }

    /// Turns a denial into an allowed request without an identity, for a rule that is a dry run.
    #[must_use]
    pub fn into_dry_run(self) -> Self {
        match self {
            Self::Denied(denial) => Self::DryRun(denial),
            Self::Verified(..) | Self::Anonymous | Self::DryRun(_) => self,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    pub refusal: Refusal,
    /// The agent of the token; `None` if the signature of the token was not verified.
    pub agent: Option<AgentId>,
    /// The requirement of the route that the agent does not meet.
    pub unmet_requirement: Option<UnmetRequirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmetRequirement {
    pub required: Qualification,
    pub actual: Qualification,
}

/// What a route requires of an agent, or what the agent has of this kind, such as its roles. The error body of a denial contains
/// it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Qualification {
    /// All of these roles; if the list is empty, any role.
    Roles(Box<[RoleName]>),
    /// At least one of these roles.
    AnyRole(Box<[RoleName]>),
    /// All of these permissions.
    Permissions(Box<[Permission]>),
    /// At least one of these permissions.
    AnyPermission(Box<[Permission]>),
    /// At least this trust score.
    TrustScore(TrustScore),
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

/// Allows the request, or denies it for the first reason that applies.
pub fn decide(
    view: &View,
    policy: &Policy,
    token: PresentedToken<'_>,
    time: CurrentTime,
    cache: &VerifiedTokens,
) -> Decision {
    allow(view, policy, token, time, cache).unwrap_or_else(Decision::Denied)
}

fn allow(
    view: &View,
    policy: &Policy,
    token: PresentedToken<'_>,
    time: CurrentTime,
    cache: &VerifiedTokens,
) -> Result<Decision, Denial> {
    let usable_for = time_until_stale(view, time.since_boot)?;
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

/// Whether the agent would meet the policy with a token that it had requested without a scope. Only denials ask this.
fn meets_without_scope(view: &View, policy: &Policy, text: &str, now: Timestamp, cache: &VerifiedTokens) -> bool {
    let Ok(token) = verify_signature(view, text, cache) else { return false };
    let claims = token.token.claims();
    if claims.requested_scope.is_none() {
        return false;
    }
    let claims = Claims { requested_scope: None, ..claims.clone() };
    let identity = VerifiedIdentity::evaluate(&claims, &view.evaluation_context(&claims), now);
    identity.is_ok_and(|identity| check_policy(&identity, policy).is_ok())
}

/// The identity that a token grants now. An earlier check may have evaluated it.
fn identify(view: &View, text: &str, now: Timestamp, cache: &VerifiedTokens) -> Result<Arc<EvaluatedIdentity>, Denial> {
    let cached = cache.get(view.service(), text);
    if let Some(identity) = cached.as_ref().and_then(|cached| cached.identity(view.content(), now)) {
        return Ok(identity);
    }
    let token = match cached {
        Some(cached) => check_key(view, cached)?,
        None => verify(view, text, cache)?,
    };
    let claims = token.token.claims();
    let identity = VerifiedIdentity::evaluate(claims, &view.evaluation_context(claims), now)
        .map_err(|refusal| Denial { refusal, agent: Some(claims.sub), unmet_requirement: None })?;
    let identity = Arc::new(EvaluatedIdentity { identity, content: view.content(), evaluated_at: now });
    token.keep(&identity);
    Ok(identity)
}

/// How long the view can be used without a further confirmation. The error says that the control plane has never confirmed it, or
/// too long ago.
fn time_until_stale(view: &View, since_boot: Duration) -> Result<Duration, Reason> {
    let confirmed_at = view.confirmed_at().ok_or(Reason::ViewMissing)?;
    let age = since_boot.saturating_sub(confirmed_at);
    let remaining = view.max_staleness().saturating_sub(age);
    if remaining.is_zero() { Err(Reason::ViewStale) } else { Ok(remaining) }
}

/// Verifies the signature of the token, unless the token is in the cache.
pub fn verify_signature(view: &View, text: &str, cache: &VerifiedTokens) -> Result<Arc<CachedToken>, Refusal> {
    cache.get(view.service(), text).map_or_else(|| verify(view, text, cache), |cached| check_key(view, cached))
}

/// Requires that the key set still contains the key that signed a cached token: the key may have been revoked since.
fn check_key(view: &View, cached: Arc<CachedToken>) -> Result<Arc<CachedToken>, Refusal> {
    if view.keys().get(cached.token.kid()).is_some() { Ok(cached) } else { Err(Reason::TokenKeyUnknown.into()) }
}

fn verify(view: &View, text: &str, cache: &VerifiedTokens) -> Result<Arc<CachedToken>, Refusal> {
    let token = UnverifiedToken::parse(text)?.verify(view.keys())?;
    Ok(cache.insert(view.service(), text, token))
}

fn check_policy(identity: &VerifiedIdentity, policy: &Policy) -> Result<(), (Reason, UnmetRequirement)> {
    let VerifiedIdentity { roles, permissions, trust_score, .. } = identity;
    let Policy { require_roles, any_role, require_permissions, any_permission, min_trust_score, .. } = policy;
    let unmet = |reason, required, actual| Err((reason, UnmetRequirement { required, actual }));
    let actual_roles = || Qualification::Roles(roles[..].into());
    let actual_permissions = || Qualification::Permissions(permissions[..].into());
    if roles.is_empty() && !policy.allow_unassigned {
        return unmet(Reason::NoRole, Qualification::Roles(require_roles[..].into()), actual_roles());
    }
    if !require_roles.iter().all(|role| roles.binary_search(role).is_ok()) {
        return unmet(Reason::RoleMissing, Qualification::Roles(require_roles[..].into()), actual_roles());
    }
    if has_none_of(roles, any_role) {
        return unmet(Reason::RoleMissing, Qualification::AnyRole(any_role[..].into()), actual_roles());
    }
    if !require_permissions.iter().all(|permission| permissions.binary_search(permission).is_ok()) {
        let required = Qualification::Permissions(require_permissions[..].into());
        return unmet(Reason::PermissionMissing, required, actual_permissions());
    }
    if has_none_of(permissions, any_permission) {
        let required = Qualification::AnyPermission(any_permission[..].into());
        return unmet(Reason::PermissionMissing, required, actual_permissions());
    }
    if let Some(minimum) = min_trust_score.filter(|minimum| trust_score < minimum) {
        let (required, actual) = (Qualification::TrustScore(minimum), Qualification::TrustScore(*trust_score));
        return unmet(Reason::TrustTooLow, required, actual);
    }
    Ok(())
}

/// Whether at least one name is required, and the sorted list of the agent contains none of them.
fn has_none_of<T: Ord>(actual: &[T], required: &[T]) -> bool {
    !required.is_empty() && !required.iter().any(|name| actual.binary_search(name).is_ok())
}

#[cfg(test)]
mod tests;
