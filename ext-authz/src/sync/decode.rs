//! Wire messages → parts of a view, or the precise reason why not.
//!
//! Every message is taken apart completely, so that a field added to the contract cannot be forgotten
//! here.

use crate::view::{Dead, Delta, Revoked, Terms};
use countersign_identity::{
    AgentChanges, AgentId, AgentStatus, KeySet, Permission, Revision, RoleDefinition, RoleGrant, RoleName, RoleTable,
    StatusWithCutoff, Timestamp, TrustScore, Versioned,
};
use countersign_proto::v1;
use std::{collections::HashSet, str::FromStr, time::Duration};

/// Why a message is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// A part is not there.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A part does not mean anything.
    #[error("{what}: `{value}` {error}")]
    Invalid {
        /// The part.
        what: &'static str,
        /// What it says, or a stand-in for it.
        value: String,
        /// What is wrong with it.
        error: String,
    },
    /// The message does not fit those before it.
    #[error("{0}")]
    OutOfPlace(&'static str),
}

type Result<T> = std::result::Result<T, MessageError>;

fn invalid(what: &'static str, value: &impl ToString, error: &(impl ToString + ?Sized)) -> MessageError {
    MessageError::Invalid { what, value: value.to_string(), error: error.to_string() }
}

/// One page of a snapshot.
#[derive(Debug)]
pub struct Page {
    /// The revision of the snapshot, the same on every page.
    pub revision: Revision,
    /// Its floor, the same on every page.
    pub floor: Revision,
    /// On the first page only.
    pub head: Option<Head>,
    /// Agents that changed above the floor.
    pub agents: Vec<(AgentId, AgentChanges)>,
    /// Deaths above the floor.
    pub revoked: Vec<Revoked>,
    /// Whether the snapshot is whole with this page.
    pub last: bool,
}

/// What the first page of a snapshot must have.
#[derive(Debug)]
pub struct Head {
    /// How the service wants its tokens judged.
    pub terms: Terms,
    /// The keys whose tokens are believed.
    pub keys: KeySet,
    /// The service's roles.
    pub roles: RoleTable,
}

/// Reads a page.
pub fn page(message: v1::SnapshotPage) -> Result<Page> {
    let v1::SnapshotPage { revision, floor, info, keys, roles, agents, revocations, last } = message;
    let head = match info {
        Some(info) => Some(Head {
            terms: terms(info)?,
            keys: key_set(keys.ok_or(MessageError::Missing("keys of a snapshot"))?)?,
            roles: role_table(roles.ok_or(MessageError::Missing("roles of a snapshot"))?)?,
        }),
        None if keys.is_some() || roles.is_some() => return Err(MessageError::Missing("info of a snapshot")),
        None => None,
    };
    let (revision, floor) = (stamp("revision", revision)?, Revision::new(floor));
    Ok(Page { revision, floor, head, agents: records(agents)?, revoked: deaths(revocations)?, last })
}

/// Reads a change.
pub fn delta(message: v1::Delta) -> Result<Delta> {
    let v1::Delta { revision, info, keys, roles, agents, revocations } = message;
    Ok(Delta {
        revision: stamp("revision", revision)?,
        terms: info.map(terms).transpose()?,
        keys: keys.map(key_set).transpose()?,
        roles: roles.map(role_table).transpose()?,
        agents: records(agents)?,
        revoked: deaths(revocations)?,
    })
}

/// Revisions are counted from 0, the state before the first change.
fn stamp(what: &'static str, number: i64) -> Result<Revision> {
    if number >= 0 { Ok(Revision::new(number)) } else { Err(invalid(what, &number, "is not a revision")) }
}

