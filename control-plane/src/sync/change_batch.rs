//! Reads what changed in a range of revisions, by recipient, with its current state. The roles, the trust score and the status of an
//! agent each appear once per recipient, with the revision of their last change.

use crate::{
    domain::{
        change::{Change, FeedEntry, FeedPosition, Recipients, RevisionRange},
        service::ServiceSettings,
    },
    store::{
        Conn, Store, StoreError,
        agents::AgentState,
        changed_data::{self, ChangedData, ChangedRange, ReadLimit},
        feed, roles, services, signing_keys,
    },
};
use bytes::Bytes;
use countersign_identity::{
    AgentChanges, AgentId, Permission, Revision, RoleDefinition, RoleGrant, ServiceId, SessionId, TokenId, Versioned,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

/// Maximum number of entries of the change feed in a batch, so that even after a long interruption, a read ends before its timeout.
const MAX_BATCH: ReadLimit = ReadLimit::entries(4096);

/// A revoked token or session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RevokedSubject {
    Token(TokenId),
    /// A session, with all its access tokens.
    Session(SessionId),
}

/// All roles of a service. Clones share the roles and their encoding, because each change goes to every stream of the service.
#[derive(Debug, Clone, Default)]
pub struct Definitions(Arc<SharedDefinitions>);

#[derive(Debug, Default)]
struct SharedDefinitions {
    roles: Vec<RoleDefinition>,
    encoded: OnceLock<Bytes>,
}

impl Definitions {
    pub fn new(roles: Vec<RoleDefinition>) -> Self {
        Self(Arc::new(SharedDefinitions { roles, encoded: OnceLock::new() }))
    }

    pub fn roles(&self) -> &[RoleDefinition] {
        &self.0.roles
    }

    /// Encodes the roles with `encode` at the first call, and remembers the result. So `encode` must always be the same function.
    pub fn encoded(&self, encode: impl FnOnce(&[RoleDefinition]) -> Bytes) -> Bytes {
        self.0.encoded.get_or_init(|| encode(&self.0.roles)).clone()
    }
}

/// What changed for some services, with its new state.
#[derive(Debug, Default, Clone)]
pub struct Changes {
    pub agents: BTreeMap<AgentId, AgentChanges>,
    pub revoked: BTreeMap<RevokedSubject, Revision>,
    /// All roles of the service, if a role definition changed.
    pub definitions: Option<Definitions>,
    /// The settings of the service, if they changed.
    pub settings: Option<ServiceSettings>,
    /// The public keys of all live signing keys as SEC 1 points, if any key changed.
    pub keys: Option<Vec<Vec<u8>>>,
    pub is_deleted: bool,
}

impl Changes {
    /// Whether the service accepts unbound tokens now; `None` if its settings have not changed.
    pub fn accepts_unbound(&self) -> Option<bool> {
        self.settings.as_ref().map(|settings| settings.accepts_unbound)
    }

    pub fn is_empty(&self) -> bool {
        let Self { agents, revoked, definitions, settings, keys, is_deleted } = self;
        let has_entries = !agents.is_empty() || !revoked.is_empty();
        !has_entries && definitions.is_none() && settings.is_none() && keys.is_none() && !is_deleted
    }

    /// The changes for the sidecars of a deleted service. The sync protocol has no field for a deletion, so we take all signing
    /// keys away, and the sidecars accept no token any more.
    pub fn of_deleted_service() -> Self {
        Self {
            is_deleted: true,
            settings: Some(ServiceSettings::default()),
            keys: Some(Vec::new()),
            definitions: Some(Definitions::default()),
            ..Self::default()
        }
    }

    /// Adds a change. Add the changes of one read in commit order: if the same data changed several times, the last change determines
    /// revision and content. A change whose agent does not exist is skipped, because one wrong row must not stop the feed.
    pub(super) async fn add(&mut self, data: ChangedData, conn: &mut Conn) -> Result<(), StoreError> {
        let ChangedData { entry: FeedEntry { revision, change, recipients: _ }, agent, grants } = data;
        match change {
            // Each change of an agent's roles has the current roles in `grants`, so a further change only updates the revision.
            Change::Roles(agent, _) => match &mut self.agents.entry(agent).or_default().roles {
                Some(roles) => roles.revision = revision,
                roles => *roles = Some(Versioned { revision, value: grants.to_vec() }),
            },
            Change::Trust(id) => {
                if let Some(AgentState { trust: value, .. }) = agent {
                    self.agents.entry(id).or_default().trust = Some(Versioned { revision, value });
                }
            }
            Change::Status(id) => {
                if let Some(AgentState { status: value, .. }) = agent {
                    self.agents.entry(id).or_default().status = Some(Versioned { revision, value });
                }
            }
            Change::Definitions(service) if self.definitions.is_none() => {
                self.definitions = Some(role_definitions(conn, service).await?);
            }
            Change::ServiceSettings(service) if self.settings.is_none() => {
                match services::find_live(conn, service).await? {
                    Some(service) => self.settings = Some(service.settings()),
                    // The service is deleted, so its other changes do not matter any more.
                    None => *self = Self::of_deleted_service(),
                }
            }
            Change::Keys if self.keys.is_none() => self.keys = Some(live_public_keys(conn).await?),
            Change::Definitions(_) | Change::ServiceSettings(_) | Change::Keys => {}
            Change::Token(token, _) => drop(self.revoked.insert(RevokedSubject::Token(token), revision)),
            Change::Session(session) => drop(self.revoked.insert(RevokedSubject::Session(session), revision)),
        }
        Ok(())
    }

