//! Tests of checksums: equal data has equal checksums however it was received, and each difference changes the checksum.

use super::*;
use crate::{RoleId, TrustScore};
use proptest::{collection::vec, option, prelude::*, sample::Index};
use std::collections::HashMap;

const FLOOR: i64 = 100;
const TIME: i64 = 1000;

fn scope() -> ChecksumScope {
    ChecksumScope { floor: Revision::new(FLOOR), time: Timestamp::from_micros(TIME), without_roles: [agent(9)].into() }
}

fn agent_hash_key() -> AgentHashKey {
    AgentHashKey::from_bytes(&[7; 32]).unwrap()
}

const fn agent(number: u128) -> AgentHash {
    AgentHash::from_bits(number)
}

fn role(number: u128) -> RoleDefinition {
    RoleDefinition {
        id: RoleId::from_bits(number),
        name: format!("role {number}").as_str().try_into().unwrap(),
        permissions: vec!["read".try_into().unwrap(), "write".try_into().unwrap()],
        created_revision: Revision::new(7),
    }
}

/// What one side has.
#[derive(Debug, Clone, Default)]
struct Data {
    agents: HashMap<AgentHash, AgentChanges>,
    revoked: HashMap<u128, Revision>,
}

/// A message: changes of an agent, or a revocation.
#[derive(Debug, Clone)]
enum Change {
    Agent(u128, AgentChanges),
    Revocation(u128, i64),
}

impl Data {
    fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Agent(number, changes) => self.agents.entry(agent(*number)).or_default().merge(changes.clone()),
                Change::Revocation(token, revision) => {
                    let latest = self.revoked.entry(*token).or_default();
                    *latest = (*latest).max(Revision::new(*revision));
                }
            }
        }
    }

    fn checksum(&self) -> [u8; CHECKSUM_LEN] {
        self.checksum_with(&scope(), "https://issuer.test", &[role(1), role(2)])
    }

    fn checksum_with(&self, scope: &ChecksumScope, issuer: &str, roles: &[RoleDefinition]) -> [u8; CHECKSUM_LEN] {
        let settings = ChecksumSettings {
            service: ServiceId::from_bits(1),
            issuer,
            accepts_unbound: true,
            max_staleness_seconds: 60,
            agent_hash_key: &agent_hash_key(),
        };
        let mut checksum = ViewChecksum::new(scope, settings, roles.iter());
        for (agent, changes) in &self.agents {
            checksum.add_agent(*agent, changes);
        }
        for (token, revision) in &self.revoked {
            checksum.add_revocation(ChecksumRevocation::Token(TokenId::from_bits(*token)), *revision);
        }
        checksum.to_bytes()
    }
}

fn grants(revision: i64, grants: &[(u128, Option<i64>)]) -> AgentChanges {
    let grant = |(role, until): &(u128, Option<i64>)| RoleGrant {
        role: RoleId::from_bits(*role),
        until: until.map(Timestamp::from_micros),
    };
    let value = grants.iter().map(grant).collect();
    AgentChanges { roles: Some(Versioned { revision: Revision::new(revision), value }), ..AgentChanges::default() }
}

/// Changes whose content depends on their revision only, as that of committed changes does.
fn change() -> impl Strategy<Value = Change> {
    let facets = (1..5_u128, option::of(90..130_i64), option::of(90..130_i64), option::of(90..130_i64));
    let agent = facets.prop_map(|(number, roles, trust, status)| {
        let until = |revision: i64| (revision % 3 > 0).then_some(TIME - 20 + revision % 40);
        let of_roles = roles.map(|it| grants(it, &[(it.unsigned_abs().into(), None), (1, until(it)), (2, None)]));
        let trust = trust.map(|revision| Versioned {
            revision: Revision::new(revision),
            value: TrustScore::from_hundredths(revision).unwrap(),
        });
        let status = status.map(|revision| Versioned {
            revision: Revision::new(revision),
            value: StatusWithCutoff { status: AgentStatus::Suspended, cutoff: Revision::new(revision - 1) },
        });
        Change::Agent(number, AgentChanges { trust, status, ..of_roles.unwrap_or_default() })
    });
    prop_oneof![agent, (1..5_u128, 90..130_i64).prop_map(|(token, revision)| Change::Revocation(token, revision))]
}

