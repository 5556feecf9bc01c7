//! A view: all data of one service that decisions need, as of one revision.
//!
//! `sync` creates views from messages, and `decide` reads them. The sidecar sends pings, and each pong (the answer) confirms that
//! the view was current when the ping was sent. Invariants: a view is immutable, and a change creates a new view; this module does
//! not read the clock.
//!
//! A view contains only agents that changed after the oldest valid token was issued. So its size depends on the rate of change, and
//! not on the number of agents.

mod resources;
mod views;

use countersign_identity::{
    AgentChanges, AgentHash, AgentHashKey, Claims, EvaluationContext, KeySet, Revision, RoleTable, ServiceId,
    SessionId, Timestamp, TokenId,
};
use imbl::HashMap;
use std::{
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

pub use resources::{Resource, Resources};
pub use views::{ApiKeyIndex, ViewConfirmation, Views};

/// The settings of a service that affect decisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceSettings {
    pub service: ServiceId,
    /// The required value of the claim `iss`.
    pub issuer: Arc<str>,
    /// Whether the service accepts unbound tokens, which were issued for no service.
    pub accepts_unbound: bool,
    /// The control plane's limit for the age of a confirmation. A view whose confirmation is older must not decide.
    pub max_staleness: Duration,
    /// The key of the hashes that name agents in messages and views, and of the roles in unbound tokens.
    pub agent_hash_key: AgentHashKey,
    /// The URLs under which clients reach the service. Decisions do not depend on them.
    pub resources: Resources,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevokedSubject {
    /// An access token, identified by its `jti`.
    Token(TokenId),
    /// All access tokens of a session, identified by their `sid`.
    Session(SessionId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Revocation {
    pub revision: Revision,
    pub subject: RevokedSubject,
}

/// The parts of a snapshot that only its first page contains.
#[derive(Debug, Clone)]
pub struct SnapshotHeader {
    pub settings: ServiceSettings,
    pub keys: KeySet,
    pub roles: RoleTable,
}

/// The changes since the previous view. A part that is `None` did not change.
#[derive(Debug, Clone, Default)]
pub struct Delta {
    /// The delta includes all changes up to this revision.
    pub revision: Revision,
    pub settings: Option<ServiceSettings>,
    pub keys: Option<KeySet>,
    pub roles: Option<RoleTable>,
    pub agents: Vec<(AgentHash, AgentChanges)>,
    pub revocations: Vec<Revocation>,
}

/// What a pong confirms. The control plane read its latest revision after the ping was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confirmation {
    /// The sidecar has received all changes up to this revision.
    pub revision: Revision,
    /// The sidecar may drop changes at or below this revision.
    pub floor: Revision,
    /// When the ping was sent, since boot: at this time, the view was current.
    pub ping_sent_at: Duration,
    /// The clock of the control plane, if the pong contains a usable time.
    pub server_clock: Option<ServerClock>,
}

/// The last confirmation of a copy on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoredContact {
    /// How long ago the answered ping was sent.
    pub age: Duration,
    pub since_boot: Duration,
    /// The clock of the control plane, if the copy contains its time.
    pub server_clock: Option<ServerClock>,
}

/// The clock of the control plane: the time that a pong told, and the sidecar's time since boot when its ping was sent.
///
/// Tokens and role assignments contain times of the control plane. The sidecar must not compare them with its own wall clock, which may
/// be wrong. So it takes the time in a pong and adds what has passed since then on its boot clock, which nobody adjusts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerClock {
    time: Timestamp,
    since_boot: Duration,
}

impl ServerClock {
    /// The control plane read `time` after the ping was sent. So this clock is fast by at most the round-trip time, and never slow: no
    /// token is accepted after its expiry.
    pub const fn new(time: Timestamp, ping_sent_at: Duration) -> Self {
        Self { time, since_boot: ping_sent_at }
    }

    /// Whether this clock can be right, although a pong that arrives now offers another one. The control plane read `offered.time`
    /// after the ping was sent and before now, so its time is now between `offered.time` and `offered.now`.
    pub fn agrees_with(self, offered: Self, since_boot: Duration) -> bool {
        (offered.time..=offered.now(since_boot)).contains(&self.now(since_boot))
    }

    pub fn now(self, since_boot: Duration) -> Timestamp {
        self.time.saturating_add(since_boot.saturating_sub(self.since_boot))
    }
}

/// Numbers the content of views, so that what was computed from a view can be used while its content stays the same. Every change
/// of a view, except a mere confirmation, gives it a number that no view of this process had before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentId(u64);

impl ContentId {
    /// A number that no content has yet.
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Relaxed))
    }
}

