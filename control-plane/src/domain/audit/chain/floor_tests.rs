//! Verifies chains whose first entries were archived.

use super::{
    tests::{build_chain, keys},
    *,
};

/// Verifies some entries of a chain of four entries with a floor after the second.
fn verify(entries: &[AuditEntry], head: &ChainMark, floor: ChainMark) -> Result<(), BrokenChain> {
    let keys = keys();
    let accepted = AcceptedAuditKeys { current: &keys, previous: Vec::new() };
    let chain = entries[0].chain.clone();
    let mut verifier = ChainVerifier::new(accepted, &chain, None)?.with_floor(Some(floor))?;
    assert_eq!(verifier.last_read(), i64::MIN);
    for entry in entries {
        verifier.verify_next(entry)?;
        assert_eq!(verifier.last_read(), entry.sequence);
    }
    verifier.finish(Some(head))
}

fn floor_of(entry: &AuditEntry) -> ChainMark {
    keys().floors.mark(&entry.chain, entry.sequence, &entry.hash)
}

fn broken(sequence: i64, fault: ChainFault) -> Result<(), BrokenChain> {
    Err(BrokenChain { sequence, fault })
}

#[test]
fn chain_is_valid_from_its_floor_and_while_archived_entries_remain() {
    let (entries, head) = build_chain(&keys(), 1);
    for first in 0..3 {
        assert_eq!(verify(&entries[first..], &head, floor_of(&entries[1])), Ok(()), "{first}");
    }
    assert_eq!(verify(&entries[3..], &head, floor_of(&entries[1])), broken(3, ChainFault::Missing));
    assert_eq!(verify(&entries[2..3], &head, floor_of(&entries[1])), broken(4, ChainFault::HeadMismatch));
    let without_second = [&entries[..1], &entries[2..]].concat();
    assert_eq!(verify(&without_second, &head, floor_of(&entries[1])), broken(2, ChainFault::Missing));
}

#[test]
fn floor_must_have_a_valid_mac_for_its_chain() {
    let (entries, head) = build_chain(&keys(), 1);
    let floor = floor_of(&entries[1]);
    let (other, _) = build_chain(&keys(), 2);
    let of_other_chain = floor_of(&other[1]);
    let later = ChainMark { length: 3, ..floor.clone() };
    let forged = AuditKeys::derive(&[8; 32]).floors.mark(&entries[1].chain, 2, &entries[1].hash);
    for changed in [of_other_chain, later, forged, ChainMark::default()] {
        assert_eq!(verify(&entries[2..], &head, changed.clone()), broken(1, ChainFault::InvalidFloor), "{changed:?}");
    }
}

#[test]
fn archived_entries_that_remain_must_lead_to_the_floor() {
    let (entries, head) = build_chain(&keys(), 1);
    let floor = floor_of(&entries[1]);
    let mut forged = entries.clone();
    forged[0].details = "{}x".to_owned();
    assert_eq!(verify(&forged, &head, floor.clone()), broken(1, ChainFault::HashMismatch));
    forged[0].hash = forged[0].digest();
    assert_eq!(verify(&forged, &head, floor.clone()), broken(2, ChainFault::PreviousHashMismatch));
    let hash = forged[0].hash.clone();
    forged[1].previous_hash = hash;
    forged[1].hash = forged[1].digest();
    assert_eq!(verify(&forged, &head, floor.clone()), broken(2, ChainFault::FloorMismatch));
    forged[0].sequence = 0;
    assert_eq!(verify(&forged, &head, floor), broken(3, ChainFault::Missing), "no archived entry has number 0");
}

#[test]
fn entries_after_the_floor_need_a_mac() {
    let (mut entries, head) = build_chain(&keys(), 1);
    let mac = entries[1].mac.clone();
    entries[2].mac = mac;
    assert_eq!(verify(&entries[2..], &head, floor_of(&entries[1])), broken(3, ChainFault::InvalidMac));
}

#[test]
fn rotation_of_the_master_key_renews_the_floor() {
    let (old, new) = (keys(), AuditKeys::derive(&[9; 32]));
    let (entries, head) = build_chain(&old, 1);
    let chain = entries[0].chain.clone();
    let accepted = AcceptedAuditKeys { current: &new, previous: vec![&old] };
    let mut verifier =
        ChainVerifier::new(accepted, &chain, None).unwrap().with_floor(Some(floor_of(&entries[1]))).unwrap();
    let before_first = verifier.checkpoint_before_break().unwrap();
    assert_eq!((before_first.length, &before_first.hash), (2, &entries[1].hash), "the floor is authenticated");
    for entry in &entries[2..] {
        verifier.verify_next(entry).unwrap();
    }
    assert_eq!(verifier.finish(Some(&head)), Ok(()));
    let (checkpoint, renewed_head) =
        (new.checkpoints.mark(&chain, 4, &entries[3].hash), new.heads.mark(&chain, 4, &entries[3].hash));
    let renewed = verifier.renewed_floor().unwrap();
    let accepted = || AcceptedAuditKeys { current: &new, previous: Vec::new() };
    let begin =
        |floor| ChainVerifier::new(accepted(), &chain, Some(checkpoint.clone())).unwrap().with_floor(Some(floor));
    assert!(begin(floor_of(&entries[1])).is_err(), "the old key authenticates nothing any more");
    let mut verifier = begin(renewed).unwrap();
    for entry in &entries[2..] {
        verifier.verify_next(entry).unwrap();
    }
    assert_eq!(verifier.finish(Some(&renewed_head)), Ok(()));
}
