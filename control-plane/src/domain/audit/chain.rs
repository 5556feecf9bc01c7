//! The hash chain of the audit log: each entry contains the hash of the previous entry. Verification detects entries that
//! were changed, reordered or removed.
//!
//! The hash of an entry is plain SHA-256, so anyone with the entries can verify it. An attacker who can write to the database could
//! hash a changed chain again. So each hash also has a MAC, under a key derived from the master key. The head of a chain has the
//! length of the chain under another MAC, which shows if entries at the end are missing.
//!
//! A rotation of the master key leaves a checkpoint (see `keys`). Up to the checkpoint, we verify only hashes: the checkpoint has
//! the last one under a MAC. The first entries of a chain may be archived and deleted. Then a floor marks the last archived entry,
//! and verification begins after this entry. If archived entries still exist, the floor authenticates them.
//!
//! Verification cannot notice that somebody has replaced a chain and its head by an older copy of both. To find out, compare the
//! chain with a later hash that you have saved outside the database.

use super::{
    AuditAction, Initiator, NewAuditEntry,
    keys::{AcceptedAuditKeys, AuditKeys, ChainMark, ENTRY_DOMAIN},
};
use crate::domain::{netstrings::encode, service::DEPLOYMENT_CHAIN};
use countersign_identity::Timestamp;
use sha2::{Digest, Sha256};
use std::fmt;

/// A stored entry. Its fields are not validated, because somebody may have changed the row in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Service id, or `deployment`.
    pub chain: String,
    /// Position in the chain, from 1.
    pub sequence: i64,
    /// Time of the action.
    pub at: Timestamp,
    /// Name of the [`AuditAction`].
    pub action: String,
    /// Kind of the actor, from [`Actor::kind_issuer_and_id`](super::Actor::kind_issuer_and_id).
    pub actor_kind: String,
    /// Token issuer of a human user.
    pub actor_issuer: Option<String>,
    /// Id of the API key, or subject of the human user.
    pub actor_id: Option<String>,
    /// IP address of the client.
    pub address: Option<String>,
    /// `X-Request-Id` of the request.
    pub request_id: Option<String>,
    /// Id of the agent affected.
    pub agent: Option<String>,
    /// Kind of the object, from [`AuditedObject::kind_and_id`](super::AuditedObject::kind_and_id).
    pub object_kind: Option<String>,
    /// Id of the object.
    pub object_id: Option<String>,
    /// Additional fields, as a JSON object.
    pub details: String,
    /// Hash of the previous entry; empty in the first entry.
    pub previous_hash: String,
    /// SHA-256 of all fields except `hash` and `mac`, hex.
    pub hash: String,
    /// MAC of the hash, hex.
    pub mac: String,
}

impl AuditKeys {
    /// Builds the entry that follows the head `before`, and the new head.
    ///
    /// `is_valid`: whether the MAC of `before` is valid. If not, we append the entry nevertheless, because tampering with old entries
    /// must not block new actions. But the new head keeps the invalid MAC, so that verification continues to fail.
    pub fn build_entry(
        &self,
        before: &ChainMark,
        is_valid: bool,
        entry: &NewAuditEntry,
        initiator: &Initiator,
        at: Timestamp,
    ) -> (AuditEntry, ChainMark) {
        let NewAuditEntry { chain, action, agent, object, details } = entry;
        let (actor_kind, actor_issuer, actor_id) = initiator.actor.kind_issuer_and_id();
        let object = object.as_ref().map(super::AuditedObject::kind_and_id);
        let mut entry = AuditEntry {
            chain: chain.audit_chain(),
            sequence: before.length.saturating_add(1),
            at,
            action: action.as_str().to_owned(),
            actor_kind: actor_kind.to_owned(),
            actor_issuer: actor_issuer.map(str::to_owned),
            actor_id,
            address: initiator.origin.address.map(|address| address.to_string()),
            request_id: initiator.origin.request_id.clone(),
            agent: agent.map(|agent| agent.to_string()),
            object_kind: object.as_ref().map(|(kind, _)| (*kind).to_owned()),
            object_id: object.map(|(_, id)| id),
            details: serde_json::json!(details).to_string(),
            previous_hash: before.hash.clone(),
            hash: String::new(),
            mac: String::new(),
        };
        entry.hash = entry.digest();
        entry.mac = self.entry_mac(&entry.hash);
        let head = self.heads.mark(&entry.chain, entry.sequence, &entry.hash);
        let head = if is_valid { head } else { ChainMark { mac: before.mac.clone(), ..head } };
        (entry, head)
    }
}