proptest! {
    #[test]
    fn equal_data_has_equal_checksums_in_any_order_and_with_any_history(
        changes in vec(change(), 0..30),
        order in vec(any::<Index>(), 30),
        pruned in any::<bool>(),
    ) {
        let mut first = Data::default();
        first.apply(&changes);
        // The other side gets the changes in another order, and some of them twice.
        let (mut second, mut shuffled) = (Data::default(), changes.clone());
        for (position, index) in order.iter().enumerate().take(changes.len()) {
            shuffled.swap(position, index.index(changes.len()));
        }
        second.apply(&shuffled);
        second.apply(&changes[..changes.len() / 2]);
        if pruned {
            second.agents.retain(|_, changes| !changes.prune(Revision::new(FLOOR)));
            second.revoked.retain(|_, revision| revision.number() > FLOOR);
        }
        prop_assert_eq!(first.checksum(), second.checksum());
    }

    #[test]
    fn each_lost_facet_above_the_floor_changes_the_checksum(changes in vec(change(), 1..30), index in any::<Index>()) {
        let mut data = Data::default();
        data.apply(&changes);
        let before = data.checksum();
        let agents: Vec<_> = data.agents.keys().copied().collect();
        if agents.is_empty() {
            return Ok(());
        }
        let agent = agents[index.index(agents.len())];
        let lost = data.agents.remove(&agent).unwrap();
        let is_above = |revision: Option<Revision>| revision.is_some_and(|revision| revision.number() > FLOOR);
        let matters = is_above(lost.roles.map(|it| it.revision))
            || is_above(lost.trust.map(|it| it.revision))
            || is_above(lost.status.map(|it| it.revision));
        prop_assert_eq!(before != data.checksum(), matters);
    }
}

#[test]
fn grants_that_grant_nothing_do_not_matter() {
    let with = |number: u128, changes: AgentChanges| {
        let mut data = Data::default();
        data.apply(&[Change::Agent(number, changes)]);
        data.checksum()
    };
    let base = with(1, grants(FLOOR + 1, &[(1, None), (2, Some(TIME + 1))]));
    assert_eq!(base, with(1, grants(FLOOR + 1, &[(2, Some(TIME + 1)), (1, None), (3, None), (2, Some(TIME))])));
    assert_ne!(base, with(1, grants(FLOOR + 1, &[(1, None)])));
    assert_ne!(base, with(1, grants(FLOOR + 1, &[(1, None), (2, Some(TIME + 2))])));
    assert_ne!(base, with(1, grants(FLOOR + 1, &[(1, None), (2, None)])));
    assert_ne!(base, with(1, grants(FLOOR + 2, &[(1, None), (2, Some(TIME + 1))])));
    assert_ne!(base, with(2, grants(FLOOR + 1, &[(1, None), (2, Some(TIME + 1))])));
    assert_eq!(with(9, grants(FLOOR + 1, &[(1, None)])), Data::default().checksum(), "the agent is deleted");
    assert_eq!(with(1, grants(FLOOR, &[(1, None)])), Data::default().checksum());
}

#[test]
fn settings_keys_and_role_definitions_matter() {
    let (data, scope) = (Data::default(), scope());
    let base = data.checksum();
    assert_ne!(base, data.checksum_with(&scope, "https://other.test", &[role(1), role(2)]));
    assert_ne!(base, data.checksum_with(&scope, "https://issuer.test", &[role(1)]));
    assert_eq!(base, data.checksum_with(&scope, "https://issuer.test", &[role(2), role(1)]));
    let mut fewer = role(2);
    fewer.permissions.pop();
    assert_ne!(base, data.checksum_with(&scope, "https://issuer.test", &[role(1), fewer]));
    let mut reordered = role(2);
    reordered.permissions.reverse();
    assert_eq!(base, data.checksum_with(&scope, "https://issuer.test", &[role(1), reordered]));
    let (session, token) =
        (ChecksumRevocation::Session(SessionId::from_bits(1)), ChecksumRevocation::Token(TokenId::from_bits(1)));
    let key = agent_hash_key();
    let settings = ChecksumSettings {
        service: ServiceId::from_bits(1),
        issuer: "",
        accepts_unbound: false,
        max_staleness_seconds: 0,
        agent_hash_key: &key,
    };
    let of = |subject| {
        let mut checksum = ViewChecksum::new(&scope, settings, std::iter::empty());
        checksum.add_revocation(subject, Revision::new(FLOOR + 1));
        checksum.to_bytes()
    };
    assert_ne!(of(session), of(token));
}
