//! Generators of sync messages, and a reference implementation of their validity check.

use super::super::*;
use countersign_identity::{
    AgentHash, AgentHashKey, AgentId, P256PublicKey, Permission, RoleId, RoleName, SessionId, TokenId,
};
use countersign_mangle::{any_bytes, any_text};
use countersign_proto::PROTOCOL_VERSION;
use proptest::{collection::vec, option, prelude::*, sample::select};
use std::collections::HashSet;
use v1::revocation::Subject;

/// Generates small revisions, and sometimes extreme numbers.
fn revision_number() -> BoxedStrategy<i64> {
    prop_oneof![8 => 0..12_i64, 1 => select(&[-1, i64::MIN, i64::MAX][..])].boxed()
}

/// Generates ids from a small set, so that different messages refer to the same objects, and sometimes invalid ids.
fn id(prefix: &'static str) -> BoxedStrategy<String> {
    let valid = (0..4_u128).prop_map(move |bits| AgentId::from_bits(bits).to_string().replace("agent_", prefix));
    prop_oneof![40 => valid, 1 => any_text()].boxed()
}

/// Generates the hash key of the stream, and sometimes another key, or none.
fn agent_hash_key() -> BoxedStrategy<Vec<u8>> {
    prop_oneof![20 => Just(AGENT_HASH_KEY.to_vec()), 2 => Just(vec![]), 1 => any_bytes()].boxed()
}

/// Generates hashes of the agents of [`id`], and sometimes invalid hashes.
fn agent_hash() -> BoxedStrategy<Vec<u8>> {
    let key = AgentHashKey::from_bytes(&AGENT_HASH_KEY).unwrap();
    let valid = (0..4_u128).prop_map(move |bits| key.hash(AgentId::from_bits(bits)).to_bytes().to_vec());
    prop_oneof![40 => valid, 1 => any_bytes()].boxed()
}

/// Generates the version of the protocol, and sometimes another one.
fn protocol_version() -> BoxedStrategy<u32> {
    prop_oneof![40 => Just(PROTOCOL_VERSION), 1 => 0..3_u32].boxed()
}

fn service_info() -> BoxedStrategy<v1::ServiceInfo> {
    let seconds = prop_oneof![9 => 1..100_u32, 1 => Just(0)];
    let service_id = prop_oneof![9 => Just(SERVICE_ID.to_string()), 1 => id("svc_")];
    (service_id, seconds, proptest::arbitrary::any::<bool>(), agent_hash_key(), protocol_version())
        .prop_map(|(service_id, max_staleness_seconds, accepts_unbound_tokens, agent_hash_key, protocol_version)| {
            v1::ServiceInfo {
                service_id,
                issuer: "https://issuer.test".into(),
                accepts_unbound_tokens,
                max_staleness_seconds,
                agent_hash_key,
                protocol_version,
                resource_uris: vec![],
            }
        })
        .boxed()
}

fn roles() -> BoxedStrategy<v1::Roles> {
    let name = prop_oneof![20 => select(&["reader", "writer"][..]).prop_map(str::to_owned), 1 => any_text()];
    let role = (id("role_"), name, revision_number()).prop_map(|(id, name, created_revision)| {
        let permissions = vec![format!("use:{id}")];
        v1::Role { id, name, permissions, created_revision }
    });
    vec(role, 0..3).prop_map(|roles| v1::Roles { roles }).boxed()
}

fn agents() -> BoxedStrategy<Vec<v1::AgentChanges>> {
    let grant = (id("role_"), proptest::arbitrary::any::<Option<i64>>())
        .prop_map(|(role_id, until)| v1::RoleGrant { role_id, until });
    let roles =
        (revision_number(), vec(grant, 0..3)).prop_map(|(revision, grants)| v1::RolesFacet { revision, grants });
    let trust = (revision_number(), prop_oneof![9 => 0..=10_000, 1 => proptest::arbitrary::any::<i32>()])
        .prop_map(|(revision, hundredths)| v1::TrustFacet { revision, hundredths });
    let status = (revision_number(), prop_oneof![9 => 1..4, 1 => proptest::arbitrary::any::<i32>()], revision_number())
        .prop_map(|(revision, status, cutoff)| v1::StatusFacet { revision, status, cutoff });
    let changes = (option::of(roles), option::of(trust), option::of(status), agent_hash())
        .prop_map(|(roles, trust, status, agent_hash)| v1::AgentChanges { agent_hash, roles, trust, status });
    vec(changes, 0..3).boxed()
}

fn revocations() -> BoxedStrategy<Vec<v1::Revocation>> {
    let subject = prop_oneof![
        9 => id("tok_").prop_map(|token| Some(Subject::TokenId(token))),
        9 => id("ses_").prop_map(|session| Some(Subject::SessionId(session))),
        1 => Just(None),
    ];
    vec((revision_number(), subject).prop_map(|(revision, subject)| v1::Revocation { revision, subject }), 0..3).boxed()
}

/// The uncompressed point of the key whose private bytes all equal `seed`.
pub fn point(seed: u8) -> Vec<u8> {
    p256::SecretKey::from_slice(&[seed; 32]).unwrap().public_key().to_sec1_bytes().to_vec()
}

