//! Parses the messages of the sync stream into the types of `view`.
//!
//! Invariant: a message with an invalid part is refused with an error that names the part. Every message is
//! destructured completely, so that the compiler reports a new field that this module does not parse.

use crate::view::{Delta, Resources, Revocation, RevokedSubject, ServiceSettings, SnapshotHeader};
use countersign_identity::{
    AgentChanges, AgentHash, AgentHashKey, AgentStatus, KeySet, Permission, Revision, RoleDefinition, RoleGrant,
    RoleName, RoleTable, StatusWithCutoff, Timestamp, TrustScore, Versioned,
};
use countersign_proto::{PROTOCOL_VERSION, v1};
use std::{collections::HashSet, str::FromStr, time::Duration};

/// Why a sync message is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{part}: `{value}` {error}")]
    Invalid {
        part: &'static str,
        /// The value of the part, or a description of the value.
        value: String,
        error: String,
    },
    /// The sync message is not allowed after the previous messages.
    #[error("{0}")]
    OutOfOrder(&'static str),
    #[error(
        "the control plane speaks version {0} of the sync protocol, the sidecar version {PROTOCOL_VERSION}: upgrade the {older}",
        older = if *.0 < PROTOCOL_VERSION { "control plane" } else { "sidecar" }
    )]
    OtherProtocolVersion(u32),
    /// The control plane hashes agent ids under a new key, so the changes do not fit the agents in the view.
    #[error("the control plane has a new agent hash key, so the next stream begins with a snapshot")]
    AgentHashKeyChanged,
    /// This address offers older data than the view, which another address sent.
    #[error(
        "the data at this address is older than the view, which another address sent: both must be replicas of one deployment"
    )]
    OlderThanView,
    /// This address belongs to another deployment than the address that sent the view.
    #[error("this address belongs to another deployment than the view: the issuer or the agent hash key differs")]
    OtherDeployment,
}

type Result<T> = std::result::Result<T, MessageError>;

fn invalid(part: &'static str, value: &impl ToString, error: &(impl ToString + ?Sized)) -> MessageError {
    MessageError::Invalid { part, value: value.to_string(), error: error.to_string() }
}

#[derive(Debug)]
pub struct ParsedPage {
    /// The revision of the snapshot, which is the same on every page.
    pub revision: Revision,
    /// The floor when the control plane read the page: changes up to the floor may be missing.
    pub floor: Revision,
    /// This page and those before it contain all changes up to this revision.
    pub cursor: Revision,
    /// `None` on all pages but the first.
    pub header: Option<PageHeader>,
    /// The changes of agents that have a revision above `floor`.
    pub agents: Vec<(AgentHash, AgentChanges)>,
    /// The revocations that have a revision above `floor`.
    pub revocations: Vec<Revocation>,
    pub last: bool,
}

/// The parts that only the first page of a snapshot in a stream contains.
#[derive(Debug)]
pub enum PageHeader {
    New(SnapshotHeader),
    /// The stream continues a snapshot that an earlier stream began.
    Continued(ServiceSettings),
}

pub fn parse_page(message: v1::SnapshotPage) -> Result<ParsedPage> {
    let v1::SnapshotPage { revision, floor, cursor, last, info, keys, roles, agents, revocations } = message;
    let header = match (info, keys, roles) {
        (Some(info), None, None) => Some(PageHeader::Continued(parse_service_settings(info)?)),
        (Some(info), keys, roles) => Some(PageHeader::New(SnapshotHeader {
            settings: parse_service_settings(info)?,
            keys: parse_key_set(keys.ok_or(MessageError::Missing("keys of a snapshot"))?)?,
            roles: parse_role_table(roles.ok_or(MessageError::Missing("roles of a snapshot"))?)?,
        })),
        (None, None, None) => None,
        (None, ..) => return Err(MessageError::Missing("info of a snapshot")),
    };
    Ok(ParsedPage {
        revision: parse_revision("revision", revision)?,
        floor: Revision::new(floor),
        cursor: parse_revision("cursor", cursor)?,
        header,
        agents: agents.into_iter().map(parse_agent_changes).collect::<Result<_>>()?,
        revocations: revocations.into_iter().map(parse_revocation).collect::<Result<_>>()?,
        last,
    })
}

