//! Whether a request may pass: (view, policy, token, time) → decision.
//!
//! Neighbours: `check` asks, `answer` tells. The rule of the room: nothing here waits, locks or asks for
//! the time. The questions come in the order that the control plane asks them too: form, key,
//! signature; then those of [`VerifiedIdentity::evaluate`]; then roles, permissions and trust.

mod cache;

use crate::{policy::Policy, view::View};
use countersign_identity::{AgentId, Reason, Refusal, SignedToken, Timestamp, UnverifiedToken, VerifiedIdentity};
use std::{sync::Arc, time::Duration};

pub use cache::TokenCache;

/// What a request brought along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presented<'a> {
    /// No token.
    Nothing,
    /// One token; nobody has looked at it.
    Token(&'a str),
    /// Something in a token's place that is not one token.
    Unreadable(Reason),
}

/// The time, on both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// On the wall: what is compared with a token's expiry.
    pub now: Timestamp,
    /// Since boot: what is compared with the view's confirmation.
    pub since_boot: Duration,
}

/// What becomes of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It passes, with this identity.
    Verified(VerifiedIdentity),
    /// It passes without identity.
    Anonymous,
    /// It does not pass.
    Refused(Refused),
}

/// A refusal, and whom it hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub refusal: Refusal,
    /// The agent, if the token's signature says who it is.
    pub agent: Option<AgentId>,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, agent: None }
    }
}

impl From<Reason> for Refused {
    fn from(reason: Reason) -> Self {
        Refusal::from(reason).into()
    }
}

/// Decides.
pub fn decide(view: &View, policy: &Policy, presented: Presented<'_>, moment: Moment, cache: &TokenCache) -> Decision {
    judge(view, policy, presented, moment, cache).unwrap_or_else(Decision::Refused)
}

fn judge(
    view: &View,
    policy: &Policy,
    presented: Presented<'_>,
    moment: Moment,
    cache: &TokenCache,
) -> Result<Decision, Refused> {
    young_enough(view, moment.since_boot)?;
    let text = match presented {
        Presented::Token(text) => text,
        Presented::Nothing if policy.allow_anonymous => return Ok(Decision::Anonymous),
        Presented::Nothing => return Err(Reason::TokenMissing.into()),
        Presented::Unreadable(reason) => return Err(reason.into()),
    };
    let token = signed(view, text, cache)?;
    let hit = |refusal| Refused { refusal, agent: Some(token.claims().sub) };
    let identity = VerifiedIdentity::evaluate(token.claims(), &view.evaluation_context(token.claims()), moment.now)
        .map_err(hit)?;
    suffices(&identity, policy).map_err(|reason| hit(reason.into()))?;
    Ok(Decision::Verified(identity))
}

/// A view that was never confirmed is none; one that was confirmed too long ago is not used.
fn young_enough(view: &View, since_boot: Duration) -> Result<(), Reason> {
    let confirmed_at = view.confirmed_at().ok_or(Reason::ViewMissing)?;
    if since_boot.saturating_sub(confirmed_at) < view.terms().max_staleness { Ok(()) } else { Err(Reason::ViewStale) }
}

/// A remembered token is spared the signature and nothing else: its key may be gone since.
fn signed(view: &View, text: &str, cache: &TokenCache) -> Result<Arc<SignedToken>, Refusal> {
    let place = TokenCache::place(view.service(), text);
    if let Some(token) = cache.get(&place) {
        return if view.keys().get(token.kid()).is_some() { Ok(token) } else { Err(Reason::TokenKeyUnknown.into()) };
    }
    let token = Arc::new(UnverifiedToken::parse(text)?.verify(view.keys())?);
    cache.put(place, &token);
    Ok(token)
}

fn suffices(identity: &VerifiedIdentity, policy: &Policy) -> Result<(), Reason> {
    let Policy { service: _, require_roles, require_permissions, min_trust_score, allow_unassigned, .. } = policy;
    if identity.roles.is_empty() && !allow_unassigned {
        return Err(Reason::NoRole);
    }
    if !require_roles.iter().all(|role| identity.roles.binary_search(role).is_ok()) {
        return Err(Reason::RoleMissing);
    }
    if !require_permissions.iter().all(|permission| identity.permissions.binary_search(permission).is_ok()) {
        return Err(Reason::PermissionMissing);
    }
    if min_trust_score.is_some_and(|least| identity.trust_score < least) {
        return Err(Reason::TrustTooLow);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
