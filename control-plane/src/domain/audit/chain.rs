//! The hash chain of the audit log: each entry contains the hash of the previous entry. Verification detects entries that
//! were changed, reordered or removed.
//!
//! The hash of an entry is plain SHA-256, which anyone with the entries can verify. A MAC of the hash, under a key derived
//! from the master key, detects a chain that was rehashed by an attacker who can write to the database but does not have the
//! master key. The head of a chain stores the length of the chain under a second MAC, which detects that entries at the end
//! are missing.
//!
//! Verification does not detect a chain that was rolled back together with its head. To detect such a rollback, compare the
//! chain with a later hash that was saved outside the database.

use super::{AuditAction, AuditChain, Initiator, NewAuditEntry};
use crate::domain::netstrings::encode;
use aws_lc_rs::hmac;
use countersign_identity::Timestamp;
use sha2::{Digest, Sha256};
use std::fmt;

/// Domain separation prefix for the hashes of entries, and for the derivation of their MAC key.
const ENTRY_DOMAIN: &str = "countersign audit link v1";

/// Domain separation prefix for the MACs of chain heads, and for the derivation of their MAC key.
const HEAD_DOMAIN: &str = "countersign audit head v1";

/// A stored entry. The fields of a stored entry are not validated, because the row may have been changed in the database.
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

/// The head of a chain: its length and the hash of its last entry, with a MAC.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChainHead {
    /// Number of entries.
    pub length: i64,
    /// Hash of the last entry.
    pub hash: String,
    /// MAC of length and hash, hex.
    pub mac: String,
}

/// The MAC keys of the audit log, derived from the master key.
pub struct AuditKeys {
    entries: hmac::Key,
    heads: hmac::Key,
}

impl AuditKeys {
    /// Derives the MAC keys of entries and of heads.
    pub fn derive(master: &[u8]) -> Self {
        let master = hmac::Key::new(hmac::HMAC_SHA256, master);
        let derive =
            |purpose: &str| hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&master, purpose.as_bytes()).as_ref());
        Self { entries: derive(ENTRY_DOMAIN), heads: derive(HEAD_DOMAIN) }
    }

    /// Builds the entry that follows the head `before`, and the new head.
    ///
    /// If the MAC of `before` is invalid, the entry is appended nevertheless, because tampering with old entries must not
    /// block new actions. The new head keeps an invalid MAC of `before`, so that verification continues to fail.
    pub fn build_entry(
        &self,
        before: &ChainHead,
        entry: &NewAuditEntry,
        initiator: &Initiator,
        at: Timestamp,
    ) -> (AuditEntry, ChainHead) {
        let NewAuditEntry { chain, action, agent, object, details } = entry;
        let (actor_kind, actor_issuer, actor_id) = initiator.actor.kind_issuer_and_id();
        let object = object.as_ref().map(super::AuditedObject::kind_and_id);
        let mut entry = AuditEntry {
            chain: chain.to_string(),
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
        entry.mac = hex::encode(hmac::sign(&self.entries, entry.hash.as_bytes()));
        let (length, hash) = (entry.sequence, entry.hash.clone());
        let is_valid = self.is_valid_head(&entry.chain, before);
        let mac = if is_valid { self.head_mac(&entry.chain, length, &hash) } else { before.mac.clone() };
        (entry, ChainHead { length, hash, mac })
    }

    /// Whether the MAC of a head is valid. The default head, which belongs to an empty chain, is valid without a MAC.
    pub fn is_valid_head(&self, chain: &str, head: &ChainHead) -> bool {
        *head == ChainHead::default()
            || is_valid_mac(&self.heads, &head_mac_input(chain, head.length, &head.hash), &head.mac)
    }

    fn head_mac(&self, chain: &str, length: i64, hash: &str) -> String {
        hex::encode(hmac::sign(&self.heads, &head_mac_input(chain, length, hash)))
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

fn head_mac_input(chain: &str, length: i64, hash: &str) -> Vec<u8> {
    encode(&[Some(HEAD_DOMAIN), Some(chain), Some(&length.to_string()), Some(hash)])
}

fn is_valid_mac(key: &hmac::Key, text: &[u8], mac: &str) -> bool {
    hex::decode(mac).is_ok_and(|mac| hmac::verify(key, text, &mac).is_ok())
}

/// Why an entry or a chain is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainFault {
    /// An entry with a lower sequence than an existing entry is missing, or the chain has no entries.
    Missing,
    /// The previous hash in the entry is not the hash of the entry before it.
    PreviousHashMismatch,
    /// The fields of the entry do not match its hash.
    HashMismatch,
    /// The MAC of the entry was not computed with a key derived from the master key of this Countersign deployment.
    InvalidMac,
    /// A column has a type or a value that the control plane never writes.
    Unreadable,
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
pub struct ChainVerifier<'a> {
    keys: &'a AuditKeys,
    chain: &'a str,
    length: i64,
    hash: String,
}

impl<'a> ChainVerifier<'a> {
    /// Creates a verifier that has not verified any entry.
    pub const fn new(keys: &'a AuditKeys, chain: &'a str) -> Self {
        Self { keys, chain, length: 0, hash: String::new() }
    }

    /// Number of entries verified so far.
    pub const fn length(&self) -> i64 {
        self.length
    }

    /// The error that reports the next entry as invalid.
    pub const fn broken_at_next(&self, fault: ChainFault) -> BrokenChain {
        BrokenChain { sequence: self.length + 1, fault }
    }

    /// Verifies the next entry.
    pub fn verify_next(&mut self, entry: &AuditEntry) -> Result<(), BrokenChain> {
        let fault = if entry.sequence != self.length + 1 {
            Some(ChainFault::Missing)
        } else if entry.chain != self.chain || entry.digest() != entry.hash {
            Some(ChainFault::HashMismatch)
        } else if entry.previous_hash != self.hash {
            Some(ChainFault::PreviousHashMismatch)
        } else if !is_valid_mac(&self.keys.entries, entry.hash.as_bytes(), &entry.mac) {
            Some(ChainFault::InvalidMac)
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

    /// Verifies that the chain ends at its head.
    pub fn finish(self, head: Option<&ChainHead>) -> Result<(), BrokenChain> {
        let matches = |head: &&ChainHead| (head.length, &head.hash) == (self.length, &self.hash);
        if self.length == 0 {
            Err(self.broken_at_next(ChainFault::Missing))
        } else if head.filter(matches).is_some_and(|head| self.keys.is_valid_head(self.chain, head)) {
            Ok(())
        } else {
            Err(self.broken_at_next(ChainFault::HeadMismatch))
        }
    }
}

/// Whether a chain can start with an action. The chain of a service starts with the creation of the service. The chain of the
/// whole Countersign deployment, and the chain of a service older than the audit log, starts with the action `audit.began`.
fn can_start_chain(chain: &str, action: &str) -> bool {
    action == AuditAction::AuditBegan.as_str()
        || (action == AuditAction::ServiceCreated.as_str() && chain != AuditChain::Deployment.to_string())
}

#[cfg(test)]
mod tests;
