//! Decides what a signed token grants at a service now.
//!
//! A token contains roles and trust as of its revision `rev`, and [`AgentChanges`] contains later changes. Invariant: for each
//! facet of an agent (roles, trust, status), the value with the higher revision wins. The times of changes are not compared.

use crate::{
    AgentHashKey, AgentId, Audience, Claims, Permission, Reason, Refusal, Revision, RoleId, RoleName, ServiceId,
    Timestamp, TokenId, TrustScore,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

/// The tolerance for clock skew in `nbf` and `iat`. `exp` is checked without tolerance.
pub const LEEWAY: Duration = Duration::from_secs(30);

/// The status of an agent. `Revoked` is permanent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AgentStatus {
    /// The agent may log in, and its tokens are accepted.
    Active,
    /// The agent's logins and tokens are refused until it is reactivated.
    Suspended,
    /// The agent's logins and tokens are refused permanently.
    Revoked,
}

/// A value and the revision of its last change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned<T> {
    /// The revision of the last change.
    pub revision: Revision,
    /// The value after the last change.
    pub value: T,
}

/// A role assigned to an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoleGrant {
    /// The assigned role.
    pub role: RoleId,
    /// The time at which the assignment ends; `None` for a permanent assignment.
    pub until: Option<Timestamp>,
}

/// An agent's status and cutoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusWithCutoff {
    /// The status of the agent.
    pub status: AgentStatus,
    /// Tokens with a `rev` below this revision are revoked, even after the agent is reactivated.
    pub cutoff: Revision,
}

/// The latest change of each facet of an agent, as visible to one service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentChanges {
    /// The roles of the agent at the service.
    pub roles: Option<Versioned<Vec<RoleGrant>>>,
    /// The trust score of the agent.
    pub trust: Option<Versioned<TrustScore>>,
    /// The status and the cutoff of the agent.
    pub status: Option<Versioned<StatusWithCutoff>>,
}

impl AgentChanges {
    /// Replaces each facet of `self` by the facet of `other`, unless the facet of `self` has a higher revision.
    pub fn merge(&mut self, other: Self) {
        let Self { roles, trust, status } = other;
        replace_if_newer(&mut self.roles, roles);
        replace_if_newer(&mut self.trust, trust);
        replace_if_newer(&mut self.status, status);
    }

    /// Drops every facet whose revision is at or below `floor`. Returns true if no facet is left.
    pub fn prune(&mut self, floor: Revision) -> bool {
        self.roles.take_if(|facet| facet.revision <= floor);
        self.trust.take_if(|facet| facet.revision <= floor);
        self.status.take_if(|facet| facet.revision <= floor);
        *self == Self::default()
    }
}

fn replace_if_newer<T>(current: &mut Option<Versioned<T>>, other: Option<Versioned<T>>) {
    if let Some(other) = other
        && current.as_ref().is_none_or(|current| current.revision <= other.revision)
    {
        *current = Some(other);
    }
}

/// The definition of a role by its service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleDefinition {
    /// The id of the role.
    pub id: RoleId,
    /// The name of the role, which is unique per service and never changes.
    pub name: RoleName,
    /// The permissions that the role grants.
    pub permissions: Vec<Permission>,
    /// The revision at which the role was created. An older token with this role name means a deleted role of the same name.
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

    /// All roles, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &RoleDefinition> {
        self.by_id.values()
    }

    /// The role that a token with this `rev` means by `name`: never a role that was created later.
    fn get_by_name(&self, name: &RoleName, rev: Revision) -> Option<&RoleDefinition> {
        self.get(*self.by_name.get(name)?).filter(|definition| definition.created_revision <= rev)
    }
}