/// The authorization data of one service.
///
/// The maps are persistent: a clone shares the data of the original, and a change copies only the few nodes that lead to it. So a
/// new view costs little, even with a hundred thousand agents, while other threads still read the old one.
#[derive(Debug, Clone)]
pub struct View {
    content: ContentId,
    settings: ServiceSettings,
    revision: Revision,
    floor: Revision,
    confirmed_at: Option<Duration>,
    /// How long before the boot of the machine the view was confirmed; zero if it was confirmed after the boot.
    age_before_boot: Duration,
    /// Whether the data comes from a copy on disk, and no pong has confirmed it since.
    is_restored: bool,
    /// The maximum staleness in the sidecar's settings.
    staleness_limit: Option<Duration>,
    server_clock: Option<ServerClock>,
    keys: Arc<KeySet>,
    roles: Arc<RoleTable>,
    agents: HashMap<AgentHash, AgentChanges>,
    revoked_tokens: HashMap<TokenId, Revision>,
    revoked_sessions: HashMap<SessionId, Revision>,
}

/// The view of a snapshot whose last page has not arrived. It is not used for decisions.
#[derive(Debug)]
pub struct PartialView(View);

impl PartialView {
    /// Starts a snapshot with this revision. Its pages add agents and revocations.
    pub fn new(revision: Revision, floor: Revision, header: SnapshotHeader) -> Self {
        let SnapshotHeader { settings, keys, roles } = header;
        Self(View {
            content: ContentId::next(),
            settings,
            revision,
            floor,
            confirmed_at: None,
            age_before_boot: Duration::ZERO,
            is_restored: false,
            staleness_limit: None,
            server_clock: None,
            keys: Arc::new(keys),
            roles: Arc::new(roles),
            agents: HashMap::new(),
            revoked_tokens: HashMap::new(),
            revoked_sessions: HashMap::new(),
        })
    }

    /// Adds a page. Changes up to the floor of a page may be missing in it, so the snapshot gets the highest floor of its pages.
    pub fn add(&mut self, floor: Revision, agents: Vec<(AgentHash, AgentChanges)>, revocations: Vec<Revocation>) {
        self.0.floor = self.0.floor.max(floor);
        self.0.insert_changes(agents, revocations);
    }

    pub fn set_settings(&mut self, settings: ServiceSettings) {
        self.0.settings = settings;
    }

    pub const fn settings(&self) -> &ServiceSettings {
        self.0.settings()
    }

    pub const fn revision(&self) -> Revision {
        self.0.revision
    }

    /// The number of agents, and the number of revocations.
    #[cfg(test)]
    pub fn counts(&self) -> [usize; 2] {
        [self.0.agents.len(), self.0.revoked_tokens.len() + self.0.revoked_sessions.len()]
    }

    /// The view after the last page, which replaces the view `previous`.
    ///
    /// A snapshot does not prove that it is recent, so it only inherits a confirmation, and only from a view that is not newer. After a
    /// restore of the database, the snapshot is older than `previous`, and not confirmed.
    pub fn complete(self, previous: Option<&View>) -> View {
        let mut view = self.0;
        view.server_clock = previous.and_then(|previous| previous.server_clock);
        if let Some(previous) = previous.filter(|previous| previous.revision <= view.revision) {
            view.confirmed_at = previous.confirmed_at;
            view.age_before_boot = previous.age_before_boot;
            view.is_restored = previous.is_restored;
        }
        view
    }
}

impl View {
    #[must_use]
    pub fn apply(&self, delta: Delta) -> Self {
        let Delta { revision, settings, keys, roles, agents, revocations } = delta;
        let mut next = self.clone();
        next.content = ContentId::next();
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

    /// Creates the confirmed view. It drops the changes up to `confirmation.floor`, because no valid token is that old.
    #[must_use]
    pub fn confirm(&self, confirmation: Confirmation) -> Self {
        let Confirmation { revision, floor, ping_sent_at, server_clock } = confirmation;
        let mut next = self.clone();
        next.revision = revision.max(self.revision);
        next.confirmed_at = Some(self.confirmed_at.map_or(ping_sent_at, |earlier| earlier.max(ping_sent_at)));
        next.age_before_boot = Duration::ZERO;
        next.is_restored = false;
        next.server_clock = server_clock.or(self.server_clock);
        if next.revision > self.revision || floor > self.floor {
            next.content = ContentId::next();
        }
        if floor > self.floor {
            next.floor = floor;
            prune(&mut next.agents, |changes| has_facet_at_or_below(changes, floor), |changes| changes.prune(floor));
            prune(&mut next.revoked_tokens, |revision| *revision <= floor, |_| true);
            prune(&mut next.revoked_sessions, |revision| *revision <= floor, |_| true);
        }
        next
    }

    fn insert_changes(&mut self, agents: Vec<(AgentHash, AgentChanges)>, revocations: Vec<Revocation>) {
        for (agent, changes) in agents {
            self.agents.entry(agent).or_default().merge(changes);
        }
        for Revocation { revision, subject } in revocations {
            let latest = match subject {
                RevokedSubject::Token(token) => self.revoked_tokens.entry(token).or_default(),
                RevokedSubject::Session(session) => self.revoked_sessions.entry(session).or_default(),
            };
            *latest = revision.max(*latest);
        }
    }

    /// The view of a copy on disk, with the confirmation of the copy.
    ///
    /// An earlier process received the confirmation, perhaps before the boot of the machine. A time since boot cannot be before the
    /// boot, so the time between them shortens the maximum staleness of the view instead.
    #[must_use]
    pub fn restored(&self, contact: RestoredContact) -> Self {
        let RestoredContact { age, since_boot, server_clock } = contact;
        Self {
            confirmed_at: Some(since_boot.saturating_sub(age)),
            age_before_boot: age.saturating_sub(since_boot),
            is_restored: true,
            server_clock,
            ..self.clone()
        }
    }

    pub const fn is_restored(&self) -> bool {
        self.is_restored
    }

    /// The view with the maximum staleness in the sidecar's settings.
    #[must_use]
    pub const fn with_staleness_limit(mut self, limit: Option<Duration>) -> Self {
        self.staleness_limit = limit;
        self
    }

    /// The time of the control plane. Until the first pong, it is the wall clock of the sidecar.
    pub fn now(&self, since_boot: Duration, wall_clock: impl FnOnce() -> Timestamp) -> Timestamp {
        self.server_clock.map_or_else(wall_clock, |clock| clock.now(since_boot))
    }

    /// The clock of the control plane; `None` before the first pong that told a time.
    pub const fn server_clock(&self) -> Option<ServerClock> {
        self.server_clock
    }

    /// The data that the evaluation of a token with these claims needs.
    pub fn evaluation_context(&self, claims: &Claims) -> EvaluationContext<'_> {
        EvaluationContext {
            service: self.settings.service,
            issuer: &self.settings.issuer,
            accepts_unbound: self.settings.accepts_unbound,
            revision: self.revision,
            floor: self.floor,
            roles: &self.roles,
            agent_hash_key: &self.settings.agent_hash_key,
            agent: self.agents.get(&self.settings.agent_hash_key.hash(claims.sub)),
            revoked: self.revoked_tokens.contains_key(&claims.jti) || self.revoked_sessions.contains_key(&claims.sid),
        }
    }

