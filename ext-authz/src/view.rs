//! The local copy of a service's authorization data at one revision: everything that a decision needs.
//!
//! `sync` creates views from messages, `decide` reads them. Invariant: a view is immutable; a change creates the next
//! view. Nothing here reads the clock.
//!
//! A view contains only the agents that changed since the oldest token that can still be valid was issued, so its size
//! depends on the rate of change and not on the number of agents.

mod sharded_map;
mod views;

use countersign_identity::{
    AgentChanges, AgentId, Claims, EvaluationContext, KeySet, Revision, RoleTable, ServiceId, SessionId, TokenId,
};
use sharded_map::ShardedMap;
use std::{sync::Arc, time::Duration};

pub use views::{ApiKeyIndex, Views};

/// The settings of a service that affect decisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceSettings {
    /// The service.
    pub service: ServiceId,
    /// The `iss` of accepted tokens.
    pub issuer: Arc<str>,
    /// Whether unbound tokens are accepted.
    pub accepts_unbound: bool,
    /// The age from which the view must not be used.
    pub max_staleness: Duration,
}

/// What was revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevokedSubject {
    /// One access token.
    Token(TokenId),
    /// A session, and so all its tokens.
    Session(SessionId),
}

/// The revocation of a token or session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Revocation {
    /// The revision of the revocation.
    pub revision: Revision,
    /// The revoked token or session.
    pub subject: RevokedSubject,
}

/// A complete view, as received from the control plane.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// All changes up to this revision are included.
    pub revision: Revision,
    /// All changes above this revision are included.
    pub floor: Revision,
    /// The settings of the service.
    pub settings: ServiceSettings,
    /// The keys whose tokens are accepted.
    pub keys: KeySet,
    /// All roles of the service.
    pub roles: RoleTable,
    /// Changes of agents above the floor.
    pub agents: Vec<(AgentId, AgentChanges)>,
    /// Revocations above the floor.
    pub revocations: Vec<Revocation>,
}

/// The changes since the current view. Absent parts did not change.
#[derive(Debug, Clone, Default)]
pub struct Delta {
    /// All changes up to this revision are included.
    pub revision: Revision,
    /// The settings of the service.
    pub settings: Option<ServiceSettings>,
    /// All keys whose tokens are accepted.
    pub keys: Option<KeySet>,
    /// All roles of the service.
    pub roles: Option<RoleTable>,
    /// Changes of agents.
    pub agents: Vec<(AgentId, AgentChanges)>,
    /// New revocations.
    pub revocations: Vec<Revocation>,
}

/// The answer to a ping: the control plane read its latest revision after the ping was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confirmation {
    /// All changes up to this revision were received.
    pub revision: Revision,
    /// Changes at or below this revision may be dropped.
    pub floor: Revision,
    /// When the ping was sent, since boot. The answer is at least as recent.
    pub ping_sent_at: Duration,
}

/// The authorization data of one service. Cloning is cheap, because views share their parts.
#[derive(Debug, Clone)]
pub struct View {
    settings: ServiceSettings,
    revision: Revision,
    floor: Revision,
    confirmed_at: Option<Duration>,
    keys: Arc<KeySet>,
    roles: Arc<RoleTable>,
    agents: ShardedMap<AgentId, AgentChanges>,
    tokens: ShardedMap<TokenId, Revision>,
    sessions: ShardedMap<SessionId, Revision>,
}

impl View {
    /// The view of a snapshot that replaces `previous`.
    ///
    /// A snapshot alone does not prove that it is recent. It inherits the confirmation of a previous view that is not
    /// newer. If its revision is lower, as after the database was restored, it must be confirmed first.
    pub fn from_snapshot(snapshot: Snapshot, previous: Option<&Self>) -> Self {
        let Snapshot { revision, floor, settings, keys, roles, agents, revocations } = snapshot;
        let mut view = Self {
            settings,
            revision,
            floor,
            confirmed_at: previous.filter(|view| view.revision <= revision).and_then(|view| view.confirmed_at),
            keys: Arc::new(keys),
            roles: Arc::new(roles),
            agents: ShardedMap::default(),
            tokens: ShardedMap::default(),
            sessions: ShardedMap::default(),
        };
        view.insert_changes(agents, revocations);
        view
    }

