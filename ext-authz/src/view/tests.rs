//! Views that follow each other.

use super::*;
use countersign_identity::{AgentStatus, StatusWithCutoff, TrustScore, Versioned};

pub const SERVICE: ServiceId = ServiceId::from_bits(1);
const AGENT: AgentId = AgentId::from_bits(2);

/// A snapshot without agents, keys or roles.
pub fn snapshot(revision: i64) -> Snapshot {
    Snapshot {
        revision: Revision::new(revision),
        floor: Revision::new(1),
        terms: Terms {
            service: SERVICE,
            issuer: "https://issuer.test".into(),
            accepts_unbound: true,
            max_staleness: Duration::from_mins(1),
        },
        keys: KeySet::default(),
        roles: RoleTable::default(),
        agents: vec![],
        revoked: vec![],
    }
}

fn trust(revision: i64, points: f64) -> AgentChanges {
    let value = TrustScore::from_points(points).unwrap();
    AgentChanges { trust: Some(Versioned { revision: Revision::new(revision), value }), ..AgentChanges::default() }
}

fn suspended(revision: i64) -> AgentChanges {
    let value = StatusWithCutoff { status: AgentStatus::Suspended, cutoff: Revision::new(revision) };
    AgentChanges { status: Some(Versioned { revision: Revision::new(revision), value }), ..AgentChanges::default() }
}

fn delta(revision: i64, record: AgentChanges) -> Delta {
    Delta { revision: Revision::new(revision), agents: vec![(AGENT, record)], ..Delta::default() }
}

fn confirmation(revision: i64, floor: i64, asked: u64) -> Confirmation {
    let (revision, floor) = (Revision::new(revision), Revision::new(floor));
    Confirmation { revision, floor, asked_at: Duration::from_secs(asked) }
}

#[test]
fn each_facet_is_replaced_by_a_newer_one_only() {
    let view = View::of(snapshot(10), None).apply(delta(20, trust(20, 80.0)));
    let view = view.apply(delta(21, suspended(21))).apply(delta(22, trust(15, 10.0)));
    let record = view.agents.get(AGENT).unwrap();
    assert_eq!(record.trust, trust(20, 80.0).trust);
    assert_eq!(record.status, suspended(21).status);
    assert_eq!(view.revision(), Revision::new(22));
}

#[test]
fn a_view_that_is_being_read_does_not_change() {
    let before = View::of(snapshot(10), None).apply(delta(20, trust(20, 80.0)));
    let after = before.apply(delta(30, trust(30, 5.0)));
    assert_eq!(before.agents.get(AGENT), Some(&trust(20, 80.0)));
    assert_eq!(after.agents.get(AGENT), Some(&trust(30, 5.0)));
}

#[test]
fn at_the_floor_facets_and_deaths_are_forgotten_and_above_it_they_are_not() {
    let (old, new) = (TokenId::from_bits(5), TokenId::from_bits(6));
    let revoked = [(old, 20), (new, 21)];
    let revoked =
        revoked.map(|(token, revision)| Revoked { revision: Revision::new(revision), what: Dead::Token(token) });
    let mut delta = delta(21, trust(20, 80.0));
    delta.revoked = revoked.to_vec();
    let view = View::of(snapshot(10), None).apply(delta).apply(super::Delta {
        revision: Revision::new(22),
        agents: vec![(AGENT, suspended(22))],
        ..super::Delta::default()
    });
    let view = view.confirm(confirmation(25, 20, 3));
    assert_eq!(view.agents.get(AGENT), Some(&suspended(22)));
    assert!(view.tokens.get(old).is_none() && view.tokens.get(new).is_some());
    assert_eq!(view.confirm(confirmation(30, 22, 4)).remembered_agents(), 0);
}

#[test]
fn only_an_answered_ping_makes_a_view_younger() {
    let first = View::of(snapshot(10), None);
    assert_eq!(first.confirmed_at(), None);
    let confirmed = first.confirm(confirmation(12, 1, 7));
    assert_eq!(confirmed.confirmed_at(), Some(Duration::from_secs(7)));
    assert_eq!(confirmed.confirm(confirmation(12, 1, 6)).confirmed_at(), Some(Duration::from_secs(7)));
    assert_eq!(confirmed.apply(delta(13, trust(13, 1.0))).confirmed_at(), Some(Duration::from_secs(7)));
    assert_eq!(View::of(snapshot(12), Some(&confirmed)).confirmed_at(), Some(Duration::from_secs(7)));
    assert_eq!(View::of(snapshot(11), Some(&confirmed)).confirmed_at(), None, "it goes back");
}
