//! From content to the words of the wire.

use super::{
    change_batch::{Content, Revoked},
    follower::Terms,
};
use countersign_identity::{
    AgentChanges, AgentId, AgentStatus, Revision, RoleDefinition, RoleGrant, ServiceId, Timestamp,
};
use countersign_proto::v1;
use std::collections::BTreeMap;

/// Agents or revocations in one message at the most. An agent holds at most 256 roles, so that even full
/// pages stay far below what a follower reads.
const PAGE: usize = 250;

/// A whole view, page by page.
pub fn snapshot(content: &Content, service: ServiceId, terms: &Terms) -> Vec<v1::SnapshotPage> {
    let empty = || v1::SnapshotPage {
        revision: content.revision.number(),
        floor: content.floor.number(),
        ..v1::SnapshotPage::default()
    };
    let mut pages = vec![v1::SnapshotPage {
        info: info(content, service, terms),
        keys: content.keys.as_deref().map(keys),
        roles: content.definitions.get(&service).map(|definitions| roles(definitions)),
        ..empty()
    }];
    pages.extend(
        records(content, service).chunks(PAGE).map(|agents| v1::SnapshotPage { agents: agents.to_vec(), ..empty() }),
    );
    pages.extend(
        revocations(content).chunks(PAGE).map(|dead| v1::SnapshotPage { revocations: dead.to_vec(), ..empty() }),
    );
    if let Some(last) = pages.last_mut() {
        last.last = true;
    }
    pages
}

/// What changed, as one follower is told, in messages of bounded size; none if nothing of it concerns the
/// follower. All but the last stay at the revision where the follower is, so that it resumes from there if
/// the rest does not come.
pub fn delta(content: &Content, service: ServiceId, terms: &Terms) -> Vec<v1::Delta> {
    let at = |revision: Revision| v1::Delta { revision: revision.number(), ..v1::Delta::default() };
    let head = v1::Delta {
        info: info(content, service, terms),
        keys: content.keys.as_deref().map(keys),
        roles: content.definitions.get(&service).map(|definitions| roles(definitions)),
        ..at(content.since)
    };
    let mut messages = Vec::new();
    if head != at(content.since) {
        messages.push(head);
    }
    let agents = records(content, service);
    messages.extend(agents.chunks(PAGE).map(|agents| v1::Delta { agents: agents.to_vec(), ..at(content.since) }));
    let dead = revocations(content);
    messages.extend(dead.chunks(PAGE).map(|dead| v1::Delta { revocations: dead.to_vec(), ..at(content.since) }));
    if let Some(last) = messages.last_mut() {
        last.revision = content.revision.number();
    }
    messages
}

fn info(content: &Content, service: ServiceId, terms: &Terms) -> Option<v1::ServiceInfo> {
    let Terms { issuer, max_staleness } = terms;
    content.accepts_unbound.get(&service).map(|accepts_unbound| v1::ServiceInfo {
        service_id: service.to_string(),
        issuer: issuer.clone(),
        accepts_unbound_tokens: *accepts_unbound,
        max_staleness_seconds: u32::try_from(max_staleness.as_secs()).unwrap_or(u32::MAX),
    })
}

fn keys(points: &[Vec<u8>]) -> v1::Keys {
    v1::Keys { points: points.to_vec() }
}

fn roles(definitions: &[RoleDefinition]) -> v1::Roles {
    let role = |RoleDefinition { id, name, permissions, made_at }: &RoleDefinition| v1::Role {
        id: id.to_string(),
        name: name.to_string(),
        permissions: permissions.iter().map(ToString::to_string).collect(),
        made_at: made_at.number(),
    };
    v1::Roles { roles: definitions.iter().map(role).collect() }
}

/// The records of all agents that changed, with their roles at this service only.
fn records(content: &Content, service: ServiceId) -> Vec<v1::AgentChanges> {
    let mut records: BTreeMap<AgentId, AgentChanges> = content.agents.clone();
    let first = (service, AgentId::from_bits(0));
    let here = content.held.range(first..).take_while(|((at, _), _)| *at == service);
    for ((_, agent), held) in here {
        records.entry(*agent).or_default().roles = Some(held.clone());
    }
    records.into_iter().map(record).collect()
}

fn record((agent, record): (AgentId, AgentChanges)) -> v1::AgentChanges {
    let AgentChanges { roles, trust, status } = record;
    v1::AgentChanges {
        agent_id: agent.to_string(),
        roles: roles.map(|facet| v1::RolesFacet {
            revision: facet.revision.number(),
            grants: facet.value.into_iter().map(grant).collect(),
        }),
        trust: trust.map(|facet| v1::TrustFacet {
            revision: facet.revision.number(),
            hundredths: i32::try_from(facet.value.hundredths()).unwrap_or(0),
        }),
        status: status.map(|facet| v1::StatusFacet {
            revision: facet.revision.number(),
            status: status_of(facet.value.status).into(),
            cutoff: facet.value.cutoff.number(),
        }),
    }
}

fn grant(RoleGrant { role, until }: RoleGrant) -> v1::RoleGrant {
    v1::RoleGrant { role_id: role.to_string(), until: until.map(Timestamp::micros) }
}

const fn status_of(status: AgentStatus) -> v1::AgentStatus {
    match status {
        AgentStatus::Active => v1::AgentStatus::Active,
        AgentStatus::Suspended => v1::AgentStatus::Suspended,
        AgentStatus::Revoked => v1::AgentStatus::Revoked,
    }
}

fn revocations(content: &Content) -> Vec<v1::Revocation> {
    content.revoked.iter().map(|(revoked, revision)| revocation(*revoked, *revision)).collect()
}

fn revocation(revoked: Revoked, revision: Revision) -> v1::Revocation {
    let subject = match revoked {
        Revoked::Token(token) => v1::revocation::Subject::TokenId(token.to_string()),
        Revoked::Session(session) => v1::revocation::Subject::SessionId(session.to_string()),
    };
    v1::Revocation { revision: revision.number(), subject: Some(subject) }
}