/// Generates decodable messages, most of which are valid.
pub fn any_response() -> BoxedStrategy<v1::FollowResponse> {
    let key = prop_oneof![
        9 => (1..4_u8).prop_map(point),
        1 => any_bytes(),
    ];
    let keys = vec(key, 0..3).prop_map(|points| v1::Keys { points }).boxed();
    let header =
        (service_info(), keys.clone(), roles()).prop_map(|(info, keys, roles)| (Some(info), Some(keys), Some(roles)));
    let partial_header = (option::of(service_info()), option::of(keys.clone()), option::of(roles()));
    let continued = service_info().prop_map(|info| (Some(info), None, None));
    let header = prop_oneof![5 => header, 4 => Just((None, None, None)), 2 => continued, 1 => partial_header];
    let (last, cursor) = (proptest::arbitrary::any::<bool>(), prop_oneof![1 => Just(0), 3 => revision_number()]);
    let page = (0..12_i64, revision_number(), header, agents(), revocations(), last, cursor);
    let page = page.prop_map(|(revision, floor, (info, keys, roles), agents, revocations, last, cursor)| {
        Message::Snapshot(v1::SnapshotPage { revision, floor, info, keys, roles, agents, revocations, last, cursor })
    });
    let delta = (
        revision_number(),
        option::weighted(0.2, service_info()),
        option::weighted(0.2, keys),
        option::weighted(0.3, roles()),
        agents(),
        revocations(),
    );
    let delta = delta.prop_map(|(revision, info, keys, roles, agents, revocations)| {
        Message::Delta(v1::Delta { revision, info, keys, roles, agents, revocations })
    });
    let pong = (0..5_u64, revision_number(), revision_number()).prop_map(|(number, revision, floor)| {
        Message::Pong(v1::Pong { number, revision, floor, time_micros: revision })
    });
    prop_oneof![page, delta, pong].prop_map(response).boxed()
}

/// True if every part of the message is valid, regardless of the messages before it.
pub fn is_valid(message: &Message) -> bool {
    match message {
        Message::Pong(_) => true,
        Message::Snapshot(page) => {
            let v1::SnapshotPage { revision, floor: _, info, keys, roles, agents, revocations, last: _, cursor } = page;
            *revision >= 0
                && *cursor >= 0
                && are_valid_parts(info.as_ref(), keys.as_ref(), roles.as_ref(), agents, revocations)
        }
        Message::Delta(v1::Delta { revision, info, keys, roles, agents, revocations }) => {
            *revision >= 0 && are_valid_parts(info.as_ref(), keys.as_ref(), roles.as_ref(), agents, revocations)
        }
    }
}

fn are_valid_parts(
    info: Option<&v1::ServiceInfo>,
    keys: Option<&v1::Keys>,
    roles: Option<&v1::Roles>,
    agents: &[v1::AgentChanges],
    revocations: &[v1::Revocation],
) -> bool {
    let is_valid_info = info.is_none_or(|info| {
        info.service_id.parse::<ServiceId>().is_ok()
            && !info.issuer.is_empty()
            && info.max_staleness_seconds > 0
            && info.protocol_version == PROTOCOL_VERSION
            && info.agent_hash_key.len() == AGENT_HASH_KEY.len()
    });
    let are_valid_keys =
        keys.is_none_or(|keys| keys.points.iter().all(|point| P256PublicKey::from_sec1(point).is_ok()));
    let is_valid_role = |role: &v1::Role| {
        let are_valid_permissions = role.permissions.iter().all(|text| Permission::try_from(text.as_str()).is_ok());
        let has_valid_names = role.id.parse::<RoleId>().is_ok() && RoleName::try_from(role.name.as_str()).is_ok();
        has_valid_names && are_valid_permissions && role.created_revision >= 0
    };
    let is_valid_revocation = |revocation: &v1::Revocation| match &revocation.subject {
        Some(Subject::TokenId(token)) => revocation.revision >= 0 && token.parse::<TokenId>().is_ok(),
        Some(Subject::SessionId(session)) => revocation.revision >= 0 && session.parse::<SessionId>().is_ok(),
        None => false,
    };
    is_valid_info
        && are_valid_keys
        && roles.is_none_or(|roles| roles.roles.iter().all(is_valid_role) && are_distinct(&roles.roles))
        && agents.iter().all(is_valid_agent)
        && revocations.iter().all(is_valid_revocation)
}

fn are_distinct(roles: &[v1::Role]) -> bool {
    let (ids, names): (HashSet<_>, HashSet<_>) = roles.iter().map(|role| (&role.id, &role.name)).unzip();
    ids.len() == roles.len() && names.len() == roles.len()
}

fn is_valid_agent(changes: &v1::AgentChanges) -> bool {
    let v1::AgentChanges { agent_hash, roles, trust, status } = changes;
    AgentHash::from_bytes(agent_hash).is_some()
        && roles.as_ref().is_none_or(|facet| {
            facet.revision >= 0 && facet.grants.iter().all(|grant| grant.role_id.parse::<RoleId>().is_ok())
        })
        && trust.as_ref().is_none_or(|facet| facet.revision >= 0 && (0..=10_000).contains(&facet.hundredths))
        && status.as_ref().is_none_or(|facet| facet.revision >= 0 && (1..=3).contains(&facet.status))
}
