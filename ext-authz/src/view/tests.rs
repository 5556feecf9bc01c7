//! Tests of `View`: snapshots, deltas and confirmations; and the views of other tests.

use super::*;
use crate::fixtures::{ISSUER, SERVICE_ID, TestIssuer, reader_role};
use countersign_identity::{AgentStatus, StatusWithCutoff, TrustScore, Versioned};

const AGENT: AgentHash = AgentHash::from_bits(2);

/// The first page of a snapshot, with the key of the test issuer and the role `reader`.
pub fn header() -> SnapshotHeader {
    SnapshotHeader {
        settings: ServiceSettings {
            service: SERVICE_ID,
            issuer: ISSUER.into(),
            accepts_unbound: true,
            max_staleness: Duration::from_mins(1),
            agent_hash_key: AgentHashKey::from_bytes(&[7; 32]).unwrap(),
            resources: Resources::default(),
        },
        keys: KeySet::from_points([TestIssuer::new(1).public_point()]).unwrap(),
        roles: [reader_role()].into_iter().collect(),
    }
}

/// An unconfirmed view without agents, with all changes above revision 1.
pub fn view(revision: i64, header: SnapshotHeader) -> View {
    PartialView::new(Revision::new(revision), Revision::new(1), header).complete(None)
}

/// The view, confirmed as of this time since boot.
pub fn confirmed(view: &View, ping_sent_at: Duration) -> View {
    view.confirm(Confirmation { revision: view.revision(), floor: view.floor(), ping_sent_at, server_clock: None })
}

fn trust_changes(revision: i64, points: f64) -> AgentChanges {
    let value = TrustScore::from_points(points).unwrap();
    AgentChanges { trust: Some(Versioned { revision: Revision::new(revision), value }), ..AgentChanges::default() }
}

fn suspension(revision: i64) -> AgentChanges {
    let value = StatusWithCutoff { status: AgentStatus::Suspended, cutoff: Revision::new(revision) };
    AgentChanges { status: Some(Versioned { revision: Revision::new(revision), value }), ..AgentChanges::default() }
}

fn delta(revision: i64, changes: AgentChanges) -> Delta {
    Delta { revision: Revision::new(revision), agents: vec![(AGENT, changes)], ..Delta::default() }
}

fn confirmation(revision: i64, floor: i64, ping_sent_at: u64) -> Confirmation {
    let (revision, floor) = (Revision::new(revision), Revision::new(floor));
    Confirmation { revision, floor, ping_sent_at: Duration::from_secs(ping_sent_at), server_clock: None }
}

#[test]
fn apply_replaces_a_facet_only_if_the_new_one_has_a_higher_revision() {
    let view = view(10, header()).apply(delta(20, trust_changes(20, 80.0)));
    let view = view.apply(delta(21, suspension(21))).apply(delta(22, trust_changes(15, 10.0)));
    let changes = view.agents.get(&AGENT).unwrap();
    assert_eq!(changes.trust, trust_changes(20, 80.0).trust);
    assert_eq!(changes.status, suspension(21).status);
    assert_eq!(view.revision(), Revision::new(22));
}

#[test]
fn apply_leaves_the_original_view_unchanged() {
    let original = view(10, header()).apply(delta(20, trust_changes(20, 80.0)));
    let changed = original.apply(delta(30, trust_changes(30, 5.0)));
    assert_eq!(original.agents.get(&AGENT), Some(&trust_changes(20, 80.0)));
    assert_eq!(changed.agents.get(&AGENT), Some(&trust_changes(30, 5.0)));
}

#[test]
fn confirm_removes_facets_and_revocations_up_to_the_floor() {
    let (older_token, newer_token) = (TokenId::from_bits(5), TokenId::from_bits(6));
    let revocations = [(older_token, 20), (newer_token, 21)].map(|(token, revision)| Revocation {
        revision: Revision::new(revision),
        subject: RevokedSubject::Token(token),
    });
    let changes = Delta { revocations: revocations.to_vec(), ..delta(21, trust_changes(20, 80.0)) };
    let view = view(10, header()).apply(changes).apply(delta(22, suspension(22)));
    let view = view.confirm(confirmation(25, 20, 3));
    assert_eq!(view.agents.get(&AGENT), Some(&suspension(22)));
    assert!(view.revoked_tokens.get(&older_token).is_none() && view.revoked_tokens.get(&newer_token).is_some());
    assert_eq!(view.confirm(confirmation(30, 22, 4)).agent_count(), 0);
}

#[test]
fn only_a_confirmation_changes_confirmed_at() {
    let unconfirmed = view(10, header());
    assert_eq!(unconfirmed.confirmed_at(), None);
    let confirmed = unconfirmed.confirm(confirmation(12, 1, 7));
    assert_eq!(confirmed.confirmed_at(), Some(Duration::from_secs(7)));
    assert_eq!(confirmed.confirm(confirmation(12, 1, 6)).confirmed_at(), Some(Duration::from_secs(7)));
    let replaced_by =
        |revision| PartialView::new(Revision::new(revision), Revision::new(1), header()).complete(Some(&confirmed));
    assert_eq!(confirmed.apply(delta(13, trust_changes(13, 1.0))).confirmed_at(), Some(Duration::from_secs(7)));
    assert_eq!(replaced_by(12).confirmed_at(), Some(Duration::from_secs(7)));
    assert_eq!(replaced_by(11).confirmed_at(), None, "the snapshot has a lower revision");
}
