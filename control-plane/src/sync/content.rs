//! The present content of what changed between two revisions, coalesced: each facet of each agent once,
//! stamped with the revision of its last change.

use crate::{
    domain::{
        agent::Agent,
        change::{Change, FeedPosition, Stamped as StampedChange},
    },
    store::{Store, StoreError, agents, assignments, feed, roles, signing_keys},
};
use countersign_identity::{
    AgentId, AgentRecord, Grant, Revision, RoleDefinition, ServiceId, SessionId, Stamped, StatusRecord, TokenId,
};
use sqlx::AnyConnection;
use std::collections::BTreeMap;

/// What died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Revoked {
    /// An access token.
    Token(TokenId),
    /// A login.
    Session(SessionId),
}

/// Everything that changed up to a revision.
#[derive(Debug, Default)]
pub struct Content {
    /// Where the feed stood when this was read.
    pub revision: Revision,
    /// From there on nothing was forgotten.
    pub floor: Revision,
    /// Trust and status, for all services.
    pub agents: BTreeMap<AgentId, AgentRecord>,
    /// Roles held, for one service each.
    pub held: BTreeMap<(ServiceId, AgentId), Stamped<Vec<Grant>>>,
    /// All roles of the services whose definitions changed.
    pub definitions: BTreeMap<ServiceId, Vec<RoleDefinition>>,
    /// Dead tokens and logins.
    pub revoked: BTreeMap<Revoked, Revision>,
    /// The public points of all signing keys, if these changed.
    pub keys: Option<Vec<Vec<u8>>>,
}

/// Since when, and for whom.
#[derive(Debug, Clone, Copy)]
pub enum Since {
    /// Everything above this revision, for all services.
    Everyone(Revision),
    /// Everything above this revision, if it is known, for one service.
    Known(Revision, ServiceId),
    /// Everything above the floor, all definitions of one service, and all keys.
    Floor(ServiceId),
}

/// Reads what changed; `None` if the revision to start from is not known here.
pub async fn read(store: &Store, since: Since) -> Result<Option<Content>, StoreError> {
    let mut read = store.read().await?;
    let conn = read.conn();
    let position = feed::position(conn).await?;
    let (start, only) = match since {
        Since::Everyone(revision) => (revision, None),
        Since::Known(revision, service) if feed::knows(conn, position, revision).await? => (revision, Some(service)),
        Since::Known(..) => return Ok(None),
        Since::Floor(service) => (position.floor, Some(service)),
    };
    let changes = feed::changes(conn, start, position.revision).await?;
    let mut content = collect(conn, position, &changes, only).await?;
    if let Since::Floor(service) = since {
        content.definitions.insert(service, definitions(conn, service).await?);
        content.keys = Some(keys(conn).await?);
    }
    Ok(Some(content))
}

async fn collect(
    conn: &mut AnyConnection,
    position: FeedPosition,
    changes: &[StampedChange],
    only: Option<ServiceId>,
) -> Result<Content, StoreError> {
    let concerns = |change: &Change| match change {
        Change::Roles(_, service) | Change::Definitions(service) => only.is_none_or(|only| only == *service),
        Change::Trust(_) | Change::Status(_) | Change::Token(_) | Change::Session(_) | Change::Keys => true,
    };
    // In commit order, so that the last change of a facet leaves its stamp.
    let stamps: BTreeMap<Change, Revision> = changes.iter().map(|stamped| (stamped.change, stamped.revision)).collect();
    let mut content = Content { revision: position.revision, floor: position.floor, ..Content::default() };
    for (change, revision) in stamps.into_iter().filter(|(change, _)| concerns(change)) {
        content.add(conn, change, revision).await?;
    }
    Ok(content)
}

impl Content {
    async fn add(&mut self, conn: &mut AnyConnection, change: Change, revision: Revision) -> Result<(), StoreError> {
        match change {
            Change::Roles(agent, service) => {
                let value = assignments::all(conn, service, agent).await?;
                self.held.insert((service, agent), Stamped { revision, value });
            }
            Change::Definitions(service) => {
                self.definitions.insert(service, definitions(conn, service).await?);
            }
            Change::Trust(agent) => {
                let value = find_agent(conn, agent).await?.trust;
                self.agents.entry(agent).or_default().trust = Some(Stamped { revision, value });
            }
            Change::Status(agent) => {
                let Agent { status, cutoff, .. } = find_agent(conn, agent).await?;
                let value = StatusRecord { status, cutoff };
                self.agents.entry(agent).or_default().status = Some(Stamped { revision, value });
            }
            Change::Token(token) => drop(self.revoked.insert(Revoked::Token(token), revision)),
            Change::Session(session) => drop(self.revoked.insert(Revoked::Session(session), revision)),
            Change::Keys => self.keys = Some(keys(conn).await?),
        }
        Ok(())
    }
}

async fn find_agent(conn: &mut AnyConnection, agent: AgentId) -> Result<Agent, StoreError> {
    agents::find(conn, agent).await?.ok_or(StoreError::Corrupt("changes.subject"))
}

async fn definitions(conn: &mut AnyConnection, service: ServiceId) -> Result<Vec<RoleDefinition>, StoreError> {
    Ok(roles::of_service(conn, service).await?.into_iter().map(|role| role.definition).collect())
}

async fn keys(conn: &mut AnyConnection) -> Result<Vec<Vec<u8>>, StoreError> {
    let published = signing_keys::published(conn).await?;
    published
        .iter()
        .map(|key| hex::decode(&key.public_point).map_err(|_| StoreError::Corrupt("public_point")))
        .collect()
}
