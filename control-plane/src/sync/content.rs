//! The present content of what changed between two revisions, coalesced: each facet of each agent once,
//! stamped with the revision of its last change.

use crate::{
    domain::change::{Change, FeedPosition, Stamped as StampedChange},
    store::{Store, StoreError, agents, assignments, feed, roles},
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
    /// Whether the signing keys changed.
    pub keys: bool,
}

/// Since when, and for whom.
#[derive(Debug, Clone, Copy)]
pub enum Since {
    /// Everything above this revision, for all services.
    Everyone(Revision),
    /// Everything above this revision, if it is known, for one service.
    Known(Revision, ServiceId),
    /// Everything above the floor and all definitions of one service.
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
    }
    Ok(Some(content))
}

async fn collect(
    conn: &mut AnyConnection,
    position: FeedPosition,
    changes: &[StampedChange],
    only: Option<ServiceId>,
) -> Result<Content, StoreError> {
    let mut content = Content { revision: position.revision, floor: position.floor, ..Content::default() };
    let concerns = |service: ServiceId| only.is_none_or(|only| only == service);
    // Newest first: the first change seen of a facet carries its stamp, the others are covered by it.
    for StampedChange { revision, change } in changes.iter().rev().copied() {
        match change {
            Change::Roles(agent, service) if concerns(service) => {
                if !content.held.contains_key(&(service, agent)) {
                    let value = assignments::all(conn, service, agent).await?;
                    content.held.insert((service, agent), Stamped { revision, value });
                }
            }
            Change::Definitions(service) if concerns(service) => {
                if !content.definitions.contains_key(&service) {
                    content.definitions.insert(service, definitions(conn, service).await?);
                }
            }
            Change::Trust(agent) if content.agents.get(&agent).is_none_or(|record| record.trust.is_none()) => {
                let found = agents::find(conn, agent).await?.ok_or(StoreError::Corrupt("changes.subject"))?;
                content.agents.entry(agent).or_default().trust = Some(Stamped { revision, value: found.trust });
            }
            Change::Status(agent) if content.agents.get(&agent).is_none_or(|record| record.status.is_none()) => {
                let found = agents::find(conn, agent).await?.ok_or(StoreError::Corrupt("changes.subject"))?;
                let value = StatusRecord { status: found.status, cutoff: found.cutoff };
                content.agents.entry(agent).or_default().status = Some(Stamped { revision, value });
            }
            Change::Token(token) => drop(content.revoked.insert(Revoked::Token(token), revision)),
            Change::Session(session) => drop(content.revoked.insert(Revoked::Session(session), revision)),
            Change::Keys => content.keys = true,
            Change::Roles(..) | Change::Definitions(_) | Change::Trust(_) | Change::Status(_) => {}
        }
    }
    Ok(content)
}

async fn definitions(conn: &mut AnyConnection, service: ServiceId) -> Result<Vec<RoleDefinition>, StoreError> {
    Ok(roles::of_service(conn, service).await?.into_iter().map(|role| role.definition).collect())
}
