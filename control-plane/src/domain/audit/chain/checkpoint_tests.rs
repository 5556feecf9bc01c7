//! Verifies chains whose entries were written before and after a rotation of the master key.

use super::*;
use crate::domain::{audit::AuditAction, service::ServiceOrDeployment};
use countersign_identity::ServiceId;

const CHAIN: ServiceOrDeployment = ServiceOrDeployment::Service(ServiceId::from_bits(1));

struct Chain {
    entries: Vec<AuditEntry>,
    head: ChainMark,
    checkpoint: Option<ChainMark>,
}

fn old() -> AuditKeys {
    AuditKeys::derive(&[1; 32])
}

fn new() -> AuditKeys {
    AuditKeys::derive(&[2; 32])
}

impl Chain {
    /// A chain with two entries of the old key and two of the new key, as they are while the rotation is not complete.
    fn before_checkpoint() -> Self {
        let mut chain = Self { entries: Vec::new(), head: ChainMark::default(), checkpoint: None };
        chain.append(&old(), AuditAction::ServiceCreated);
        chain.append(&old(), AuditAction::RoleCreated);
        chain.append(&new(), AuditAction::RoleAssigned);
        chain.append(&new(), AuditAction::RoleRevoked);
        chain
    }

    fn with_checkpoint() -> Self {
        let mut chain = Self::before_checkpoint();
        chain.write_checkpoint(&new());
        chain
    }

    fn append(&mut self, keys: &AuditKeys, action: AuditAction) {
        let at = Timestamp::from_seconds(self.head.length);
        let entry = NewAuditEntry::new(CHAIN, action);
        let (entry, head) = keys.build_entry(&self.head, true, &entry, &Initiator::SYSTEM, at);
        self.entries.push(entry);
        self.head = head;
    }

    fn write_checkpoint(&mut self, keys: &AuditKeys) {
        let (chain, ChainMark { length, hash, .. }) = (CHAIN.audit_chain(), &self.head);
        self.checkpoint = Some(keys.checkpoints.mark(&chain, *length, hash));
        self.head = keys.heads.mark(&chain, *length, hash);
    }

    /// Changes an entry and computes all later hashes and MACs again, as an attacker with an old master key can.
    fn forge_entry(&mut self, position: usize, keys: &AuditKeys) {
        self.entries[position].actor_id = Some("another actor".to_owned());
        for index in position..self.entries.len() {
            let previous = index.checked_sub(1).map_or(String::new(), |before| self.entries[before].hash.clone());
            let entry = &mut self.entries[index];
            entry.previous_hash = previous;
            entry.hash = entry.digest();
            entry.mac = keys.entry_mac(&entry.hash);
            self.head = keys.heads.mark(&entry.chain, entry.sequence, &entry.hash);
        }
    }

    fn verify(&self, current: &AuditKeys, previous: &[AuditKeys]) -> Result<(), BrokenChain> {
        let keys = AcceptedAuditKeys { current, previous: previous.iter().collect() };
        let chain = CHAIN.audit_chain();
        let mut verifier = ChainVerifier::new(keys, &chain, self.checkpoint.clone())?;
        self.entries.iter().try_for_each(|entry| verifier.verify_next(entry))?;
        verifier.finish(Some(&self.head))
    }
}

/// Verifies a broken chain, and writes the checkpoint that a rotation to the key `current` would write.
fn rotate_broken(chain: &mut Chain, current: &AuditKeys, previous: &AuditKeys) -> BrokenChain {
    let (keys, name) = (AcceptedAuditKeys { current, previous: vec![previous] }, CHAIN.audit_chain());
    let mut verifier = ChainVerifier::new(keys, &name, chain.checkpoint.clone()).unwrap();
    let result = chain.entries.iter().try_for_each(|entry| verifier.verify_next(entry));
    let broken = result.and_then(|()| verifier.finish(Some(&chain.head))).unwrap_err();
    chain.checkpoint = verifier.checkpoint_before_break().or(chain.checkpoint.take());
    broken
}

fn broken(sequence: i64, fault: ChainFault) -> Result<(), BrokenChain> {
    Err(BrokenChain { sequence, fault })
}

#[test]
fn without_a_checkpoint_the_previous_key_is_needed() {
    let chain = Chain::before_checkpoint();
    assert_eq!(chain.verify(&new(), &[old()]), Ok(()));
    assert_eq!(chain.verify(&new(), &[]), broken(1, ChainFault::InvalidMac));
}

