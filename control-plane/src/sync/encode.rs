//! Converts batches of changes to messages of the sync protocol, with pure functions.

use super::{
    change_batch::{BatchRange, Changes, RevokedSubject},
    context::SidecarSettings,
};
use countersign_identity::{
    AgentChanges, AgentHashKey, AgentId, AgentStatus, Revision, RoleDefinition, RoleGrant, ServiceId, Timestamp,
};
use countersign_proto::v1;

/// Maximum number of agents or revocations in one message. An agent has at most 256 roles, so a full page is far below the
/// size limit of gRPC messages.
const PAGE_SIZE: usize = 250;

/// What the encoding of a stream depends on.
#[derive(Debug, Clone)]
pub struct StreamFormat {
    /// The service of the sidecar.
    pub service: ServiceId,
    /// Settings of the control plane.
    pub settings: SidecarSettings,
    /// The key of the hashes that name agents; `None` for a sidecar of the previous version, which needs plain ids.
    pub agent_hash_key: Option<AgentHashKey>,
}

impl StreamFormat {
    /// The complete data that a sidecar of the service needs, in pages. The last page of a snapshot is marked.
    pub fn snapshot(&self, range: BatchRange, changes: &Changes) -> Vec<v1::SnapshotPage> {
        let empty_page = || v1::SnapshotPage {
            revision: range.revision.number(),
            floor: range.floor.number(),
            ..v1::SnapshotPage::default()
        };
        let (info, keys, roles) = self.service_parts(changes);
        let mut pages = vec![v1::SnapshotPage { info, keys, roles, ..empty_page() }];
        pages.extend(
            self.agent_messages(changes)
                .chunks(PAGE_SIZE)
                .map(|agents| v1::SnapshotPage { agents: agents.to_vec(), ..empty_page() }),
        );
        pages.extend(
            revocations(changes)
                .chunks(PAGE_SIZE)
                .map(|revoked| v1::SnapshotPage { revocations: revoked.to_vec(), ..empty_page() }),
        );
        if let Some(last) = pages.last_mut() {
            last.last = true;
        }
        pages
    }

    /// The changes in messages of bounded size; no message if there are no changes. Only the last message of a batch has the
    /// new revision, so a sidecar that receives only some of the messages resumes from its old revision.
    pub fn delta(&self, range: BatchRange, changes: &Changes) -> Vec<v1::Delta> {
        let empty_delta = || v1::Delta { revision: range.since.number(), ..v1::Delta::default() };
        let (info, keys, roles) = self.service_parts(changes);
        let service_delta = v1::Delta { info, keys, roles, ..empty_delta() };
        let mut messages = Vec::new();
        if service_delta != empty_delta() {
            messages.push(service_delta);
        }
        let agents = self.agent_messages(changes);
        messages.extend(agents.chunks(PAGE_SIZE).map(|agents| v1::Delta { agents: agents.to_vec(), ..empty_delta() }));
        let revoked = revocations(changes);
        messages.extend(
            revoked.chunks(PAGE_SIZE).map(|revoked| v1::Delta { revocations: revoked.to_vec(), ..empty_delta() }),
        );
        if let Some(last) = messages.last_mut() {
            last.revision = range.revision.number();
        }
        messages
    }

    fn service_parts(&self, changes: &Changes) -> (Option<v1::ServiceInfo>, Option<v1::Keys>, Option<v1::Roles>) {
        (
            changes.accepts_unbound.map(|accepts_unbound| self.service_info(accepts_unbound)),
            changes.keys.as_deref().map(keys_message),
            changes.definitions.as_deref().map(roles_message),
        )
    }

    fn service_info(&self, accepts_unbound: bool) -> v1::ServiceInfo {
        let SidecarSettings { issuer, max_staleness } = &self.settings;
        v1::ServiceInfo {
            service_id: self.service.to_string(),
            issuer: issuer.clone(),
            // Without hashes, changes that concern unbound tokens are not sent, so the sidecar must refuse such tokens.
            accepts_unbound_tokens: accepts_unbound && self.agent_hash_key.is_some(),
            max_staleness_seconds: u32::try_from(max_staleness.as_secs()).unwrap_or(u32::MAX),
            agent_hash_key: self.agent_hash_key.as_ref().map_or_else(Vec::new, |key| key.as_bytes().to_vec()),
        }
    }

    fn agent_messages(&self, changes: &Changes) -> Vec<v1::AgentChanges> {
        changes.agents.iter().map(|(agent, changes)| self.agent_message(*agent, changes.clone())).collect()
    }

    fn agent_message(&self, agent: AgentId, changes: AgentChanges) -> v1::AgentChanges {
        let AgentChanges { roles, trust, status } = changes;
        let (agent_id, agent_hash) = match &self.agent_hash_key {
            Some(key) => (String::new(), key.hash(agent).to_bytes().to_vec()),
            None => (agent.to_string(), Vec::new()),
        };
        v1::AgentChanges {
            agent_id,
            agent_hash,
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

fn revocations(changes: &Changes) -> Vec<v1::Revocation> {
    changes.revoked.iter().map(|(subject, revision)| revocation_message(*subject, *revision)).collect()
}

fn revocation_message(subject: RevokedSubject, revision: Revision) -> v1::Revocation {
    let subject = match subject {
        RevokedSubject::Token(token) => v1::revocation::Subject::TokenId(token.to_string()),
        RevokedSubject::Session(session) => v1::revocation::Subject::SessionId(session.to_string()),
    };
    v1::Revocation { revision: revision.number(), subject: Some(subject) }
}
