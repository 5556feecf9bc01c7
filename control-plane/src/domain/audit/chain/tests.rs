use super::*;
use crate::domain::audit::AuditedObject;
use countersign_identity::{AgentId, RoleId, ServiceId};

pub(super) fn keys() -> AuditKeys {
    AuditKeys::derive(&[7; 32])
}

/// The chain of a service with four entries, and its head.
pub(super) fn build_chain(keys: &AuditKeys, service: u128) -> (Vec<AuditEntry>, ChainMark) {
    let service = ServiceId::from_bits(service);
    let actions =
        [AuditAction::ServiceCreated, AuditAction::RoleCreated, AuditAction::RoleAssigned, AuditAction::RoleRevoked];
    let mut head = ChainMark::default();
    let entry = |(at, action): (i64, AuditAction)| {
        let entry = NewAuditEntry::for_service(service, action)
            .agent(AgentId::from_bits(2))
            .object(AuditedObject::Role(RoleId::from_bits(3)));
        let (entry, new_head) = keys.build_entry(&head, true, &entry, &Initiator::SYSTEM, Timestamp::from_seconds(at));
        head = new_head;
        entry
    };
    ((1..).zip(actions).map(entry).collect(), head)
}

fn verify(entries: &[AuditEntry], head: &ChainMark) -> Result<(), BrokenChain> {
    let keys = keys();
    let chain = entries.first().map_or(String::new(), |entry| entry.chain.clone());
    let keys = AcceptedAuditKeys { current: &keys, previous: Vec::new() };
    let mut verifier = ChainVerifier::new(keys, &chain, None)?;
    for entry in entries {
        verifier.verify_next(entry)?;
    }
    verifier.finish(Some(head))
}

fn broken(sequence: i64, fault: ChainFault) -> Result<(), BrokenChain> {
    Err(BrokenChain { sequence, fault })
}

#[test]
fn accepts_an_unmodified_chain() {
    let (entries, head) = build_chain(&keys(), 1);
    assert_eq!(verify(&entries, &head), Ok(()));
}

#[test]
fn refuses_entries_and_heads_made_with_another_key() {
    let (entries, head) = build_chain(&keys(), 1);
    let (forged_entries, forged_head) = build_chain(&AuditKeys::derive(&[8; 32]), 1);
    assert_eq!(forged_entries[0].hash, entries[0].hash, "the hash depends on the key");
    assert_eq!(verify(&forged_entries, &forged_head), broken(1, ChainFault::InvalidMac));
    assert_eq!(verify(&entries, &forged_head), broken(5, ChainFault::HeadMismatch));
    let shorter_head = ChainMark { length: 3, hash: entries[2].hash.clone(), mac: entries[2].mac.clone() };
    assert_eq!(
        verify(&entries[..3], &shorter_head),
        broken(4, ChainFault::HeadMismatch),
        "the MAC of an entry is accepted for a head"
    );
    assert_eq!(verify(&entries[..3], &head), broken(4, ChainFault::HeadMismatch));
}

#[test]
fn appending_to_an_invalid_head_keeps_the_chain_invalid() {
    let keys = keys();
    let (mut entries, head) = build_chain(&keys, 1);
    entries.truncate(3);
    let truncated_head = ChainMark { length: 3, hash: entries[2].hash.clone(), mac: head.mac };
    let entry = NewAuditEntry::for_service(ServiceId::from_bits(1), AuditAction::RoleCreated);
    let (entry, new_head) =
        keys.build_entry(&truncated_head, false, &entry, &Initiator::SYSTEM, Timestamp::from_seconds(9));
    entries.push(entry);
    assert_eq!(verify(&entries, &new_head), broken(5, ChainFault::HeadMismatch));
}

#[test]
fn refuses_a_chain_with_invalid_first_action_or_no_entries() {
    let keys = keys();
    let entry = NewAuditEntry::for_service(ServiceId::from_bits(1), AuditAction::RoleCreated);
    let (entry, head) =
        keys.build_entry(&ChainMark::default(), true, &entry, &Initiator::SYSTEM, Timestamp::from_seconds(1));
    assert_eq!(verify(&[entry], &head), broken(1, ChainFault::InvalidFirstAction));
    assert_eq!(verify(&[], &ChainMark::default()), broken(1, ChainFault::Missing));
}

/// Some changes in the test replace an absent field of an audit entry with an empty field, which must also change the hash.
#[test]
fn refuses_an_entry_with_any_field_changed() {
    let (entries, head) = build_chain(&keys(), 1);
    let changes: [fn(&mut AuditEntry); 16] = [
        |entry| entry.chain.push('x'),
        |entry| entry.sequence += 1,
        |entry| entry.at = entry.at.saturating_add(std::time::Duration::from_micros(1)),
        |entry| entry.action.push('x'),
        |entry| entry.actor_kind = "human".into(),
        |entry| entry.actor_issuer = Some(String::new()),
        |entry| entry.actor_id = Some("0".into()),
        |entry| entry.address = Some("127.0.0.1".into()),
        |entry| entry.request_id = Some(String::new()),
        |entry| entry.agent = None,
        |entry| entry.object_kind = None,
        |entry| entry.object_id = Some(String::new()),
        |entry| entry.details = "{ }".into(),
        |entry| entry.previous_hash = String::new(),
        |entry| entry.hash.replace_range(..1, "g"),
        |entry| entry.mac.replace_range(..1, "g"),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut tampered = entries.clone();
        change(&mut tampered[2]);
        let fault = match index {
            1 => ChainFault::Missing,
            15 => ChainFault::InvalidMac,
            _ => ChainFault::HashMismatch,
        };
        assert_eq!(verify(&tampered, &head), broken(3, fault), "change {index}");
    }
}

#[test]
fn refuses_removed_swapped_and_foreign_entries() {
    let (entries, head) = build_chain(&keys(), 1);
    let mut with_gap = entries.clone();
    with_gap.remove(1);
    assert_eq!(verify(&with_gap, &head), broken(2, ChainFault::Missing));
    let mut swapped = entries.clone();
    swapped.swap(1, 2);
    (swapped[1].sequence, swapped[2].sequence) = (2, 3);
    assert_eq!(verify(&swapped, &head), broken(2, ChainFault::HashMismatch));
    let (foreign_entries, _) = build_chain(&keys(), 9);
    let mut mixed = entries.clone();
    mixed[2] = foreign_entries[2].clone();
    assert_eq!(verify(&mixed, &head), broken(3, ChainFault::HashMismatch));
    let mut rehashed = entries;
    rehashed[1].details = "{}".into();
    rehashed[1].previous_hash = String::new();
    rehashed[1].hash = rehashed[1].digest();
    assert_eq!(verify(&rehashed, &head), broken(2, ChainFault::PreviousHashMismatch));
}
