//! What is known of one service at one revision: everything a decision needs, and nothing that changes.
//!
//! Neighbours: `sync` makes views out of messages, `decide` asks them. The rule of the room: a view is
//! never changed, only followed by the next one; and nobody here asks for the time.
//!
//! The agents remembered are those that changed since the oldest token that can still be alive was
//! issued, so a view grows with the rate of change and not with the number of agents.

mod remembered;
mod views;

use countersign_identity::{
    AgentChanges, AgentId, Claims, EvaluationContext, KeySet, Revision, RoleTable, ServiceId, SessionId, TokenId,
};
use remembered::Remembered;
use std::{sync::Arc, time::Duration};

pub use views::{Slot, Views};

/// How the service wants its tokens judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// The service.
    pub service: ServiceId,
    /// The `iss` of the tokens to believe.
    pub issuer: Arc<str>,
    /// Whether tokens that are bound to no service are accepted.
    pub accepts_unbound: bool,
    /// The age from which the view must not be used.
    pub max_staleness: Duration,
}

/// A token or a login that is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dead {
    /// One access token.
    Token(TokenId),
    /// A login, and so all tokens refreshed from it.
    Session(SessionId),
}

/// A death and the revision at which it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Revoked {
    /// When.
    pub revision: Revision,
    /// What.
    pub what: Dead,
}

/// A whole view, as a snapshot states it.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Everything up to here is in it.
    pub revision: Revision,
    /// Nothing above here is forgotten.
    pub floor: Revision,
    /// How the service wants its tokens judged.
    pub terms: Terms,
    /// The keys whose tokens are believed.
    pub keys: KeySet,
    /// All roles of the service.
    pub roles: RoleTable,
    /// What changed of agents above the floor.
    pub agents: Vec<(AgentId, AgentChanges)>,
    /// What died above the floor.
    pub revoked: Vec<Revoked>,
}

/// What changed since the view at hand. Absent parts did not.
#[derive(Debug, Clone, Default)]
pub struct Delta {
    /// Everything up to here is in it.
    pub revision: Revision,
    /// How the service wants its tokens judged.
    pub terms: Option<Terms>,
    /// The keys whose tokens are believed, all of them.
    pub keys: Option<KeySet>,
    /// The roles of the service, all of them.
    pub roles: Option<RoleTable>,
    /// What changed of agents.
    pub agents: Vec<(AgentId, AgentChanges)>,
    /// What died.
    pub revoked: Vec<Revoked>,
}

/// A fresh read of the newest revision, asked for at a known instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confirmation {
    /// Everything up to here has been received.
    pub revision: Revision,
    /// What is stamped at or below this may be forgotten.
    pub floor: Revision,
    /// When the question was sent, on the boot-time clock: the answer is at least as young.
    pub asked_at: Duration,
}

/// What is known of one service. Cloning it is cheap: the parts are shared.
#[derive(Debug, Clone)]
pub struct View {
    terms: Terms,
    revision: Revision,
    floor: Revision,
    confirmed_at: Option<Duration>,
    keys: Arc<KeySet>,
    roles: Arc<RoleTable>,
    agents: Remembered<AgentId, AgentChanges>,
    tokens: Remembered<TokenId, Revision>,
    sessions: Remembered<SessionId, Revision>,
}

impl View {
    /// The view that a snapshot states, after `before`.
    ///
    /// A snapshot proves no freshness by itself. It inherits that of the view it goes beyond; one that
    /// goes back, as after a restored database, has to be confirmed first.
    pub fn of(snapshot: Snapshot, before: Option<&Self>) -> Self {
        let Snapshot { revision, floor, terms, keys, roles, agents, revoked } = snapshot;
        let mut view = Self {
            terms,
            revision,
            floor,
            confirmed_at: before.filter(|before| before.revision <= revision).and_then(|before| before.confirmed_at),
            keys: Arc::new(keys),
            roles: Arc::new(roles),
            agents: Remembered::default(),
            tokens: Remembered::default(),
            sessions: Remembered::default(),
        };
        view.remember(agents, revoked);
        view
    }

    /// The view after a change.
    #[must_use]
    pub fn apply(&self, delta: Delta) -> Self {
        let Delta { revision, terms, keys, roles, agents, revoked } = delta;
        let mut next = self.clone();
        next.revision = revision.max(self.revision);
        if let Some(terms) = terms {
            next.terms = terms;
        }
        if let Some(keys) = keys {
            next.keys = Arc::new(keys);
        }
        if let Some(roles) = roles {
            next.roles = Arc::new(roles);
        }
        next.remember(agents, revoked);
        next
    }

    /// The view after a confirmation: younger, and without what no living token needs.
    #[must_use]
    pub fn confirm(&self, confirmation: Confirmation) -> Self {
        let Confirmation { revision, floor, asked_at } = confirmation;
        let mut next = self.clone();
        next.revision = revision.max(self.revision);
        next.confirmed_at = Some(self.confirmed_at.map_or(asked_at, |earlier| earlier.max(asked_at)));
        if floor > self.floor {
            next.floor = floor;
            next.agents.forget(|record| touches(record, floor), |record| record.prune(floor));
            next.tokens.forget(|revision| *revision <= floor, |_| true);
            next.sessions.forget(|revision| *revision <= floor, |_| true);
        }
        next
    }

    fn remember(&mut self, agents: Vec<(AgentId, AgentChanges)>, revoked: Vec<Revoked>) {
        for (agent, record) in agents {
            self.agents.entry(agent).or_default().merge(record);
        }
        for Revoked { revision, what } in revoked {
            let stamp = match what {
                Dead::Token(token) => self.tokens.entry(token).or_default(),
                Dead::Session(session) => self.sessions.entry(session).or_default(),
            };
            *stamp = revision.max(*stamp);
        }
    }

    /// What bears on a token with these claims.
    pub fn evaluation_context(&self, claims: &Claims) -> EvaluationContext<'_> {
        EvaluationContext {
            service: self.terms.service,
            issuer: &self.terms.issuer,
            accepts_unbound: self.terms.accepts_unbound,
            revision: self.revision,
            floor: self.floor,
            roles: &self.roles,
            agent: self.agents.get(claims.sub),
            revoked: self.tokens.get(claims.jti).is_some() || self.sessions.get(claims.sid).is_some(),
        }
    }

    /// The service.
    pub const fn service(&self) -> ServiceId {
        self.terms.service
    }

    /// How the service wants its tokens judged.
    pub const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The keys whose tokens are believed.
    pub fn keys(&self) -> &KeySet {
        &self.keys
    }

    /// The revision up to which everything is known.
    pub const fn revision(&self) -> Revision {
        self.revision
    }

    /// When the question was sent whose answer last confirmed this view; `None` before the first answer.
    pub const fn confirmed_at(&self) -> Option<Duration> {
        self.confirmed_at
    }

    /// How many agents are remembered.
    pub fn remembered_agents(&self) -> usize {
        self.agents.len()
    }
}

/// True if a facet of the record is stamped at or below the floor.
fn touches(record: &AgentChanges, floor: Revision) -> bool {
    let AgentChanges { roles, trust, status } = record;
    roles.as_ref().is_some_and(|facet| facet.revision <= floor)
        || trust.as_ref().is_some_and(|facet| facet.revision <= floor)
        || status.as_ref().is_some_and(|facet| facet.revision <= floor)
}

#[cfg(test)]
mod tests;