/// The data, as of one revision, that the evaluation of one token at a service needs.
#[derive(Debug, Clone, Copy)]
pub struct EvaluationContext<'a> {
    /// The service that the request is for.
    pub service: ServiceId,
    /// The required `iss` claim.
    pub issuer: &'a str,
    /// Whether the service accepts unbound tokens, which were issued for no service.
    pub accepts_unbound: bool,
    /// This context includes all changes up to this revision.
    pub revision: Revision,
    /// Changes at or below this revision may have been deleted. Tokens with a lower `rev` are refused.
    pub floor: Revision,
    /// The roles of the service.
    pub roles: &'a RoleTable,
    /// The key of the service, with which it finds its roles in an unbound token.
    pub agent_hash_key: &'a AgentHashKey,
    /// The changes of the token's agent, except those that were deleted (see `floor`).
    pub agent: Option<&'a AgentChanges>,
    /// Whether the token or its session was revoked.
    pub revoked: bool,
}

/// A verified agent with its current roles, permissions and trust.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedIdentity {
    /// The id of the agent.
    pub agent: AgentId,
    /// The display name of the agent.
    pub name: String,
    /// The agent's current roles at the service, sorted.
    pub roles: Vec<RoleName>,
    /// The permissions that the roles grant, sorted and distinct. If the client asked for a scope, only those in the scope.
    pub permissions: Vec<Permission>,
    /// The current trust score of the agent.
    pub trust_score: TrustScore,
    /// The id of the presented token.
    pub token: TokenId,
    /// When the identity ends if nothing changes: when the token expires, or the first of `roles` ends, whichever is earlier.
    pub valid_until: Timestamp,
}

/// The current roles of an agent at a service.
struct CurrentRoles {
    names: Vec<RoleName>,
    permissions: Vec<Permission>,
    /// When the first of these roles ends; `None` if all are permanent.
    until: Option<Timestamp>,
}

impl VerifiedIdentity {
    /// Evaluates signed claims, or returns the first reason to refuse them. The order of the checks is: issuer, client, times,
    /// audience, floor, the agent's status and cutoff, revocations. The client (`client_id`) must be the agent (`sub`).
    pub fn evaluate(claims: &Claims, context: &EvaluationContext<'_>, now: Timestamp) -> Result<Self, Refusal> {
        check_issuer_and_times(claims, context.issuer, now)?;
        let audience = check_audience(claims, context)?;
        check_not_revoked(claims, context)?;
        let CurrentRoles { names, mut permissions, until } = current_roles(claims, audience, context, now);
        if let Some(scope) = &claims.requested_scope {
            permissions.retain(|permission| scope.contains(permission));
        }
        let trust = context.agent.and_then(|changes| changes.trust.as_ref());
        Ok(Self {
            agent: claims.sub,
            name: claims.name.clone(),
            roles: names,
            permissions,
            trust_score: trust
                .filter(|facet| facet.revision > claims.rev)
                .map_or(claims.trust_score, |facet| facet.value),
            token: claims.jti,
            valid_until: until.map_or(claims.expires_at(), |until| until.min(claims.expires_at())),
        })
    }
}

fn check_issuer_and_times(claims: &Claims, issuer: &str, now: Timestamp) -> Result<(), Refusal> {
    if claims.iss != issuer || claims.client_id.is_some_and(|client| client != claims.sub) {
        return Err(Reason::TokenClaimsInvalid.into());
    }
    if now >= claims.expires_at() {
        return Err(Refusal::expired(claims.expires_at()));
    }
    let latest_start = now.saturating_add(LEEWAY);
    if Timestamp::from_seconds(claims.nbf) > latest_start || Timestamp::from_seconds(claims.iat) > latest_start {
        return Err(Reason::TokenNotYetValid.into());
    }
    Ok(())
}

fn check_audience(claims: &Claims, context: &EvaluationContext<'_>) -> Result<Audience, Refusal> {
    match claims.audience() {
        Some(audience @ Audience::Service(service)) if service == context.service => Ok(audience),
        Some(audience @ Audience::Unbound) if context.accepts_unbound => Ok(audience),
        Some(Audience::Unbound) => Err(Reason::TokenUnbound.into()),
        _ => Err(Reason::TokenAudienceMismatch.into()),
    }
}