impl AuditEntry {
    /// Computes the hash of the entry from all fields except `hash` and `mac`.
    pub fn digest(&self) -> String {
        let (sequence, at) = (self.sequence.to_string(), self.at.micros().to_string());
        hex::encode(Sha256::digest(encode(&[
            Some(ENTRY_DOMAIN),
            Some(&self.chain),
            Some(&sequence),
            Some(&at),
            Some(&self.action),
            Some(&self.actor_kind),
            self.actor_issuer.as_deref(),
            self.actor_id.as_deref(),
            self.address.as_deref(),
            self.request_id.as_deref(),
            self.agent.as_deref(),
            self.object_kind.as_deref(),
            self.object_id.as_deref(),
            Some(&self.details),
            Some(&self.previous_hash),
        ])))
    }
}

/// Why an entry or a chain is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainFault {
    /// The next stored entry does not have the next sequence number, or the chain ends before its checkpoint, or has no entries.
    Missing,
    /// The previous hash in the entry is not the hash of the entry before it.
    PreviousHashMismatch,
    /// The fields of the entry do not match its hash.
    HashMismatch,
    /// The MAC of the entry was not computed with a key derived from the master key of this Countersign deployment.
    InvalidMac,
    /// A column has a type or a value that the control plane never writes.
    Unreadable,
    /// The checkpoint of the chain has an invalid MAC.
    InvalidCheckpoint,
    /// The entry at the checkpoint of the chain does not have the hash that the checkpoint contains.
    CheckpointMismatch,
    /// The floor of the chain has an invalid MAC.
    InvalidFloor,
    /// The entry at the floor of the chain does not have the hash that the floor contains.
    FloorMismatch,
    /// The first entry has an action that cannot start a chain.
    InvalidFirstAction,
    /// The end of the chain does not match its head, or the head has an invalid MAC.
    HeadMismatch,
}

impl ChainFault {
    /// A description for the operator.
    const fn text(self) -> &'static str {
        match self {
            Self::Missing => "the entry is missing",
            Self::PreviousHashMismatch => "its previous hash is not the hash of the entry before it",
            Self::HashMismatch => "its content does not match its hash",
            Self::InvalidMac => "its MAC was not made with the master key of this deployment",
            Self::Unreadable => "a column contains an invalid value",
            Self::InvalidCheckpoint => "the checkpoint of the last rotation of the master key was changed",
            Self::CheckpointMismatch => {
                "this or an earlier entry was changed: the checkpoint of the last rotation of the master key has another hash"
            }
            Self::InvalidFloor => "the record of its archived entries was changed",
            Self::FloorMismatch => "this or an earlier archived entry was changed: their record has another hash",
            Self::InvalidFirstAction => "a chain cannot start with this action",
            Self::HeadMismatch => {
                "the end of the chain does not match its head: entries were added or removed at the end, or the head was changed"
            }
        }
    }
}

/// The first invalid entry of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BrokenChain {
    /// Position of the entry in the chain.
    pub sequence: i64,
    /// Why the entry is invalid.
    pub fault: ChainFault,
}

impl fmt::Display for BrokenChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broken at entry {}: {}", self.sequence, self.fault.text())
    }
}

/// Verifies a chain entry by entry.
#[derive(Clone)]
pub struct ChainVerifier<'a> {
    keys: AcceptedAuditKeys<'a>,
    chain: &'a str,
    checkpoint: Option<ChainMark>,
    floor: Option<ChainMark>,
    /// The sequence number of the last verified entry, at first of the entry at the floor, or 0. `hash` is the hash of this entry.
    length: i64,
    hash: String,
    has_begun: bool,
}

impl<'a> ChainVerifier<'a> {
    /// Creates a verifier that begins with the first entry. Fails if the checkpoint of the chain was changed.
    pub fn new(
        keys: AcceptedAuditKeys<'a>,
        chain: &'a str,
        checkpoint: Option<ChainMark>,
    ) -> Result<Self, BrokenChain> {
        let broken = BrokenChain { sequence: 1, fault: ChainFault::InvalidCheckpoint };
        let keys = keys.after_checkpoint(chain, checkpoint.as_ref()).ok_or(broken)?;
        Ok(Self { keys, chain, checkpoint, floor: None, length: 0, hash: String::new(), has_begun: false })
    }

    /// Begins the verification at the floor of the chain. Fails if the floor was changed.
    pub fn with_floor(self, floor: Option<ChainMark>) -> Result<Self, BrokenChain> {
        let Some(floor) = floor else { return Ok(self) };
        if !self.keys.all().any(|keys| keys.is_valid_floor(self.chain, &floor)) {
            return Err(self.broken_at_next(ChainFault::InvalidFloor));
        }
        Ok(Self { length: floor.length, hash: floor.hash.clone(), floor: Some(floor), ..self })
    }

    /// The floor with a MAC of the current key, for a rotation of the master key; `None` if the chain has no floor.
    pub fn renewed_floor(&self) -> Option<ChainMark> {
        self.floor.as_ref().map(|floor| self.keys.current.floors.mark(self.chain, floor.length, &floor.hash))
    }

