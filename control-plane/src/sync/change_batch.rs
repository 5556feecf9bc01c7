//! The present content of what changed between two revisions, coalesced: each facet of each agent once,
//! stamped with the revision of its last change.

use crate::{
    domain::change::{Change, FeedPosition, Span},
    store::{Conn, Store, StoreError, agents, agents::Condition, assignments, feed, roles, services, signing_keys},
};
use countersign_identity::{
    AgentChanges, AgentId, Revision, RoleDefinition, RoleGrant, ServiceId, SessionId, TokenId, Versioned,
};
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
    /// It holds every change above this revision ...
    pub since: Revision,
    /// ... up to this one, where the feed stood when it was read.
    pub revision: Revision,
    /// From there on nothing was forgotten.
    pub floor: Revision,
    /// Trust and status, for all services.
    pub agents: BTreeMap<AgentId, AgentChanges>,
    /// Roles held, for one service each.
    pub held: BTreeMap<(ServiceId, AgentId), Versioned<Vec<RoleGrant>>>,
    /// All roles of the services whose definitions changed.
    pub definitions: BTreeMap<ServiceId, Vec<RoleDefinition>>,
    /// Whether services accept tokens that are bound to none: of those that changed, or of the one that was asked for.
    pub accepts_unbound: BTreeMap<ServiceId, bool>,
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
    /// Everything above this revision, if it is known, and the terms, for one service.
    Known(Revision, ServiceId),
    /// Everything above the floor, terms and all definitions of one service, and all keys.
    Floor(ServiceId),
}

/// Reads what changed; `None` if the revision to start from is not known here.
pub async fn read(store: &Store, since: Since) -> Result<Option<Content>, StoreError> {
    let mut read = store.read().await?;
    let conn = read.conn();
    let position = feed::position(conn).await?;
    let FeedPosition { revision: until, floor, cutoff: _ } = position;
    let (start, only) = match since {
        // What was forgotten since cannot be read: the content then says that it begins later.
        Since::Everyone(revision) => (revision.max(floor), None),
        Since::Known(revision, service) if feed::knows(conn, position, revision).await? => (revision, Some(service)),
        Since::Known(..) => return Ok(None),
        Since::Floor(service) => (floor, Some(service)),
    };
    let mut content = collect(conn, Span { since: start, until }, floor, only).await?;
    if let Some(service) = only {
        content.accepts_unbound.insert(service, accepts_unbound(conn, service).await?);
    }
    if let Since::Floor(service) = since {
        content.definitions.insert(service, definitions(conn, service).await?);
        content.keys = Some(keys(conn).await?);
    }
    Ok(Some(content))
}

async fn collect(conn: &mut Conn, span: Span, floor: Revision, only: Option<ServiceId>) -> Result<Content, StoreError> {
    // In commit order, so that the last change of a facet leaves its stamp.
    let changes = feed::changes(conn, span).await?;
    let stamps: BTreeMap<Change, Revision> = changes.iter().map(|stamped| (stamped.change, stamped.revision)).collect();
    let mut content = Content { since: span.since, revision: span.until, floor, ..Content::default() };
    for (change, revision) in &stamps {
        content.note(conn, *change, *revision, only).await?;
    }
    // The rest by one query each, however many agents changed.
    for (service, agent, grant) in assignments::changed(conn, span, only).await? {
        if let Some(facet) = content.held.get_mut(&(service, agent)) {
            facet.value.push(grant);
        }
    }
    for Condition { agent, trust, status } in agents::changed(conn, span).await? {
        let stamp = |change| stamps.get(&change).copied();
        let record = content.agents.entry(agent).or_default();
        record.trust = stamp(Change::Trust(agent)).map(|revision| Versioned { revision, value: trust });
        record.status = stamp(Change::Status(agent)).map(|revision| Versioned { revision, value: status });
    }
    Ok(content)
}

impl Content {
    async fn note(
        &mut self,
        conn: &mut Conn,
        change: Change,
        revision: Revision,
        only: Option<ServiceId>,
    ) -> Result<(), StoreError> {
        let concerns = |service| only.is_none_or(|only| only == service);
        match change {
            Change::Roles(agent, service) if concerns(service) => {
                self.held.insert((service, agent), Versioned { revision, value: Vec::new() });
            }
            Change::Definitions(service) if concerns(service) => {
                self.definitions.insert(service, definitions(conn, service).await?);
            }
            Change::Terms(service) if concerns(service) => {
                self.accepts_unbound.insert(service, accepts_unbound(conn, service).await?);
            }
            Change::Token(token) => drop(self.revoked.insert(Revoked::Token(token), revision)),
            Change::Session(session) => drop(self.revoked.insert(Revoked::Session(session), revision)),
            Change::Keys => self.keys = Some(keys(conn).await?),
            // Of another service; or read for all agents together.
            Change::Roles(..) | Change::Definitions(_) | Change::Terms(_) | Change::Trust(_) | Change::Status(_) => {}
        }
        Ok(())
    }
}

async fn definitions(conn: &mut Conn, service: ServiceId) -> Result<Vec<RoleDefinition>, StoreError> {
    Ok(roles::of_service(conn, service).await?.into_iter().map(|role| role.definition).collect())
}

async fn accepts_unbound(conn: &mut Conn, service: ServiceId) -> Result<bool, StoreError> {
    Ok(services::find(conn, service).await?.ok_or(StoreError::Corrupt("service_id"))?.accepts_unbound)
}

async fn keys(conn: &mut Conn) -> Result<Vec<Vec<u8>>, StoreError> {
    Ok(signing_keys::ring(conn).await?.live().map(|key| key.public.to_sec1().to_vec()).collect())
}
