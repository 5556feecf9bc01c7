//! What a signed token is worth at a service, now.
//!
//! A token states roles and trust as of its revision `rev`. What changed since is known as records,
//! each facet stamped with the revision of its change. *Newest wins, per facet*: a record above `rev`
//! overrides that claim, a token newer than the record overrides the record. No clocks are compared;
//! only expiry asks for `now`.

use crate::{
    AgentId, Audience, Claims, Permission, Reason, Refusal, Revision, RoleId, RoleName, ServiceId, Timestamp, TokenId,
    TrustScore,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

/// Tolerance for clocks that run apart, for `nbf` and `iat` only. `exp` is exact.
pub const LEEWAY: Duration = Duration::from_secs(30);

/// Where an agent is in its life. `Revoked` is for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AgentStatus {
    /// May log in and be verified.
    Active,
    /// Refused until it is active again.
    Suspended,
    /// Refused for ever.
    Revoked,
}

/// A value and the revision of the change that made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned<T> {
    /// When it became so.
    pub revision: Revision,
    /// What is so.
    pub value: T,
}

/// A role that an agent holds, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoleGrant {
    /// The role.
    pub role: RoleId,
    /// The instant from which it is no longer held; `None` for no end.
    pub until: Option<Timestamp>,
}

/// An agent's status, and the revision below which its tokens are dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusWithCutoff {
    /// Where the agent is in its life.
    pub status: AgentStatus,
    /// Tokens with a `rev` below this stay dead, also after reactivation.
    pub cutoff: Revision,
}

/// What changed of one agent, facet by facet, as seen from one service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentChanges {
    /// Roles held at this service.
    pub roles: Option<Versioned<Vec<RoleGrant>>>,
    /// Trust.
    pub trust: Option<Versioned<TrustScore>>,
    /// Status and cut-off.
    pub status: Option<Versioned<StatusWithCutoff>>,
}

impl AgentChanges {
    /// Takes over every facet that is newer in `other`.
    pub fn merge(&mut self, other: Self) {
        let Self { roles, trust, status } = other;
        newest(&mut self.roles, roles);
        newest(&mut self.trust, trust);
        newest(&mut self.status, status);
    }

    /// Forgets every facet stamped at or below `floor`; true if nothing is left.
    pub fn prune(&mut self, floor: Revision) -> bool {
        self.roles.take_if(|facet| facet.revision <= floor);
        self.trust.take_if(|facet| facet.revision <= floor);
        self.status.take_if(|facet| facet.revision <= floor);
        *self == Self::default()
    }
}

fn newest<T>(mine: &mut Option<Versioned<T>>, theirs: Option<Versioned<T>>) {
    if let Some(theirs) = theirs
        && mine.as_ref().is_none_or(|mine| mine.revision <= theirs.revision)
    {
        *mine = Some(theirs);
    }
}

/// A role as its service defines it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleDefinition {
    /// The role.
    pub id: RoleId,
    /// Its name, unique at the service and never changed.
    pub name: RoleName,
    /// What it permits.
    pub permissions: Vec<Permission>,
    /// The revision at which it was made: a token from before speaks of another role of that name.
    pub created_revision: Revision,
}

/// All roles of one service.
#[derive(Debug, Clone, Default)]
pub struct RoleTable {
    by_id: HashMap<RoleId, RoleDefinition>,
    by_name: HashMap<RoleName, RoleId>,
}

impl FromIterator<RoleDefinition> for RoleTable {
    fn from_iter<I: IntoIterator<Item = RoleDefinition>>(definitions: I) -> Self {
        let by_id: HashMap<_, _> = definitions.into_iter().map(|definition| (definition.id, definition)).collect();
        let by_name = by_id.values().map(|definition| (definition.name.clone(), definition.id)).collect();
        Self { by_id, by_name }
    }
}

impl RoleTable {
    /// The definition of a role.
    pub fn get(&self, id: RoleId) -> Option<&RoleDefinition> {
        self.by_id.get(&id)
    }

    /// The names of granted roles and what they permit; a role that is not defined grants nothing.
    pub fn resolve<'a>(&self, grants: impl Iterator<Item = &'a RoleGrant>) -> (Vec<RoleName>, Vec<Permission>) {
        define(grants.filter_map(|grant| self.get(grant.role)))
    }

    /// The role that a token of revision `rev` means by this name.
    fn get_by_name(&self, name: &RoleName, rev: Revision) -> Option<&RoleDefinition> {
        self.get(*self.by_name.get(name)?).filter(|definition| definition.created_revision <= rev)
    }
}

/// What is known at one revision about a service and the token at hand.
#[derive(Debug, Clone, Copy)]
pub struct EvaluationContext<'a> {
    /// The service that asks.
    pub service: ServiceId,
    /// The issuer whose tokens it believes.
    pub issuer: &'a str,
    /// Whether tokens bound to no service are accepted.
    pub accepts_unbound: bool,
    /// The revision up to which everything is known.
    pub revision: Revision,
    /// The revision from which on nothing was forgotten.
    pub floor: Revision,
    /// The service's roles.
    pub roles: &'a RoleTable,
    /// What changed of the token's agent, if anything is remembered.
    pub agent: Option<&'a AgentChanges>,
    /// Whether the token or its login was revoked.
    pub revoked: bool,
}