    /// Estimates the memory that the changes use, in bytes.
    pub fn size(&self) -> usize {
        let Self { agents, revoked, definitions, settings: _, keys, is_deleted: _ } = self;
        let grants = agents.values().filter_map(|changes| changes.roles.as_ref()).map(|roles| roles.value.len());
        let definitions = definitions.as_ref().map_or(&[][..], Definitions::roles);
        let permissions = definitions.iter().flat_map(|role| &role.permissions);
        agents.len() * size_of::<(AgentId, AgentChanges)>()
            + grants.sum::<usize>() * size_of::<RoleGrant>()
            + revoked.len() * size_of::<(RevokedSubject, Revision)>()
            + size_of_val(definitions)
            + permissions.map(|name| size_of::<Permission>() + name.as_str().len()).sum::<usize>()
            + keys.iter().flatten().map(Vec::len).sum::<usize>()
    }

    /// Adds changes of the same or a later range of revisions. Data that changed in both ranges gets its state from `other`.
    pub fn merge(&mut self, other: &Self) {
        let Self { agents, revoked, definitions, settings, keys, is_deleted } = other;
        for (agent, changes) in agents {
            self.agents.entry(*agent).or_default().merge(changes.clone());
        }
        for (subject, revision) in revoked {
            let latest = self.revoked.entry(*subject).or_default();
            *latest = (*latest).max(*revision);
        }
        self.definitions = definitions.clone().or_else(|| self.definitions.take());
        self.settings = settings.clone().or_else(|| self.settings.take());
        self.keys = keys.clone().or_else(|| self.keys.take());
        self.is_deleted |= is_deleted;
    }
}

/// Everything that changed in a range of revisions, by recipient.
#[derive(Debug)]
pub struct ChangeBatch {
    pub range: RevisionRange,
    /// The newest revision when the batch was read.
    pub read_at: Revision,
    pub all_services: Changes,
    /// Changes for the services that accept unbound tokens (for no service).
    pub unbound_tokens: Changes,
    /// Changes for one service each.
    pub by_service: BTreeMap<ServiceId, Changes>,
}

impl ChangeBatch {
    fn changes_of(&mut self, recipients: Recipients) -> Option<&mut Changes> {
        match recipients {
            Recipients::AllServices => Some(&mut self.all_services),
            Recipients::UnboundTokens => Some(&mut self.unbound_tokens),
            Recipients::Service(service) => Some(self.by_service.entry(service).or_default()),
            Recipients::NoService => None,
        }
    }
}

/// Reads the first changes above a revision, for all services. If some of these changes may have been deleted, `range.since` is
/// above `revision`. If more changes follow, `range.until` is below `read_at`.
pub async fn read_all(store: &Store, revision: Revision) -> Result<ChangeBatch, StoreError> {
    let mut read = store.read().await?;
    let conn = read.conn();
    let FeedPosition { revision: newest, floor, cutoff: _ } = feed::position(conn).await?;
    let range = RevisionRange { since: revision.max(floor), until: newest };
    let ChangedRange { changes, until } = changed_data::read(conn, range, None, MAX_BATCH).await?;
    let mut batch = ChangeBatch {
        range: RevisionRange { since: range.since, until },
        read_at: newest,
        all_services: Changes::default(),
        unbound_tokens: Changes::default(),
        by_service: BTreeMap::new(),
    };
    for data in changes {
        if let Some(changes) = batch.changes_of(data.entry.recipients) {
            changes.add(data, conn).await?;
        }
    }
    Ok(batch)
}

pub(super) async fn role_definitions(conn: &mut Conn, service: ServiceId) -> Result<Definitions, StoreError> {
    Ok(Definitions::new(roles::list(conn, service).await?.into_iter().map(|role| role.definition).collect()))
}

pub(super) async fn live_public_keys(conn: &mut Conn) -> Result<Vec<Vec<u8>>, StoreError> {
    Ok(signing_keys::load_ring(conn).await?.live_keys().map(|key| key.public.to_sec1().to_vec()).collect())
}
