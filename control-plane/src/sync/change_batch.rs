//! Reads the current state of everything that changed in a range of revisions, by recipient. The roles, the trust score and the
//! status of an agent each appear once per recipient, with the revision of their last change.

use crate::{
    domain::change::{Change, FeedEntry, FeedPosition, Recipients, RevisionRange},
    store::{
        Conn, Store, StoreError,
        agents::{self, AgentState},
        assignments,
        feed::{self, RecipientFilter},
        roles, services, signing_keys,
    },
};
use countersign_identity::{
    AgentChanges, AgentId, Revision, RoleDefinition, RoleGrant, ServiceId, SessionId, TokenId, Versioned,
};
use std::collections::{BTreeMap, HashMap};

/// A revoked token or session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RevokedSubject {
    /// An access token.
    Token(TokenId),
    /// A session, with all its access tokens.
    Session(SessionId),
}

/// Changed data.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Changes {
    /// Changes of agents.
    pub agents: BTreeMap<AgentId, AgentChanges>,
    /// Revoked tokens and sessions.
    pub revoked: BTreeMap<RevokedSubject, Revision>,
    /// All roles of the service, if a role definition changed.
    pub definitions: Option<Vec<RoleDefinition>>,
    /// Whether the service accepts unbound tokens, if the settings of the service changed.
    pub accepts_unbound: Option<bool>,
    /// The public keys of all live signing keys as SEC 1 points, if any key changed.
    pub keys: Option<Vec<Vec<u8>>>,
    /// Whether the service was deleted.
    pub is_deleted: bool,
}

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The changes for the sidecars of a deleted service: without keys, no token is valid, also for sidecars of previous
    /// versions. Contains nothing about agents.
    pub fn of_deleted_service() -> Self {
        Self {
            is_deleted: true,
            accepts_unbound: Some(false),
            keys: Some(Vec::new()),
            definitions: Some(Vec::new()),
            ..Self::default()
        }
    }

    /// Adds other changes of the same range of revisions; `other` takes precedence.
    pub fn merge(&mut self, other: &Self) {
        let Self { agents, revoked, definitions, accepts_unbound, keys, is_deleted } = other;
        for (agent, changes) in agents {
            self.agents.entry(*agent).or_default().merge(changes.clone());
        }
        for (subject, revision) in revoked {
            let latest = self.revoked.entry(*subject).or_default();
            *latest = (*latest).max(*revision);
        }
        self.definitions = definitions.clone().or_else(|| self.definitions.take());
        self.accepts_unbound = accepts_unbound.or(self.accepts_unbound);
        self.keys = keys.clone().or_else(|| self.keys.take());
        self.is_deleted |= is_deleted;
    }
}

/// The revisions of a batch of changes.
#[derive(Debug, Clone, Copy)]
pub struct BatchRange {
    /// The batch contains all changes above this revision.
    pub since: Revision,
    /// The batch contains all changes up to this revision, which was the newest when the batch was read.
    pub revision: Revision,
    /// The revision floor: changes up to this revision were deleted from the change feed.
    pub floor: Revision,
}

/// Everything that changed in a range of revisions, by recipient.
#[derive(Debug)]
pub struct ChangeBatch {
    /// The range of revisions.
    pub range: BatchRange,
    /// Changes for all services.
    pub all_services: Changes,
    /// Changes for the services that accept unbound tokens.
    pub unbound_tokens: Changes,
    /// Changes for one service each.
    pub by_service: BTreeMap<ServiceId, Changes>,
}

impl ChangeBatch {
    fn new(range: BatchRange) -> Self {
        let (all_services, unbound_tokens) = (Changes::default(), Changes::default());
        Self { range, all_services, unbound_tokens, by_service: BTreeMap::new() }
    }

    /// The changes that one service receives.
    pub fn changes_for(&self, filter: RecipientFilter) -> Changes {
        let mut changes = self.all_services.clone();
        if filter.includes_unbound {
            changes.merge(&self.unbound_tokens);
        }
        if let Some(own) = self.by_service.get(&filter.service) {
            changes.merge(own);
        }
        changes
    }