    pub const fn content(&self) -> ContentId {
        self.content
    }

    pub const fn service(&self) -> ServiceId {
        self.settings.service
    }

    pub const fn settings(&self) -> &ServiceSettings {
        &self.settings
    }

    pub fn keys(&self) -> &KeySet {
        &self.keys
    }

    pub fn roles(&self) -> &RoleTable {
        &self.roles
    }

    /// The changes of agents, in no order.
    pub fn agents(&self) -> impl Iterator<Item = (AgentHash, &AgentChanges)> {
        self.agents.iter().map(|(agent, changes)| (*agent, changes))
    }

    /// The revocations, in no order.
    pub fn revocations(&self) -> impl Iterator<Item = Revocation> + '_ {
        let tokens = self.revoked_tokens.iter().map(|(token, revision)| (RevokedSubject::Token(*token), *revision));
        let sessions =
            self.revoked_sessions.iter().map(|(session, revision)| (RevokedSubject::Session(*session), *revision));
        tokens.chain(sessions).map(|(subject, revision)| Revocation { revision, subject })
    }

    /// The view includes all changes up to this revision.
    pub const fn revision(&self) -> Revision {
        self.revision
    }

    /// Tokens with a lower `rev` are refused.
    pub const fn floor(&self) -> Revision {
        self.floor
    }

    /// When the last answered ping was sent, since boot. `None` if no pong has confirmed that the view is current.
    pub const fn confirmed_at(&self) -> Option<Duration> {
        self.confirmed_at
    }

    /// The time since the confirmation; `None` if the view is not confirmed.
    pub fn age(&self, since_boot: Duration) -> Option<Duration> {
        self.confirmed_at.map(|at| since_boot.saturating_sub(at) + self.age_before_boot)
    }

    /// The time since [`Self::confirmed_at`] after which checks are denied. It is shorter than [`Self::max_age`] if the view was confirmed
    /// before the boot of the machine.
    pub fn max_staleness(&self) -> Duration {
        self.max_age().saturating_sub(self.age_before_boot)
    }

    /// The [`Self::age`] at which checks are denied: the smaller limit of the control plane and the sidecar.
    pub fn max_age(&self) -> Duration {
        self.settings.max_staleness.min(self.staleness_limit.unwrap_or(Duration::MAX))
    }

    /// The number of agents with changes in the view.
    pub fn agent_count(&self) -> usize {
        self.agents.len()
    }
}

/// Calls `prune` for each old value, and removes the value if `prune` returns true.
fn prune<K, V>(map: &mut HashMap<K, V>, is_old: impl Fn(&V) -> bool, prune: impl Fn(&mut V) -> bool)
where
    K: Copy + Eq + Hash,
    V: Clone,
{
    let old: Vec<_> = map.iter().filter(|(_, value)| is_old(value)).map(|(key, _)| *key).collect();
    for key in old {
        if map.get_mut(&key).is_some_and(&prune) {
            map.remove(&key);
        }
    }
}

fn has_facet_at_or_below(changes: &AgentChanges, floor: Revision) -> bool {
    let AgentChanges { roles, trust, status } = changes;
    roles.as_ref().is_some_and(|facet| facet.revision <= floor)
        || trust.as_ref().is_some_and(|facet| facet.revision <= floor)
        || status.as_ref().is_some_and(|facet| facet.revision <= floor)
}

#[cfg(test)]
pub mod tests;
