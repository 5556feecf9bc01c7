//! Encodes a view as the pages of a snapshot, and builds a view from such pages. A copy on disk has the same pages as the sync
//! protocol, so [`StreamState`] reads both.

use super::{decode::MessageError, stream::StreamState};
use crate::view::{Revocation, RevokedSubject, ServiceSettings, View};
use countersign_identity::{AgentChanges, AgentHash, AgentStatus, RoleDefinition, RoleGrant, Timestamp};
use countersign_proto::{
    PROTOCOL_VERSION,
    v1::{self, follow_response::Message},
};
use std::{sync::Arc, time::Duration};

/// The most agents, or revocations, on a page: small enough that encoding one needs little memory.
const PAGE_LEN: usize = 1000;

/// Encodes the pages of a view one after the other, so that a large view is never in memory twice.
pub fn pages_of(view: &View) -> impl Iterator<Item = v1::SnapshotPage> + '_ {
    let (revision, floor) = (view.revision().number(), view.floor().number());
    let page = move || v1::SnapshotPage { revision, floor, ..v1::SnapshotPage::default() };
    let first = v1::SnapshotPage {
        info: Some(encode_settings(view.settings())),
        keys: Some(v1::Keys { points: view.keys().public_keys().map(|key| key.to_sec1().to_vec()).collect() }),
        roles: Some(v1::Roles { roles: view.roles().iter().map(encode_role).collect() }),
        ..page()
    };
    let agents = in_pages(view.agents().map(|(agent, changes)| encode_agent(agent, changes)));
    let revocations = in_pages(view.revocations().map(encode_revocation));
    std::iter::once(first)
        .chain(agents.map(move |agents| v1::SnapshotPage { agents, ..page() }))
        .chain(revocations.map(move |revocations| v1::SnapshotPage { revocations, ..page() }))
        .chain(std::iter::once(v1::SnapshotPage { last: true, ..page() }))
}

/// Builds a view from its pages. `staleness_limit` is the maximum staleness in the sidecar's settings.
pub fn view_of_pages<E: From<MessageError>>(
    pages: impl Iterator<Item = Result<v1::SnapshotPage, E>>,
    staleness_limit: Option<Duration>,
) -> Result<Arc<View>, E> {
    let mut state = StreamState::resume(None, staleness_limit);
    for page in pages {
        let message = v1::FollowResponse { message: Some(Message::Snapshot(page?)) };
        state.apply(message, Duration::ZERO)?;
    }
    Ok(state.view().ok_or(MessageError::Missing("the last page"))?)
}

fn in_pages<T>(mut items: impl Iterator<Item = T>) -> impl Iterator<Item = Vec<T>> {
    std::iter::from_fn(move || {
        let page: Vec<T> = items.by_ref().take(PAGE_LEN).collect();
        (!page.is_empty()).then_some(page)
    })
}

fn encode_settings(settings: &ServiceSettings) -> v1::ServiceInfo {
    let ServiceSettings { service, issuer, accepts_unbound, max_staleness, agent_hash_key, resources } = settings;
    v1::ServiceInfo {
        protocol_version: PROTOCOL_VERSION,
        service_id: service.to_string(),
        issuer: issuer.to_string(),
        accepts_unbound_tokens: *accepts_unbound,
        max_staleness_seconds: u32::try_from(max_staleness.as_secs()).unwrap_or(u32::MAX),
        agent_hash_key: agent_hash_key.as_bytes().to_vec(),
        resource_uris: resources.uris().map(str::to_owned).collect(),
    }
}

fn encode_role(role: &RoleDefinition) -> v1::Role {
    let RoleDefinition { id, name, permissions, created_revision } = role;
    v1::Role {
        id: id.to_string(),
        name: name.to_string(),
        permissions: permissions.iter().map(ToString::to_string).collect(),
        created_revision: created_revision.number(),
    }
}

fn encode_agent(agent: AgentHash, changes: &AgentChanges) -> v1::AgentChanges {
    let AgentChanges { roles, trust, status } = changes;
    let grant = |RoleGrant { role, until }: &RoleGrant| v1::RoleGrant {
        role_id: role.to_string(),
        until: until.map(Timestamp::micros),
    };
    v1::AgentChanges {
        agent_hash: agent.to_bytes().to_vec(),
        roles: roles.as_ref().map(|facet| v1::RolesFacet {
            revision: facet.revision.number(),
            grants: facet.value.iter().map(grant).collect(),
        }),
        trust: trust.as_ref().map(|facet| v1::TrustFacet {
            revision: facet.revision.number(),
            // A score has at most 10,000 hundredths, so the conversion does not fail.
            hundredths: i32::try_from(facet.value.hundredths()).unwrap_or(i32::MAX),
        }),
        status: status.as_ref().map(|facet| v1::StatusFacet {
            revision: facet.revision.number(),
            status: encode_status(facet.value.status).into(),
            cutoff: facet.value.cutoff.number(),
        }),
    }
}

const fn encode_status(status: AgentStatus) -> v1::AgentStatus {
    match status {
        AgentStatus::Active => v1::AgentStatus::Active,
        AgentStatus::Suspended => v1::AgentStatus::Suspended,
        AgentStatus::Revoked => v1::AgentStatus::Revoked,
    }
}

fn encode_revocation(Revocation { revision, subject }: Revocation) -> v1::Revocation {
    use v1::revocation::Subject;
    let subject = match subject {
        RevokedSubject::Token(token) => Subject::TokenId(token.to_string()),
        RevokedSubject::Session(session) => Subject::SessionId(session.to_string()),
    };
    v1::Revocation { revision: revision.number(), subject: Some(subject) }
}