fn check_not_revoked(claims: &Claims, context: &EvaluationContext<'_>) -> Result<(), Refusal> {
    if claims.rev < context.floor {
        return Err(Reason::TokenSuperseded.into());
    }
    if let Some(facet) = context.agent.and_then(|changes| changes.status.as_ref()) {
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
    if context.revoked { Err(Reason::TokenRevoked.into()) } else { Ok(()) }
}

/// The roles that the agent has now, and their permissions:
///
/// 1. If the agent's roles changed after the token was issued, the change counts. Deleted roles grant nothing.
/// 2. Otherwise, the roles count that the token contains and that have not ended. An unbound token tells only which roles of the table
///    the agent held. If it is newer than our data, it may contain roles that we do not know yet: these do not count yet.
/// 3. If a token for the service is newer than our data and none of its roles has ended, its claims count: our data may lack its roles.
/// 4. Otherwise, the roles of a token for the service count that still exist, with the permissions that they grant now.
fn current_roles(claims: &Claims, audience: Audience, context: &EvaluationContext<'_>, now: Timestamp) -> CurrentRoles {
    let change = context.agent.and_then(|changes| changes.roles.as_ref());
    if let Some(change) = change.filter(|change| change.revision > claims.rev) {
        return granted_roles(change.value.iter().copied(), context.roles, now);
    }
    match audience {
        Audience::Unbound => {
            let find = |definition: &RoleDefinition| claims.find_grant(context.agent_hash_key, definition.id);
            granted_roles(context.roles.iter().filter_map(find), context.roles, now)
        }
        Audience::Service(_) => claimed_roles(claims, context, now),
    }
}

/// Those of the granted roles that exist and have not ended.
fn granted_roles(grants: impl Iterator<Item = RoleGrant>, roles: &RoleTable, now: Timestamp) -> CurrentRoles {
    let active = grants.filter(|grant| grant.until.is_none_or(|end| now < end));
    let defined: Vec<_> = active.filter_map(|grant| Some((roles.get(grant.role)?, grant.until))).collect();
    let until = defined.iter().filter_map(|(_, until)| *until).min();
    let (names, permissions) = names_and_permissions(defined.iter().map(|(definition, _)| *definition));
    CurrentRoles { names, permissions, until }
}

/// The roles that a token for the service names.
fn claimed_roles(claims: &Claims, context: &EvaluationContext<'_>, now: Timestamp) -> CurrentRoles {
    let end = |role: &RoleName| claims.until.get(role).copied().map(Timestamp::from_seconds);
    let is_active = |role: &&RoleName| end(role).is_none_or(|end| now < end);
    if claims.rev > context.revision && claims.roles.iter().all(|role| is_active(&role)) {
        let (names, permissions) = (sorted(&claims.roles), sorted(&claims.permissions));
        return CurrentRoles { names, permissions, until: claims.roles.iter().filter_map(end).min() };
    }
    let active = claims.roles.iter().filter(is_active);
    let defined = active.filter_map(|name| context.roles.get_by_name(name, claims.rev));
    let (names, permissions) = names_and_permissions(defined);
    let until = names.iter().filter_map(end).min();
    CurrentRoles { names, permissions, until }
}

/// The names of roles and the permissions that they grant, sorted and each once.
pub fn names_and_permissions<'a>(
    definitions: impl Iterator<Item = &'a RoleDefinition>,
) -> (Vec<RoleName>, Vec<Permission>) {
    let by_name: BTreeMap<_, _> = definitions.map(|definition| (&definition.name, &definition.permissions)).collect();
    let permissions = by_name.values().copied().flatten();
    (by_name.keys().map(|name| (*name).clone()).collect(), sorted(permissions))
}

/// The items in order, each once.
fn sorted<'a, T: Ord + Clone + 'a>(items: impl IntoIterator<Item = &'a T>) -> Vec<T> {
    items.into_iter().collect::<BTreeSet<_>>().into_iter().cloned().collect()
}

#[cfg(test)]
mod tests;