fn id<T: FromStr>(what: &'static str, text: &str) -> Result<T>
where
    T::Err: ToString,
{
    text.parse().map_err(|error: T::Err| invalid(what, &text, &error))
}

fn terms(message: v1::ServiceInfo) -> Result<Terms> {
    let v1::ServiceInfo { service_id, issuer, accepts_unbound_tokens, max_staleness_seconds } = message;
    if issuer.is_empty() {
        return Err(MessageError::Missing("issuer"));
    }
    if max_staleness_seconds == 0 {
        return Err(MessageError::Missing("max_staleness_seconds"));
    }
    Ok(Terms {
        service: id("service_id", &service_id)?,
        issuer: issuer.into(),
        accepts_unbound: accepts_unbound_tokens,
        max_staleness: Duration::from_secs(max_staleness_seconds.into()),
    })
}

fn key_set(message: v1::Keys) -> Result<KeySet> {
    let v1::Keys { points } = message;
    let count = points.len();
    KeySet::from_points(points).map_err(|error| invalid("keys", &format!("{count} points"), &error))
}

/// A name that meant two roles would mean one of them by chance.
fn role_table(message: v1::Roles) -> Result<RoleTable> {
    let v1::Roles { roles } = message;
    let roles: Vec<RoleDefinition> = roles.into_iter().map(role).collect::<Result<_>>()?;
    let (mut ids, mut names) = (HashSet::new(), HashSet::new());
    match roles.iter().find(|role| !ids.insert(role.id) || !names.insert(&role.name)) {
        Some(again) => Err(invalid("role", &again.name, "stands twice")),
        None => Ok(roles.into_iter().collect()),
    }
}

fn role(message: v1::Role) -> Result<RoleDefinition> {
    let v1::Role { id: role, name, permissions, created_revision } = message;
    let permission =
        |text: String| Permission::try_from(text.as_str()).map_err(|error| invalid("permission", &text, &error));
    Ok(RoleDefinition {
        id: id("role id", &role)?,
        name: RoleName::try_from(name.as_str()).map_err(|error| invalid("role name", &name, &error))?,
        permissions: permissions.into_iter().map(permission).collect::<Result<_>>()?,
        created_revision: stamp("created_revision", created_revision)?,
    })
}

fn records(messages: Vec<v1::AgentChanges>) -> Result<Vec<(AgentId, AgentChanges)>> {
    messages.into_iter().map(record).collect()
}

fn record(message: v1::AgentChanges) -> Result<(AgentId, AgentChanges)> {
    let v1::AgentChanges { agent_id, roles, trust, status } = message;
    let record = AgentChanges {
        roles: roles.map(roles_facet).transpose()?,
        trust: trust.map(trust_facet).transpose()?,
        status: status.map(status_facet).transpose()?,
    };
    Ok((id("agent_id", &agent_id)?, record))
}

fn roles_facet(message: v1::RolesFacet) -> Result<Versioned<Vec<RoleGrant>>> {
    let v1::RolesFacet { revision, grants } = message;
    let grant = |v1::RoleGrant { role_id, until }| {
        Ok(RoleGrant { role: id("role_id", &role_id)?, until: until.map(Timestamp::from_micros) })
    };
    Ok(Versioned {
        revision: stamp("revision of roles", revision)?,
        value: grants.into_iter().map(grant).collect::<Result<_>>()?,
    })
}

fn trust_facet(message: v1::TrustFacet) -> Result<Versioned<TrustScore>> {
    let v1::TrustFacet { revision, hundredths } = message;
    let value =
        TrustScore::from_hundredths(hundredths.into()).map_err(|error| invalid("trust", &hundredths, &error))?;
    Ok(Versioned { revision: stamp("revision of trust", revision)?, value })
}

fn status_facet(message: v1::StatusFacet) -> Result<Versioned<StatusWithCutoff>> {
    let v1::StatusFacet { revision, status, cutoff } = message;
    let status = match v1::AgentStatus::try_from(status) {
        Ok(v1::AgentStatus::Active) => AgentStatus::Active,
        Ok(v1::AgentStatus::Suspended) => AgentStatus::Suspended,
        Ok(v1::AgentStatus::Revoked) => AgentStatus::Revoked,
        Ok(v1::AgentStatus::Unspecified) | Err(_) => return Err(invalid("status", &status, "is not a status")),
    };
    let value = StatusWithCutoff { status, cutoff: Revision::new(cutoff) };
    Ok(Versioned { revision: stamp("revision of status", revision)?, value })
}

fn deaths(messages: Vec<v1::Revocation>) -> Result<Vec<Revoked>> {
    messages.into_iter().map(death).collect()
}

fn death(message: v1::Revocation) -> Result<Revoked> {
    use v1::revocation::Subject;
    let v1::Revocation { revision, subject } = message;
    let what = match subject.ok_or(MessageError::Missing("subject of a revocation"))? {
        Subject::TokenId(token) => Dead::Token(id("token_id", &token)?),
        Subject::SessionId(session) => Dead::Session(id("session_id", &session)?),
    };
    Ok(Revoked { revision: stamp("revision of a revocation", revision)?, what })
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_identity::{RoleId, ServiceId, SessionId};

    fn info() -> v1::ServiceInfo {
        v1::ServiceInfo {
            service_id: ServiceId::from_bits(1).to_string(),
            issuer: "https://issuer.test".into(),
            accepts_unbound_tokens: true,
            max_staleness_seconds: 60,
        }
    }

    fn good() -> v1::Delta {
        let role_id = RoleId::from_bits(3).to_string();
        v1::Delta {
            revision: 9,
            info: Some(info()),
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
                agent_id: AgentId::from_bits(2).to_string(),
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
    fn every_part_of_a_change_is_read() {
        let read = delta(good()).unwrap();
        assert_eq!(read.revision, Revision::new(9));
        assert_eq!(read.terms.unwrap().max_staleness, Duration::from_mins(1));
        assert!(read.roles.unwrap().get(RoleId::from_bits(3)).is_some());
        let (agent, record) = &read.agents[0];
        assert_eq!(*agent, AgentId::from_bits(2));
        assert_eq!(record.roles.as_ref().unwrap().value[0].until, Some(Timestamp::from_micros(7)));
        assert_eq!(record.trust.as_ref().unwrap().value.hundredths(), 6250);
        assert_eq!(record.status.as_ref().unwrap().value.status, AgentStatus::Suspended);
        assert_eq!(read.revoked[0].what, Dead::Session(SessionId::from_bits(4)));
    }

    #[test]
    fn one_bad_part_refuses_the_whole_message() {
        type Spoil = fn(&mut v1::Delta);
        let spoils: [(&str, Spoil); 15] = [
            ("revision", |it| it.revision = -1),
            ("max_staleness_seconds", |it| it.info.as_mut().unwrap().max_staleness_seconds = 0),
            ("service_id", |it| it.info.as_mut().unwrap().service_id.clear()),
            ("issuer", |it| it.info.as_mut().unwrap().issuer.clear()),
            ("keys", |it| it.keys = Some(v1::Keys { points: vec![vec![4; 65]] })),
            ("role name", |it| it.roles.as_mut().unwrap().roles[0].name.clear()),
            ("permission", |it| it.roles.as_mut().unwrap().roles[0].permissions.push("a,b".into())),
            ("role: `reader` stands twice", |it| {
                let roles = &mut it.roles.as_mut().unwrap().roles;
                roles.push(v1::Role { id: RoleId::from_bits(4).to_string(), ..roles[0].clone() });
            }),
            ("role: `writer` stands twice", |it| {
                let roles = &mut it.roles.as_mut().unwrap().roles;
                roles.push(v1::Role { name: "writer".into(), ..roles[0].clone() });
            }),
            ("agent_id", |it| it.agents[0].agent_id.push('x')),
            ("role_id", |it| it.agents[0].roles.as_mut().unwrap().grants[0].role_id.clear()),
            ("trust", |it| it.agents[0].trust.as_mut().unwrap().hundredths = 10_001),
            ("status", |it| it.agents[0].status.as_mut().unwrap().status = 0),
            ("status", |it| it.agents[0].status.as_mut().unwrap().status = 9),
            ("subject", |it| it.revocations[0].subject = None),
        ];
        for (part, spoil) in spoils {
            let mut message = good();
            spoil(&mut message);
            let error = delta(message).unwrap_err().to_string();
            assert!(error.starts_with(part), "{part}: {error}");
        }
    }

    #[test]
    fn a_first_page_has_its_head_whole() {
        let whole = v1::SnapshotPage {
            revision: 1,
            info: Some(info()),
            keys: Some(v1::Keys::default()),
            roles: Some(v1::Roles::default()),
            ..v1::SnapshotPage::default()
        };
        assert!(page(whole.clone()).unwrap().head.is_some());
        assert!(page(v1::SnapshotPage { keys: None, ..whole.clone() }).is_err());
        assert!(page(v1::SnapshotPage { roles: None, ..whole.clone() }).is_err());
        assert!(page(v1::SnapshotPage { info: None, ..whole }).is_err());
    }
}
