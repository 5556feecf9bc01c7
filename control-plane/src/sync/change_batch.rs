//! Reads the current state of everything that changed in a range of revisions. The roles, the trust score and the status of an
//! agent each appear once, with the revision of their last change.

use crate::{
    domain::change::{Change, FeedPosition, RevisionRange},
    store::{Conn, Store, StoreError, agents, agents::AgentState, assignments, feed, roles, services, signing_keys},
};
use countersign_identity::{
    AgentChanges, AgentId, Revision, RoleDefinition, RoleGrant, ServiceId, SessionId, TokenId, Versioned,
};
use std::collections::BTreeMap;

/// A revoked token or session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RevokedSubject {
    /// An access token.
    Token(TokenId),
    /// A session, with all its access tokens.
    Session(SessionId),
}

/// Everything that changed in a range of revisions.
#[derive(Debug, Default)]
pub struct ChangeBatch {
    /// The batch contains all changes above this revision.
    pub since: Revision,
    /// The batch contains all changes up to this revision, which was the newest when the batch was read.
    pub revision: Revision,
    /// The revision floor: changes up to this revision were deleted from the change feed.
    pub floor: Revision,
    /// Trust and status of agents, for all services.
    pub agents: BTreeMap<AgentId, AgentChanges>,
    /// Roles of agents at one service each.
    pub role_grants: BTreeMap<(ServiceId, AgentId), Versioned<Vec<RoleGrant>>>,
    /// All roles of each service whose definitions changed.
    pub definitions: BTreeMap<ServiceId, Vec<RoleDefinition>>,
    /// Whether a service accepts unbound tokens. Contains the services whose settings changed, and the service whose sidecar
    /// requested the batch.
    pub accepts_unbound: BTreeMap<ServiceId, bool>,
    /// Revoked tokens and sessions.
    pub revoked: BTreeMap<RevokedSubject, Revision>,
    /// The public keys of all live signing keys as SEC 1 points, if any key changed.
    pub keys: Option<Vec<Vec<u8>>>,
}

/// The range and the service of the changes to read.
#[derive(Debug, Clone, Copy)]
pub enum ReadScope {
    /// Changes above a revision, for all services.
    AllServices(Revision),
    /// Changes above a revision for one service, and the settings of the service. A sidecar cannot resume from a revision
    /// that the change feed no longer contains.
    Resume(Revision, ServiceId),
    /// All data that a sidecar of one service needs: the changes above the revision floor (the oldest revision from which a
    /// sidecar can resume), the settings and role definitions of the service, and all signing keys.
    Snapshot(ServiceId),
}

/// Reads a batch; `None` if the change feed does not contain the revision to resume from.
pub async fn read_batch(store: &Store, scope: ReadScope) -> Result<Option<ChangeBatch>, StoreError> {
    let mut read = store.read().await?;
    let conn = read.conn();
    let position = feed::position(conn).await?;
    let FeedPosition { revision: until, floor, cutoff: _ } = position;
    let (since, service_filter) = match scope {
        // Changes below the revision floor (the oldest revision from which a sidecar can resume) are deleted. If the requested
        // revision is below the floor, `since` of the batch is higher than the requested revision.
        ReadScope::AllServices(revision) => (revision.max(floor), None),
        ReadScope::Resume(revision, service) if feed::can_resume_at(conn, position, revision).await? => {
            (revision, Some(service))
        }
        ReadScope::Resume(..) => return Ok(None),
        ReadScope::Snapshot(service) => (floor, Some(service)),
    };
    let mut batch = collect_changes(conn, RevisionRange { since, until }, floor, service_filter).await?;
    if let Some(service) = service_filter {
        batch.accepts_unbound.insert(service, accepts_unbound(conn, service).await?);
    }
    if let ReadScope::Snapshot(service) = scope {
        batch.definitions.insert(service, role_definitions(conn, service).await?);
        batch.keys = Some(live_public_keys(conn).await?);
    }
    Ok(Some(batch))
}

async fn collect_changes(
    conn: &mut Conn,
    range: RevisionRange,
    floor: Revision,
    service_filter: Option<ServiceId>,
) -> Result<ChangeBatch, StoreError> {
    // The changes are in commit order, so the map contains the revision of the last of several equal changes.
    let changes = feed::list_changes(conn, range).await?;
    let revisions: BTreeMap<Change, Revision> = changes.iter().map(|change| (change.value, change.revision)).collect();
    let mut batch = ChangeBatch { since: range.since, revision: range.until, floor, ..ChangeBatch::default() };
    for (change, revision) in &revisions {
        batch.add(conn, *change, *revision, service_filter).await?;
    }
    // One query reads the roles of all changed agents, and another query reads the trust scores and statuses of all changed
    // agents.
    for (service, agent, grant) in assignments::list_changed_grants(conn, range, service_filter).await? {
        if let Some(grants) = batch.role_grants.get_mut(&(service, agent)) {
            grants.value.push(grant);
        }
    }
    for AgentState { agent, trust, status } in agents::list_changed_states(conn, range).await? {
        let revision_of = |change| revisions.get(&change).copied();
        let changes = batch.agents.entry(agent).or_default();
        changes.trust = revision_of(Change::Trust(agent)).map(|revision| Versioned { revision, value: trust });
        changes.status = revision_of(Change::Status(agent)).map(|revision| Versioned { revision, value: status });
    }
    Ok(batch)
}

impl ChangeBatch {
    async fn add(
        &mut self,
        conn: &mut Conn,
        change: Change,
        revision: Revision,
        service_filter: Option<ServiceId>,
    ) -> Result<(), StoreError> {
        let is_included = |service| service_filter.is_none_or(|included| included == service);
        match change {
            Change::Roles(agent, service) if is_included(service) => {
                self.role_grants.insert((service, agent), Versioned { revision, value: Vec::new() });
            }
            Change::Definitions(service) if is_included(service) => {
                self.definitions.insert(service, role_definitions(conn, service).await?);
            }
            Change::ServiceSettings(service) if is_included(service) => {
                self.accepts_unbound.insert(service, accepts_unbound(conn, service).await?);
            }
            Change::Token(token) => drop(self.revoked.insert(RevokedSubject::Token(token), revision)),
            Change::Session(session) => drop(self.revoked.insert(RevokedSubject::Session(session), revision)),
            Change::Keys => self.keys = Some(live_public_keys(conn).await?),
            // Ignore changes of services that the filter excludes, and changes of trust and status, which `collect_changes`
            // reads for all agents together.
            Change::Roles(..)
            | Change::Definitions(_)
            | Change::ServiceSettings(_)
            | Change::Trust(_)
            | Change::Status(_) => {}
        }
        Ok(())
    }
}

async fn role_definitions(conn: &mut Conn, service: ServiceId) -> Result<Vec<RoleDefinition>, StoreError> {
    Ok(roles::list(conn, service).await?.into_iter().map(|role| role.definition).collect())
}

async fn accepts_unbound(conn: &mut Conn, service: ServiceId) -> Result<bool, StoreError> {
    Ok(services::find(conn, service).await?.ok_or(StoreError::Corrupt("service_id"))?.accepts_unbound)
}

async fn live_public_keys(conn: &mut Conn) -> Result<Vec<Vec<u8>>, StoreError> {
    Ok(signing_keys::load_ring(conn).await?.live_keys().map(|key| key.public.to_sec1().to_vec()).collect())
}
