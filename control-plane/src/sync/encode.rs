//! Converts batches of changes to messages of the sync protocol, with pure functions.

use super::{
    change_batch::{ChangeBatch, RevokedSubject},
    context::SidecarSettings,
};
use countersign_identity::{
    AgentChanges, AgentId, AgentStatus, Revision, RoleDefinition, RoleGrant, ServiceId, Timestamp,
};
use countersign_proto::v1;
use std::collections::BTreeMap;

/// Maximum number of agents or revocations in one message. An agent has at most 256 roles, so a full page is far below the
/// size limit of gRPC messages.
const PAGE_SIZE: usize = 250;

/// The complete data that a sidecar of one service needs, in pages. The last page of a snapshot is marked.
pub fn snapshot(batch: &ChangeBatch, service: ServiceId, settings: &SidecarSettings) -> Vec<v1::SnapshotPage> {
    let empty_page = || v1::SnapshotPage {
        revision: batch.revision.number(),
        floor: batch.floor.number(),
        ..v1::SnapshotPage::default()
    };
    let mut pages = vec![v1::SnapshotPage {
        info: service_info(batch, service, settings),
        keys: batch.keys.as_deref().map(keys_message),
        roles: batch.definitions.get(&service).map(|definitions| roles_message(definitions)),
        ..empty_page()
    }];
    pages.extend(
        agent_changes(batch, service)
            .chunks(PAGE_SIZE)
            .map(|agents| v1::SnapshotPage { agents: agents.to_vec(), ..empty_page() }),
    );
    pages.extend(
        revocations(batch)
            .chunks(PAGE_SIZE)
            .map(|revoked| v1::SnapshotPage { revocations: revoked.to_vec(), ..empty_page() }),
    );
    if let Some(last) = pages.last_mut() {
        last.last = true;
    }
    pages
}

/// The changes that concern a service, in messages of bounded size; no message if there are no changes. Only the last message
/// of a batch has the new revision, so a sidecar that receives only some of the messages resumes from its old revision.
pub fn delta(batch: &ChangeBatch, service: ServiceId, settings: &SidecarSettings) -> Vec<v1::Delta> {
    let empty_delta = || v1::Delta { revision: batch.since.number(), ..v1::Delta::default() };
    let service_delta = v1::Delta {
        info: service_info(batch, service, settings),
        keys: batch.keys.as_deref().map(keys_message),
        roles: batch.definitions.get(&service).map(|definitions| roles_message(definitions)),
        ..empty_delta()
    };
    let mut messages = Vec::new();
    if service_delta != empty_delta() {
        messages.push(service_delta);
    }
    let agents = agent_changes(batch, service);
    messages.extend(agents.chunks(PAGE_SIZE).map(|agents| v1::Delta { agents: agents.to_vec(), ..empty_delta() }));
    let revoked = revocations(batch);
    messages
        .extend(revoked.chunks(PAGE_SIZE).map(|revoked| v1::Delta { revocations: revoked.to_vec(), ..empty_delta() }));
    if let Some(last) = messages.last_mut() {
        last.revision = batch.revision.number();
    }
    messages
}

fn service_info(batch: &ChangeBatch, service: ServiceId, settings: &SidecarSettings) -> Option<v1::ServiceInfo> {
    let SidecarSettings { issuer, max_staleness } = settings;
    batch.accepts_unbound.get(&service).map(|accepts_unbound| v1::ServiceInfo {
        service_id: service.to_string(),
        issuer: issuer.clone(),
        accepts_unbound_tokens: *accepts_unbound,
        max_staleness_seconds: u32::try_from(max_staleness.as_secs()).unwrap_or(u32::MAX),
    })
}

fn keys_message(points: &[Vec<u8>]) -> v1::Keys {
    v1::Keys { points: points.to_vec() }
}

fn roles_message(definitions: &[RoleDefinition]) -> v1::Roles {
    let role = |RoleDefinition { id, name, permissions, created_revision }: &RoleDefinition| v1::Role {
        id: id.to_string(),
        name: name.to_string(),
        permissions: permissions.iter().map(ToString::to_string).collect(),
        created_revision: created_revision.number(),
    };
    v1::Roles { roles: definitions.iter().map(role).collect() }
}

/// All agents that changed, with their roles at one service only.
fn agent_changes(batch: &ChangeBatch, service: ServiceId) -> Vec<v1::AgentChanges> {
    let mut changes: BTreeMap<AgentId, AgentChanges> = batch.agents.clone();
    let first = (service, AgentId::from_bits(0));
    let grants = batch.role_grants.range(first..).take_while(|((grant_service, _), _)| *grant_service == service);
    for ((_, agent), grants) in grants {
        changes.entry(*agent).or_default().roles = Some(grants.clone());
    }
    changes.into_iter().map(agent_message).collect()
}

fn agent_message((agent, changes): (AgentId, AgentChanges)) -> v1::AgentChanges {
    let AgentChanges { roles, trust, status } = changes;
    v1::AgentChanges {
        agent_id: agent.to_string(),
        roles: roles.map(|facet| v1::RolesFacet {
            revision: facet.revision.number(),
            grants: facet.value.into_iter().map(role_grant_message).collect(),
        }),
        trust: trust.map(|facet| v1::TrustFacet {
            revision: facet.revision.number(),
            hundredths: i32::try_from(facet.value.hundredths()).unwrap_or(0),
        }),
        status: status.map(|facet| v1::StatusFacet {
            revision: facet.revision.number(),
            status: status_value(facet.value.status).into(),
            cutoff: facet.value.cutoff.number(),
        }),
    }
}

fn role_grant_message(RoleGrant { role, until }: RoleGrant) -> v1::RoleGrant {
    v1::RoleGrant { role_id: role.to_string(), until: until.map(Timestamp::micros) }
}

const fn status_value(status: AgentStatus) -> v1::AgentStatus {
    match status {
        AgentStatus::Active => v1::AgentStatus::Active,
        AgentStatus::Suspended => v1::AgentStatus::Suspended,
        AgentStatus::Revoked => v1::AgentStatus::Revoked,
    }
}

fn revocations(batch: &ChangeBatch) -> Vec<v1::Revocation> {
    batch.revoked.iter().map(|(subject, revision)| revocation_message(*subject, *revision)).collect()
}

fn revocation_message(subject: RevokedSubject, revision: Revision) -> v1::Revocation {
    let subject = match subject {
        RevokedSubject::Token(token) => v1::revocation::Subject::TokenId(token.to_string()),
        RevokedSubject::Session(session) => v1::revocation::Subject::SessionId(session.to_string()),
    };
    v1::Revocation { revision: revision.number(), subject: Some(subject) }
}