    fn changes_of(&mut self, recipients: Recipients) -> Option<&mut Changes> {
        match recipients {
            Recipients::AllServices => Some(&mut self.all_services),
            Recipients::UnboundTokens => Some(&mut self.unbound_tokens),
            Recipients::Service(service) => Some(self.by_service.entry(service).or_default()),
            Recipients::NoService => None,
        }
    }
}

/// The sidecar that data is read for.
#[derive(Debug, Clone, Copy)]
pub struct ReadScope {
    /// The service of the sidecar.
    pub service: ServiceId,
    /// Whether the sidecar may receive changes that concern unbound tokens, if the service accepts these. A sidecar of the
    /// previous version may not, because it receives plain ids of agents.
    pub allows_unbound: bool,
}

/// The data that one service receives when its sidecar connects.
#[derive(Debug)]
pub struct InitialChanges {
    /// The range of revisions.
    pub range: BatchRange,
    /// Whether the service accepts unbound tokens.
    pub accepts_unbound: bool,
    /// The changes in the range, always with the settings of the service.
    pub changes: Changes,
}

/// Reads the changes above a revision for all services. If changes above the revision were deleted, `since` of the batch is
/// higher than the revision.
pub async fn read_all(store: &Store, revision: Revision) -> Result<ChangeBatch, StoreError> {
    let mut read = store.read().await?;
    let conn = read.conn();
    let FeedPosition { revision: newest, floor, cutoff: _ } = feed::position(conn).await?;
    collect_changes(conn, BatchRange { since: revision.max(floor), revision: newest, floor }, None).await
}

/// Reads the changes above a revision for one service. Returns `None` if a sidecar cannot resume at the revision and needs a
/// snapshot: the change feed does not contain the revision, or the service has begun to accept unbound tokens since, and the
/// sidecar did not receive the earlier changes that concern unbound tokens.
pub async fn read_since(
    store: &Store,
    scope: ReadScope,
    revision: Revision,
) -> Result<Option<InitialChanges>, StoreError> {
    let mut read = store.read().await?;
    let conn = read.conn();
    let position = feed::position(conn).await?;
    if !feed::can_resume_at(conn, position, revision).await? {
        return Ok(None);
    }
    let range = BatchRange { since: revision, revision: position.revision, floor: position.floor };
    let initial = collect_initial(conn, scope, range).await?;
    let began_to_accept = scope.allows_unbound && initial.changes.accepts_unbound == Some(true);
    Ok((!began_to_accept).then(|| with_settings(initial)))
}

/// Whether a service is deleted.
pub async fn is_deleted(store: &Store, service: ServiceId) -> Result<bool, StoreError> {
    Ok(services::find_live(store.read().await?.conn(), service).await?.is_none())
}

/// Reads all data that a sidecar of one service needs: the changes above the revision floor (the oldest revision from which a
/// sidecar can resume), the settings and role definitions of the service, and all signing keys.
pub async fn read_snapshot(store: &Store, scope: ReadScope) -> Result<InitialChanges, StoreError> {
    let mut read = store.read().await?;
    let conn = read.conn();
    let FeedPosition { revision, floor, cutoff: _ } = feed::position(conn).await?;
    let mut initial = with_settings(collect_initial(conn, scope, BatchRange { since: floor, revision, floor }).await?);
    if initial.changes.is_deleted {
        return Ok(initial);
    }
    initial.changes.definitions = Some(role_definitions(conn, scope.service).await?);
    initial.changes.keys = Some(live_public_keys(conn).await?);
    Ok(initial)
}

async fn collect_initial(
    conn: &mut Conn,
    ReadScope { service, allows_unbound }: ReadScope,
    range: BatchRange,
) -> Result<InitialChanges, StoreError> {
    let live = services::find_live(conn, service).await?;
    let accepts_unbound = live.as_ref().is_some_and(|service| service.accepts_unbound);
    let filter = RecipientFilter { service, includes_unbound: accepts_unbound && allows_unbound };
    let mut changes = collect_changes(conn, range, Some(filter)).await?.changes_for(filter);
    if live.is_none() {
        changes = Changes::of_deleted_service();
    }
    Ok(InitialChanges { range, accepts_unbound, changes })
}