    /// The next entry to verify is the first one above this sequence number, which is at first the lowest possible number, so that
    /// we also verify entries with an invalid sequence number, and archived entries that are not deleted yet.
    pub const fn last_read(&self) -> i64 {
        if self.has_begun { self.length } else { i64::MIN }
    }

    /// The chain that is verified.
    pub const fn chain(&self) -> &'a str {
        self.chain
    }

    /// The keys of the current master key, which authenticate new entries.
    pub const fn current_keys(&self) -> &'a AuditKeys {
        self.keys.current
    }

    /// The error that reports the next entry as invalid.
    pub const fn broken_at_next(&self, fault: ChainFault) -> BrokenChain {
        BrokenChain { sequence: self.length + 1, fault }
    }

    pub fn verify_next(&mut self, entry: &AuditEntry) -> Result<(), BrokenChain> {
        if !self.has_begun && entry.sequence > 0 && self.is_archived(entry) {
            // `entry` is the first archived entry that is not deleted. The floor authenticates it, together with its previous hash.
            self.length = entry.sequence - 1;
            self.hash.clone_from(&entry.previous_hash);
        }
        self.has_begun = true;
        let fault = if entry.sequence != self.length + 1 {
            Some(ChainFault::Missing)
        } else if entry.chain != self.chain || entry.digest() != entry.hash {
            Some(ChainFault::HashMismatch)
        } else if entry.previous_hash != self.hash {
            Some(ChainFault::PreviousHashMismatch)
        } else if let Some(fault) = self.authentication_fault(entry) {
            Some(fault)
        } else if self.length == 0 && !can_start_chain(self.chain, &entry.action) {
            Some(ChainFault::InvalidFirstAction)
        } else {
            None
        };
        if let Some(fault) = fault {
            return Err(self.broken_at_next(fault));
        }
        self.length = entry.sequence;
        self.hash.clone_from(&entry.hash);
        Ok(())
    }

    fn is_archived(&self, entry: &AuditEntry) -> bool {
        self.floor.as_ref().is_some_and(|floor| entry.sequence <= floor.length)
    }

    /// Why an entry is not authentic. A floor or checkpoint authenticates all entries up to its own; later ones need a MAC.
    fn authentication_fault(&self, entry: &AuditEntry) -> Option<ChainFault> {
        for (mark, fault) in
            [(&self.floor, ChainFault::FloorMismatch), (&self.checkpoint, ChainFault::CheckpointMismatch)]
        {
            if let Some(mark) = mark.as_ref().filter(|mark| entry.sequence <= mark.length) {
                let differs = entry.sequence == mark.length && entry.hash != mark.hash;
                return differs.then_some(fault);
            }
        }
        let is_valid = self.keys.all().any(|keys| keys.is_valid_entry_mac(&entry.hash, &entry.mac));
        (!is_valid).then_some(ChainFault::InvalidMac)
    }

    /// The checkpoint that a rotation of the master key writes for a broken chain, with the current key. With this checkpoint,
    /// later verifications need no previous key, and find the chain broken at the same entry. It marks the last verified entry, or
    /// the entry at the previous checkpoint or at the floor if that is later. `None` if no entry is authenticated.
    pub fn checkpoint_before_break(&self) -> Option<ChainMark> {
        let checkpoint = self.checkpoint.as_ref().map(|checkpoint| (checkpoint.length, &checkpoint.hash));
        let floor = self.floor.as_ref().map(|floor| (floor.length, &floor.hash));
        let verified = Some((self.length, &self.hash));
        let (length, hash) = [verified, floor, checkpoint].into_iter().flatten().max_by_key(|(length, _)| *length)?;
        (length > 0).then(|| self.keys.current.checkpoints.mark(self.chain, length, hash))
    }

    /// Verifies that the chain ends at its head.
    pub fn finish(&self, head: Option<&ChainMark>) -> Result<(), BrokenChain> {
        let matches = |head: &&ChainMark| (head.length, &head.hash) == (self.length, &self.hash);
        let min_length = self.checkpoint.as_ref().map_or(1, |checkpoint| checkpoint.length);
        let is_valid = |head: &ChainMark| self.keys.all().any(|keys| keys.is_valid_head(self.chain, head));
        if self.length < min_length {
            Err(self.broken_at_next(ChainFault::Missing))
        } else if head.filter(matches).is_some_and(is_valid) {
            Ok(())
        } else {
            Err(self.broken_at_next(ChainFault::HeadMismatch))
        }
    }
}

/// Whether a chain can start with an action. The chain of a service starts with the creation of the service. The chain of the whole
/// Countersign deployment starts with `audit.began`, and so does the chain of a service that had none when the audit log began.
fn can_start_chain(chain: &str, action: &str) -> bool {
    action == AuditAction::AuditBegan.as_str()
        || (action == AuditAction::ServiceCreated.as_str() && chain != DEPLOYMENT_CHAIN)
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod checkpoint_tests;

#[cfg(test)]
mod floor_tests;