#[test]
fn with_a_checkpoint_the_previous_key_is_not_needed() {
    let mut chain = Chain::with_checkpoint();
    assert_eq!(chain.verify(&new(), &[]), Ok(()));
    chain.append(&new(), AuditAction::RoleDeleted);
    assert_eq!(chain.verify(&new(), &[]), Ok(()));
    let third = AuditKeys::derive(&[3; 32]);
    chain.append(&third, AuditAction::RoleDeleted);
    assert_eq!(chain.verify(&third, &[new()]), Ok(()), "the next rotation is not complete");
    chain.write_checkpoint(&third);
    assert_eq!(chain.verify(&third, &[]), Ok(()));
}

#[test]
fn the_previous_key_forges_nothing_after_the_checkpoint() {
    for previous in [&[][..], &[old()]] {
        let mut appended = Chain::with_checkpoint();
        appended.append(&old(), AuditAction::RoleDeleted);
        assert_eq!(appended.verify(&new(), previous), broken(5, ChainFault::InvalidMac));
        let mut with_old_head = Chain::with_checkpoint();
        let (length, hash) = (with_old_head.head.length, with_old_head.head.hash.clone());
        with_old_head.head = old().heads.mark(&CHAIN.audit_chain(), length, &hash);
        assert_eq!(with_old_head.verify(&new(), previous), broken(5, ChainFault::HeadMismatch));
    }
}

#[test]
fn the_checkpoint_authenticates_earlier_entries() {
    for position in 0..4 {
        let mut chain = Chain::with_checkpoint();
        chain.forge_entry(position, &old());
        assert_eq!(chain.verify(&new(), &[old()]), broken(4, ChainFault::CheckpointMismatch), "{position}");
    }
    let mut unhashed = Chain::with_checkpoint();
    unhashed.entries[1].action = "role.deleted".to_owned();
    assert_eq!(unhashed.verify(&new(), &[]), broken(2, ChainFault::HashMismatch));
}

#[test]
fn a_chain_cannot_end_before_its_checkpoint() {
    let mut chain = Chain::with_checkpoint();
    chain.entries.truncate(3);
    let last = &chain.entries[2];
    chain.head = new().heads.mark(&last.chain, last.sequence, &last.hash);
    assert_eq!(chain.verify(&new(), &[]), broken(4, ChainFault::Missing));
}

#[test]
fn refuses_a_changed_checkpoint() {
    let chain = Chain::with_checkpoint();
    let checkpoint = chain.checkpoint.clone().unwrap();
    let forged = old().checkpoints.mark(&CHAIN.audit_chain(), 4, &checkpoint.hash);
    let of_other_chain = new().checkpoints.mark("another chain", 4, &checkpoint.hash);
    let shorter = ChainMark { length: 3, ..checkpoint.clone() };
    let head_as_checkpoint = ChainMark { mac: chain.head.mac.clone(), ..checkpoint };
    for checkpoint in [forged, of_other_chain, shorter, head_as_checkpoint] {
        let chain = Chain { checkpoint: Some(checkpoint), ..Chain::with_checkpoint() };
        assert_eq!(chain.verify(&new(), &[]), broken(1, ChainFault::InvalidCheckpoint));
    }
}

#[test]
fn a_break_stays_where_it_is_after_a_rotation() {
    let third = AuditKeys::derive(&[3; 32]);
    for (position, sequence) in (0..4).zip(1..) {
        let mut changed = Chain::before_checkpoint();
        changed.entries[position].action = "role.deleted".to_owned();
        let found = rotate_broken(&mut changed, &new(), &old());
        assert_eq!(found, BrokenChain { sequence, fault: ChainFault::HashMismatch });
        assert_eq!(changed.verify(&new(), &[]), Err(found), "{position}");

        let mut forged = Chain::with_checkpoint();
        forged.forge_entry(position, &old());
        let found = rotate_broken(&mut forged, &third, &new());
        assert_eq!(found, BrokenChain { sequence: 4, fault: ChainFault::CheckpointMismatch });
        assert_eq!(forged.verify(&third, &[]), Err(found), "{position}");
    }
    let mut truncated = Chain::with_checkpoint();
    truncated.append(&new(), AuditAction::RoleDeleted);
    truncated.append(&new(), AuditAction::RoleDeleted);
    truncated.entries.pop();
    let found = rotate_broken(&mut truncated, &third, &new());
    assert_eq!(found, BrokenChain { sequence: 6, fault: ChainFault::HeadMismatch });
    assert_eq!(truncated.verify(&third, &[]), Err(found));
}