/// Who stands before the service: the present truth about a verified agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedIdentity {
    /// The agent.
    pub agent: AgentId,
    /// Its display name.
    pub name: String,
    /// Live roles at this service, sorted.
    pub roles: Vec<RoleName>,
    /// What they permit, sorted, each once.
    pub permissions: Vec<Permission>,
    /// Trust.
    pub trust_score: TrustScore,
    /// The token that was presented.
    pub token: TokenId,
}

impl VerifiedIdentity {
    /// Judges signed claims in the order that API and sidecar share: claims, time, audience, floor,
    /// status, cut-off, revocation; then states roles, permissions and trust.
    pub fn evaluate(claims: &Claims, evaluation: &EvaluationContext<'_>, now: Timestamp) -> Result<Self, Refusal> {
        check_times(claims, evaluation.issuer, now)?;
        check_audience(claims, evaluation)?;
        check_life(claims, evaluation)?;
        let (roles, permissions) = held(claims, evaluation, now);
        let trust = evaluation.agent.and_then(|record| record.trust.as_ref());
        Ok(Self {
            agent: claims.sub,
            name: claims.name.clone(),
            roles,
            permissions,
            trust_score: trust
                .filter(|facet| facet.revision > claims.rev)
                .map_or(claims.trust_score, |facet| facet.value),
            token: claims.jti,
        })
    }
}

fn check_times(claims: &Claims, issuer: &str, now: Timestamp) -> Result<(), Refusal> {
    if claims.iss != issuer {
        return Err(Reason::TokenClaimsInvalid.into());
    }
    if now >= claims.expires_at() {
        return Err(Refusal::expired(claims.expires_at()));
    }
    let horizon = now.saturating_add(LEEWAY);
    if Timestamp::from_seconds(claims.nbf) > horizon || Timestamp::from_seconds(claims.iat) > horizon {
        return Err(Reason::TokenNotYetValid.into());
    }
    Ok(())
}

fn check_audience(claims: &Claims, evaluation: &EvaluationContext<'_>) -> Result<(), Refusal> {
    match claims.audience() {
        Some(Audience::Service(service)) if service == evaluation.service => Ok(()),
        Some(Audience::Unbound) if evaluation.accepts_unbound => Ok(()),
        Some(Audience::Unbound) => Err(Reason::TokenUnbound.into()),
        _ => Err(Reason::TokenAudienceMismatch.into()),
    }
}

fn check_life(claims: &Claims, evaluation: &EvaluationContext<'_>) -> Result<(), Refusal> {
    if claims.rev < evaluation.floor {
        return Err(Reason::TokenSuperseded.into());
    }
    if let Some(facet) = evaluation.agent.and_then(|record| record.status.as_ref()) {
        if facet.revision > claims.rev {
            match facet.value.status {
                AgentStatus::Active => {}
                AgentStatus::Suspended => return Err(Reason::AgentSuspended.into()),
                AgentStatus::Revoked => return Err(Reason::AgentRevoked.into()),
            }
        }
        if claims.rev < facet.value.cutoff {
            return Err(Reason::TokenRevoked.into());
        }
    }
    if evaluation.revoked { Err(Reason::TokenRevoked.into()) } else { Ok(()) }
}

/// The roles held now and what they permit: from the record if it is newer than the token, else from
/// the claims as today's definitions read them, and from the claims alone only where the token is
/// newer than everything that is known here.
fn held(claims: &Claims, evaluation: &EvaluationContext<'_>, now: Timestamp) -> (Vec<RoleName>, Vec<Permission>) {
    let live = |role: &&RoleName| claims.until.get(*role).is_none_or(|end| now < Timestamp::from_seconds(*end));
    let record = evaluation.agent.and_then(|record| record.roles.as_ref());
    if let Some(facet) = record.filter(|facet| facet.revision > claims.rev) {
        return evaluation.roles.resolve(facet.value.iter().filter(|grant| grant.until.is_none_or(|end| now < end)));
    }
    let named = claims.roles.iter().filter(live);
    if claims.rev > evaluation.revision && claims.roles.iter().all(|role| live(&role)) {
        return (sorted(named.cloned()), sorted(claims.permissions.iter().cloned()));
    }
    define(named.filter_map(|name| evaluation.roles.get_by_name(name, claims.rev)))
}

fn define<'a>(definitions: impl Iterator<Item = &'a RoleDefinition>) -> (Vec<RoleName>, Vec<Permission>) {
    let by_name: BTreeMap<_, _> = definitions.map(|definition| (&definition.name, &definition.permissions)).collect();
    let permissions = by_name.values().flat_map(|permissions| permissions.iter().cloned());
    (by_name.keys().map(|name| (*name).clone()).collect(), sorted(permissions))
}

fn sorted<T: Ord>(items: impl Iterator<Item = T>) -> Vec<T> {
    items.collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests;