pub fn parse_delta(message: v1::Delta) -> Result<Delta> {
    let v1::Delta { revision, info, keys, roles, agents, revocations } = message;
    Ok(Delta {
        revision: parse_revision("revision", revision)?,
        settings: info.map(parse_service_settings).transpose()?,
        keys: keys.map(parse_key_set).transpose()?,
        roles: roles.map(parse_role_table).transpose()?,
        agents: agents.into_iter().map(parse_agent_changes).collect::<Result<_>>()?,
        revocations: revocations.into_iter().map(parse_revocation).collect::<Result<_>>()?,
    })
}

/// Parses a revision; 0 is the state before the first change. A floor or a cutoff may be negative: then it refuses nothing.
fn parse_revision(part: &'static str, number: i64) -> Result<Revision> {
    if number >= 0 { Ok(Revision::new(number)) } else { Err(invalid(part, &number, "is not a revision")) }
}

fn parse_id<T: FromStr>(part: &'static str, text: &str) -> Result<T>
where
    T::Err: ToString,
{
    text.parse().map_err(|error: T::Err| invalid(part, &text, &error))
}

fn parse_service_settings(message: v1::ServiceInfo) -> Result<ServiceSettings> {
    let v1::ServiceInfo {
        protocol_version,
        service_id,
        issuer,
        accepts_unbound_tokens,
        max_staleness_seconds,
        agent_hash_key,
        resource_uris,
    } = message;
    if protocol_version != PROTOCOL_VERSION {
        return Err(MessageError::OtherProtocolVersion(protocol_version));
    }
    if issuer.is_empty() {
        return Err(MessageError::Missing("issuer"));
    }
    if max_staleness_seconds == 0 {
        return Err(MessageError::Missing("max_staleness_seconds"));
    }
    let resources = Resources::parse(&resource_uris, &issuer);
    let wrong_length = || invalid("agent_hash_key", &format!("{} bytes", agent_hash_key.len()), "is not a key");
    Ok(ServiceSettings {
        service: parse_id("service_id", &service_id)?,
        resources: resources.map_err(|uri| invalid("resource_uris", &uri, "is not a resource URI"))?,
        issuer: issuer.into(),
        accepts_unbound: accepts_unbound_tokens,
        max_staleness: Duration::from_secs(max_staleness_seconds.into()),
        agent_hash_key: AgentHashKey::from_bytes(&agent_hash_key).ok_or_else(wrong_length)?,
    })
}

fn parse_key_set(message: v1::Keys) -> Result<KeySet> {
    let v1::Keys { points } = message;
    let count = points.len();
    KeySet::from_points(points).map_err(|error| invalid("keys", &format!("{count} points"), &error))
}

/// Parses the roles of a service. Each id and each name must refer to one role, so duplicates are refused.
fn parse_role_table(message: v1::Roles) -> Result<RoleTable> {
    let v1::Roles { roles } = message;
    let roles: Vec<RoleDefinition> = roles.into_iter().map(parse_role).collect::<Result<_>>()?;
    let (mut ids, mut names) = (HashSet::new(), HashSet::new());
    match roles.iter().find(|role| !ids.insert(role.id) || !names.insert(&role.name)) {
        Some(duplicate) => Err(invalid("role", &duplicate.name, "is duplicated")),
        None => Ok(roles.into_iter().collect()),
    }
}

fn parse_role(message: v1::Role) -> Result<RoleDefinition> {
    let v1::Role { id: role_id, name, permissions, created_revision } = message;
    let permission =
        |text: String| Permission::try_from(text.as_str()).map_err(|error| invalid("permission", &text, &error));
    Ok(RoleDefinition {
        id: parse_id("role id", &role_id)?,
        name: RoleName::try_from(name.as_str()).map_err(|error| invalid("role name", &name, &error))?,
        permissions: permissions.into_iter().map(permission).collect::<Result<_>>()?,
        created_revision: parse_revision("created_revision", created_revision)?,
    })
}

fn parse_agent_changes(message: v1::AgentChanges) -> Result<(AgentHash, AgentChanges)> {
    let v1::AgentChanges { agent_hash, roles, trust, status } = message;
    let changes = AgentChanges {
        roles: roles.map(parse_roles_facet).transpose()?,
        trust: trust.map(parse_trust_facet).transpose()?,
        status: status.map(parse_status_facet).transpose()?,
    };
    let invalid_length = || invalid("agent_hash", &format!("{} bytes", agent_hash.len()), "is not a hash");
    Ok((AgentHash::from_bytes(&agent_hash).ok_or_else(invalid_length)?, changes))
}

fn parse_roles_facet(message: v1::RolesFacet) -> Result<Versioned<Vec<RoleGrant>>> {
    let v1::RolesFacet { revision, grants } = message;
    let grant = |v1::RoleGrant { role_id, until }| {
        Ok(RoleGrant { role: parse_id("role_id", &role_id)?, until: until.map(Timestamp::from_micros) })
    };
    Ok(Versioned {
        revision: parse_revision("revision of roles", revision)?,
        value: grants.into_iter().map(grant).collect::<Result<_>>()?,
    })
}

fn parse_trust_facet(message: v1::TrustFacet) -> Result<Versioned<TrustScore>> {
    let v1::TrustFacet { revision, hundredths } = message;
    let value =
        TrustScore::from_hundredths(hundredths.into()).map_err(|error| invalid("trust", &hundredths, &error))?;
    Ok(Versioned { revision: parse_revision("revision of trust", revision)?, value })
}

fn parse_status_facet(message: v1::StatusFacet) -> Result<Versioned<StatusWithCutoff>> {
    let v1::StatusFacet { revision, status, cutoff } = message;
    let status = match v1::AgentStatus::try_from(status) {
        Ok(v1::AgentStatus::Active) => AgentStatus::Active,
        Ok(v1::AgentStatus::Suspended) => AgentStatus::Suspended,
        Ok(v1::AgentStatus::Revoked) => AgentStatus::Revoked,
        Ok(v1::AgentStatus::Unspecified) | Err(_) => return Err(invalid("status", &status, "is not a status")),
    };
    let value = StatusWithCutoff { status, cutoff: Revision::new(cutoff) };
    Ok(Versioned { revision: parse_revision("revision of status", revision)?, value })
}

fn parse_revocation(message: v1::Revocation) -> Result<Revocation> {
    use v1::revocation::Subject;
    let v1::Revocation { revision, subject } = message;
    let subject = match subject.ok_or(MessageError::Missing("subject of a revocation"))? {
        Subject::TokenId(token) => RevokedSubject::Token(parse_id("token_id", &token)?),
        Subject::SessionId(session) => RevokedSubject::Session(parse_id("session_id", &session)?),
    };
    Ok(Revocation { revision: parse_revision("revision of a revocation", revision)?, subject })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::fixtures::SERVICE_ID;
    use countersign_identity::{RoleId, ServiceId, SessionId};

    /// The settings of a service.
    pub fn info(service: ServiceId) -> v1::ServiceInfo {
        v1::ServiceInfo {
            service_id: service.to_string(),
            issuer: "https://issuer.test".into(),
            accepts_unbound_tokens: true,
            max_staleness_seconds: 60,
            agent_hash_key: vec![7; 32],
            protocol_version: PROTOCOL_VERSION,
            resource_uris: vec![],
        }
    }

    fn valid_delta() -> v1::Delta {
        let role_id = RoleId::from_bits(3).to_string();
        v1::Delta {
            revision: 9,
            info: Some(info(SERVICE_ID)),
            keys: Some(v1::Keys { points: vec![] }),
            roles: Some(v1::Roles {
                roles: vec![v1::Role {
                    id: role_id.clone(),
                    name: "reader".into(),
                    permissions: vec!["read".into()],
                    created_revision: 4,
                }],
            }),
            agents: vec![v1::AgentChanges {
                agent_hash: vec![9; 16],
                roles: Some(v1::RolesFacet { revision: 5, grants: vec![v1::RoleGrant { role_id, until: Some(7) }] }),
                trust: Some(v1::TrustFacet { revision: 6, hundredths: 6250 }),
                status: Some(v1::StatusFacet { revision: 7, status: 2, cutoff: 7 }),
            }],
            revocations: vec![v1::Revocation {
                revision: 8,
                subject: Some(v1::revocation::Subject::SessionId(SessionId::from_bits(4).to_string())),
            }],
        }
    }

    #[test]
    fn parse_delta_parses_every_part() {
        let parsed = parse_delta(valid_delta()).unwrap();
        assert_eq!(parsed.revision, Revision::new(9));
        let settings = parsed.settings.unwrap();
        assert_eq!(settings.max_staleness, Duration::from_mins(1));
        assert_eq!(Some(settings.agent_hash_key), AgentHashKey::from_bytes(&[7; 32]));
        assert!(parsed.roles.unwrap().get(RoleId::from_bits(3)).is_some());
        let (agent, changes) = &parsed.agents[0];
        assert_eq!(Some(*agent), AgentHash::from_bytes(&[9; 16]));
        assert_eq!(changes.roles.as_ref().unwrap().value[0].until, Some(Timestamp::from_micros(7)));
        assert_eq!(changes.trust.as_ref().unwrap().value.hundredths(), 6250);
        assert_eq!(changes.status.as_ref().unwrap().value.status, AgentStatus::Suspended);
        assert_eq!(parsed.revocations[0].subject, RevokedSubject::Session(SessionId::from_bits(4)));
    }

    #[test]
    fn parse_delta_refuses_a_message_with_one_invalid_part() {
        type Corruption = fn(&mut v1::Delta);
        let corruptions: [(&str, Corruption); 18] = [
            ("revision", |delta| delta.revision = -1),
            ("max_staleness_seconds", |delta| delta.info.as_mut().unwrap().max_staleness_seconds = 0),
            ("service_id", |delta| delta.info.as_mut().unwrap().service_id.clear()),
            ("issuer", |delta| delta.info.as_mut().unwrap().issuer.clear()),
            ("keys", |delta| delta.keys = Some(v1::Keys { points: vec![vec![4; 65]] })),
            ("role name", |delta| delta.roles.as_mut().unwrap().roles[0].name.clear()),
            ("permission", |delta| delta.roles.as_mut().unwrap().roles[0].permissions.push("a,b".into())),
            ("role: `reader` is duplicated", |delta| {
                let roles = &mut delta.roles.as_mut().unwrap().roles;
                roles.push(v1::Role { id: RoleId::from_bits(4).to_string(), ..roles[0].clone() });
            }),
            ("role: `writer` is duplicated", |delta| {
                let roles = &mut delta.roles.as_mut().unwrap().roles;
                roles.push(v1::Role { name: "writer".into(), ..roles[0].clone() });
            }),
            ("agent_hash_key", |delta| delta.info.as_mut().unwrap().agent_hash_key.push(1)),
            ("agent_hash_key", |delta| delta.info.as_mut().unwrap().agent_hash_key.clear()),
            ("agent_hash", |delta| delta.agents[0].agent_hash.truncate(15)),
            ("agent_hash", |delta| delta.agents[0].agent_hash.clear()),
            ("role_id", |delta| delta.agents[0].roles.as_mut().unwrap().grants[0].role_id.clear()),
            ("trust", |delta| delta.agents[0].trust.as_mut().unwrap().hundredths = 10_001),
            ("status", |delta| delta.agents[0].status.as_mut().unwrap().status = 0),
            ("status", |delta| delta.agents[0].status.as_mut().unwrap().status = 9),
            ("subject", |delta| delta.revocations[0].subject = None),
        ];
        for (part, corrupt) in corruptions {
            let mut message = valid_delta();
            corrupt(&mut message);
            let error = parse_delta(message).unwrap_err().to_string();
            assert!(error.starts_with(part), "{part}: {error}");
        }
    }

    #[test]
    fn data_in_another_version_of_the_protocol_is_refused_with_both_versions_and_advice() {
        for (version, advice) in [(0, "upgrade the control plane"), (2, "upgrade the sidecar")] {
            let mut message = valid_delta();
            message.info.as_mut().unwrap().protocol_version = version;
            let error = parse_delta(message).unwrap_err();
            assert_eq!(error, MessageError::OtherProtocolVersion(version));
            let text = error.to_string();
            let expected = [format!("version {version}"), format!("version {PROTOCOL_VERSION}"), advice.to_owned()];
            assert!(expected.iter().all(|expected| text.contains(expected)), "{text}");
        }
    }

    #[test]
    fn parse_page_refuses_an_incomplete_header() {
        let complete = v1::SnapshotPage {
            revision: 1,
            info: Some(info(SERVICE_ID)),
            keys: Some(v1::Keys::default()),
            roles: Some(v1::Roles::default()),
            ..v1::SnapshotPage::default()
        };
        assert!(parse_page(complete.clone()).unwrap().header.is_some());
        assert!(parse_page(v1::SnapshotPage { keys: None, ..complete.clone() }).is_err());
        assert!(parse_page(v1::SnapshotPage { roles: None, ..complete.clone() }).is_err());
        assert!(parse_page(v1::SnapshotPage { info: None, ..complete.clone() }).is_err());
        assert!(parse_page(v1::SnapshotPage { cursor: -1, ..complete.clone() }).is_err());
        let continued = parse_page(v1::SnapshotPage { keys: None, roles: None, ..complete }).unwrap();
        assert!(matches!(continued.header, Some(PageHeader::Continued(_))));
    }
}