fn with_settings(mut initial: InitialChanges) -> InitialChanges {
    initial.changes.accepts_unbound = Some(initial.accepts_unbound);
    initial
}

async fn collect_changes(
    conn: &mut Conn,
    range: BatchRange,
    filter: Option<RecipientFilter>,
) -> Result<ChangeBatch, StoreError> {
    let revisions = RevisionRange { since: range.since, until: range.revision };
    let entries = feed::list_changes(conn, revisions, filter).await?;
    let mut batch = ChangeBatch::new(range);
    if entries.is_empty() {
        return Ok(batch);
    }
    let state = ChangedState::read(conn, revisions, filter).await?;
    // The entries are in commit order, so the last of several entries about the same data has the highest revision.
    for entry in entries {
        if let Some(changes) = batch.changes_of(entry.recipients) {
            state.add_to(changes, &entry, conn).await?;
        }
    }
    Ok(batch)
}

/// The current state of all agents that changed: one query reads the roles of all agents, and another query reads the trust
/// scores and statuses.
struct ChangedState {
    agents: HashMap<AgentId, AgentState>,
    grants: HashMap<(ServiceId, AgentId), Vec<RoleGrant>>,
}

impl ChangedState {
    async fn read(
        conn: &mut Conn,
        revisions: RevisionRange,
        filter: Option<RecipientFilter>,
    ) -> Result<Self, StoreError> {
        let agents = agents::list_changed_states(conn, revisions, filter).await?;
        let mut grants: HashMap<_, Vec<RoleGrant>> = HashMap::new();
        let service = filter.map(|filter| filter.service);
        for (service, agent, grant) in assignments::list_changed_grants(conn, revisions, service).await? {
            grants.entry((service, agent)).or_default().push(grant);
        }
        Ok(Self { agents: agents.into_iter().map(|state| (state.agent, state)).collect(), grants })
    }

    /// Adds the change of an entry. A change whose agent does not exist is skipped: one wrong row must not stop the feed.
    async fn add_to(&self, changes: &mut Changes, entry: &FeedEntry, conn: &mut Conn) -> Result<(), StoreError> {
        let revision = entry.revision;
        match entry.change {
            Change::Roles(agent, service) => {
                let value = self.grants.get(&(service, agent)).cloned().unwrap_or_default();
                changes.agents.entry(agent).or_default().roles = Some(Versioned { revision, value });
            }
            Change::Trust(agent) => {
                if let Some(AgentState { trust: value, .. }) = self.agents.get(&agent).copied() {
                    changes.agents.entry(agent).or_default().trust = Some(Versioned { revision, value });
                }
            }
            Change::Status(agent) => {
                if let Some(AgentState { status: value, .. }) = self.agents.get(&agent).copied() {
                    changes.agents.entry(agent).or_default().status = Some(Versioned { revision, value });
                }
            }
            Change::Definitions(service) if changes.definitions.is_none() => {
                changes.definitions = Some(role_definitions(conn, service).await?);
            }
            Change::ServiceSettings(service) if changes.accepts_unbound.is_none() => {
                match services::find_live(conn, service).await? {
                    Some(service) => changes.accepts_unbound = Some(service.accepts_unbound),
                    None => *changes = Changes::of_deleted_service(),
                }
            }
            Change::Keys if changes.keys.is_none() => changes.keys = Some(live_public_keys(conn).await?),
            Change::Definitions(_) | Change::ServiceSettings(_) | Change::Keys => {}
            Change::Token(token, _) => drop(changes.revoked.insert(RevokedSubject::Token(token), revision)),
            Change::Session(session) => drop(changes.revoked.insert(RevokedSubject::Session(session), revision)),
        }
        Ok(())
    }
}

async fn role_definitions(conn: &mut Conn, service: ServiceId) -> Result<Vec<RoleDefinition>, StoreError> {
    Ok(roles::list(conn, service).await?.into_iter().map(|role| role.definition).collect())
}

async fn live_public_keys(conn: &mut Conn) -> Result<Vec<Vec<u8>>, StoreError> {
    Ok(signing_keys::load_ring(conn).await?.live_keys().map(|key| key.public.to_sec1().to_vec()).collect())
}