    /// The view after a change.
    #[must_use]
    pub fn apply(&self, delta: Delta) -> Self {
        let Delta { revision, settings, keys, roles, agents, revocations } = delta;
        let mut next = self.clone();
        next.revision = revision.max(self.revision);
        if let Some(settings) = settings {
            next.settings = settings;
        }
        if let Some(keys) = keys {
            next.keys = Arc::new(keys);
        }
        if let Some(roles) = roles {
            next.roles = Arc::new(roles);
        }
        next.insert_changes(agents, revocations);
        next
    }

    /// The view after a confirmation, without the changes that no valid token needs any more.
    #[must_use]
    pub fn confirm(&self, confirmation: Confirmation) -> Self {
        let Confirmation { revision, floor, ping_sent_at } = confirmation;
        let mut next = self.clone();
        next.revision = revision.max(self.revision);
        next.confirmed_at = Some(self.confirmed_at.map_or(ping_sent_at, |earlier| earlier.max(ping_sent_at)));
        if floor > self.floor {
            next.floor = floor;
            next.agents.prune(|changes| has_facet_up_to(changes, floor), |changes| changes.prune(floor));
            next.tokens.prune(|revision| *revision <= floor, |_| true);
            next.sessions.prune(|revision| *revision <= floor, |_| true);
        }
        next
    }

    fn insert_changes(&mut self, agents: Vec<(AgentId, AgentChanges)>, revocations: Vec<Revocation>) {
        for (agent, changes) in agents {
            self.agents.entry(agent).or_default().merge(changes);
        }
        for Revocation { revision, subject } in revocations {
            let latest = match subject {
                RevokedSubject::Token(token) => self.tokens.entry(token).or_default(),
                RevokedSubject::Session(session) => self.sessions.entry(session).or_default(),
            };
            *latest = revision.max(*latest);
        }
    }

    /// The data that decides about a token with these claims.
    pub fn evaluation_context(&self, claims: &Claims) -> EvaluationContext<'_> {
        EvaluationContext {
            service: self.settings.service,
            issuer: &self.settings.issuer,
            accepts_unbound: self.settings.accepts_unbound,
            revision: self.revision,
            floor: self.floor,
            roles: &self.roles,
            agent: self.agents.get(claims.sub),
            revoked: self.tokens.get(claims.jti).is_some() || self.sessions.get(claims.sid).is_some(),
        }
    }

    /// The service.
    pub const fn service(&self) -> ServiceId {
        self.settings.service
    }

    /// The settings of the service.
    pub const fn settings(&self) -> &ServiceSettings {
        &self.settings
    }

    /// The keys whose tokens are accepted.
    pub fn keys(&self) -> &KeySet {
        &self.keys
    }

    /// All changes up to this revision are included.
    pub const fn revision(&self) -> Revision {
        self.revision
    }

    /// When the last answered ping was sent, since boot; `None` before the first answer.
    pub const fn confirmed_at(&self) -> Option<Duration> {
        self.confirmed_at
    }

    /// The number of agents in the view.
    pub fn agent_count(&self) -> usize {
        self.agents.len()
    }
}

fn has_facet_up_to(changes: &AgentChanges, floor: Revision) -> bool {
    let AgentChanges { roles, trust, status } = changes;
    roles.as_ref().is_some_and(|facet| facet.revision <= floor)
        || trust.as_ref().is_some_and(|facet| facet.revision <= floor)
        || status.as_ref().is_some_and(|facet| facet.revision <= floor)
}

#[cfg(test)]
mod tests;
