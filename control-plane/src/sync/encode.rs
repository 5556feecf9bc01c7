//! Encodes changes as messages of the sync protocol, with pure functions.

use super::{
    change_batch::{Changes, RevokedSubject},
    context::SidecarSettings,
};
use crate::domain::service::ServiceSettings;
use bytes::Bytes;
use countersign_identity::{
    AgentChanges, AgentHashKey, AgentId, AgentStatus, Revision, RoleDefinition, RoleGrant, ServiceId, Timestamp,
};
use countersign_proto::{PROTOCOL_VERSION, v1};
use prost::Message as _;

/// The message that carries changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PageKind {
    /// A part of a snapshot, which the sidecar applies after the last page.
    Snapshot,
    /// Changes, which the sidecar applies at once.
    Changes,
}

/// The values that the messages of a stream depend on, besides the changes.
#[derive(Debug, Clone)]
pub struct StreamFormat {
    pub service: ServiceId,
    pub settings: SidecarSettings,
    /// The key with which agent ids are hashed for the sidecars of the service.
    pub agent_hash_key: AgentHashKey,
}

impl StreamFormat {
    /// The size in bytes at which changes are split into several messages, so that the few messages that wait for a slow sidecar
    /// are small. A message is larger by at most one agent, which has at most 256 roles, so it is far below the size limit of gRPC.
    /// Two messages are never split: the settings with the signing keys, and the role definitions, which
    /// [`crate::domain::role::MAX_DEFINITION_BYTES`] bounds.
    pub const MAX_BODY: usize = 32 * 1024;

    /// The header of a snapshot: the settings, role definitions and signing keys, as fields of a `SnapshotPage`.
    pub fn snapshot_header(&self, changes: &Changes) -> Bytes {
        let roles = changes.definitions.as_ref().map(|definitions| roles_message(definitions.roles()));
        Body { roles, ..self.service_body(changes) }.encode(PageKind::Snapshot)
    }

    /// The settings of the service: the fields of a `SnapshotPage` or a `Delta`.
    pub fn settings(&self, kind: PageKind, settings: &ServiceSettings) -> Bytes {
        Body { info: Some(self.service_info(settings)), ..Body::default() }.encode(kind)
    }

    /// The changes in parts of bounded size, each with fields of a `SnapshotPage` or a `Delta`; no part if there are no changes. Each
    /// part is encoded when it is needed, so that a slow sidecar occupies little memory.
    pub fn bodies<'a>(&'a self, kind: PageKind, changes: &'a Changes) -> impl Iterator<Item = Bytes> + Send + 'a {
        let settings = Some(self.service_body(changes)).filter(|body| *body != Body::default());
        let settings = settings.map(|body| body.encode(kind));
        let definitions = changes.definitions.as_ref().map(|definitions| match kind {
            // A live change goes to all streams of the service, which share the encoded roles.
            PageKind::Changes => definitions.encoded(|roles| roles_body(roles).encode(PageKind::Changes)),
            PageKind::Snapshot => roles_body(definitions.roles()).encode(kind),
        });
        let (mut agents, mut revoked) = (changes.agents.iter(), changes.revoked.iter());
        let rest = std::iter::from_fn(move || {
            let (mut body, mut size) = (Body::default(), 0);
            while size < Self::MAX_BODY {
                if let Some((agent, changes)) = agents.next() {
                    let message = self.agent_message(*agent, changes.clone());
                    size += message.encoded_len();
                    body.agents.push(message);
                } else if let Some((subject, revision)) = revoked.next() {
                    let message = revocation_message(*subject, *revision);
                    size += message.encoded_len();
                    body.revocations.push(message);
                } else {
                    break;
                }
            }
            (size > 0).then(|| body.encode(kind))
        });
        settings.into_iter().chain(definitions).chain(rest)
    }

    /// The settings and signing keys.
    fn service_body(&self, changes: &Changes) -> Body {
        let info = changes.settings.as_ref().map(|settings| self.service_info(settings));
        Body { info, keys: changes.keys.clone().map(|points| v1::Keys { points }), ..Body::default() }
    }

    fn service_info(&self, settings: &ServiceSettings) -> v1::ServiceInfo {
        let ServiceSettings { accepts_unbound, resource_uris } = settings;
        let SidecarSettings { issuer, max_staleness } = &self.settings;
        v1::ServiceInfo {
            protocol_version: PROTOCOL_VERSION,
            service_id: self.service.to_string(),
            issuer: issuer.clone(),
            accepts_unbound_tokens: *accepts_unbound,
            max_staleness_seconds: u32::try_from(max_staleness.as_secs()).unwrap_or(u32::MAX),
            agent_hash_key: self.agent_hash_key.as_bytes().to_vec(),
            resource_uris: resource_uris.iter().map(|uri| uri.as_str().to_owned()).collect(),
        }
    }

    fn agent_message(&self, agent: AgentId, changes: AgentChanges) -> v1::AgentChanges {
        let AgentChanges { roles, trust, status } = changes;
        v1::AgentChanges {
            agent_hash: self.agent_hash_key.hash(agent).to_bytes().to_vec(),
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

/// The fields that a `SnapshotPage` and a `Delta` have in common.
#[derive(Debug, Default, PartialEq)]
struct Body {
    info: Option<v1::ServiceInfo>,
    keys: Option<v1::Keys>,
    roles: Option<v1::Roles>,
    agents: Vec<v1::AgentChanges>,
    revocations: Vec<v1::Revocation>,
}

impl Body {
    fn encode(self, kind: PageKind) -> Bytes {
        let Self { info, keys, roles, agents, revocations } = self;
        let bytes = match kind {
            PageKind::Snapshot => {
                let page = v1::SnapshotPage { info, keys, roles, agents, revocations, ..v1::SnapshotPage::default() };
                page.encode_to_vec()
            }
            PageKind::Changes => {
                v1::Delta { info, keys, roles, agents, revocations, ..v1::Delta::default() }.encode_to_vec()
            }
        };
        bytes.into()
    }
}

fn roles_body(definitions: &[RoleDefinition]) -> Body {
    Body { roles: Some(roles_message(definitions)), ..Body::default() }
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

fn revocation_message(subject: RevokedSubject, revision: Revision) -> v1::Revocation {
    let subject = match subject {
        RevokedSubject::Token(token) => v1::revocation::Subject::TokenId(token.to_string()),
        RevokedSubject::Session(session) => v1::revocation::Subject::SessionId(session.to_string()),
    };
    v1::Revocation { revision: revision.number(), subject: Some(subject) }
}
