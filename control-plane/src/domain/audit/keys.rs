//! The MAC keys of the audit log, and the marks of a chain. A mark authenticates the first entries of a chain: it has the number of
//! these entries and the hash of the last one, under a MAC.
//! - The head marks all entries, so verification notices if entries at the end were removed.
//! - The checkpoint marks the entries that existed when the master key was last rotated.
//! - The floor marks the entries that are in archives. These entries may be deleted from the database.
//!
//! The MAC keys are derived from the master key. A rotation of the master key verifies each chain with the keys of both master
//! keys. Then it writes the marks again with the new key. Up to the checkpoint, the hashes authenticate the entries; later entries
//! need a MAC of the new key. So nobody needs the old master key to verify old entries, and nobody can forge new entries with it.

use crate::domain::{
    derived_keys::{DerivedKeys, derive_key},
    netstrings::encode,
};
use aws_lc_rs::hmac;

/// Domain separation prefix for the hashes of entries, and for the derivation of their MAC key.
pub(super) const ENTRY_DOMAIN: &str = "countersign audit entry v1";

/// Domain separation prefix for the MACs of chain heads, and for the derivation of their MAC key.
const HEAD_DOMAIN: &str = "countersign audit head v1";

/// Domain separation prefix for the MACs of checkpoints, and for the derivation of their MAC key.
const CHECKPOINT_DOMAIN: &str = "countersign audit checkpoint v1";

/// Domain separation prefix for the MACs of floors, and for the derivation of their MAC key.
const FLOOR_DOMAIN: &str = "countersign audit floor v1";

/// The MAC keys that are derived from one master key.
pub struct AuditKeys {
    entries: hmac::Key,
    pub heads: MarkKey,
    pub checkpoints: MarkKey,
    pub floors: MarkKey,
}

/// A head, a checkpoint or a floor. Each kind has a MAC key of its own, so that nobody can use a mark as one of another kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChainMark {
    /// Number of entries.
    pub length: i64,
    /// Hash of the last of these entries.
    pub hash: String,
    /// MAC of length and hash, hex.
    pub mac: String,
}

/// The MAC key of all heads, of all checkpoints or of all floors.
pub struct MarkKey {
    domain: &'static str,
    key: hmac::Key,
}

impl MarkKey {
    /// Marks the first `length` entries of a chain. `hash` is the hash of the last of these entries.
    pub fn mark(&self, chain: &str, length: i64, hash: &str) -> ChainMark {
        let mac = hex::encode(hmac::sign(&self.key, &self.mac_input(chain, length, hash)));
        ChainMark { length, hash: hash.to_owned(), mac }
    }

    fn is_valid(&self, chain: &str, mark: &ChainMark) -> bool {
        is_valid_mac(&self.key, &self.mac_input(chain, mark.length, &mark.hash), &mark.mac)
    }

    fn mac_input(&self, chain: &str, length: i64, hash: &str) -> Vec<u8> {
        encode(&[Some(self.domain), Some(chain), Some(&length.to_string()), Some(hash)])
    }
}

/// The MAC keys of all configured master keys.
pub type AuditKeyRing = DerivedKeys<AuditKeys>;

/// The MAC keys that verification accepts: those of the master keys that the database names.
#[derive(Clone)]
pub struct AcceptedAuditKeys<'a> {
    /// The keys of the current master key, which authenticate new entries.
    pub current: &'a AuditKeys,
    /// The keys of previous master keys, as long as the rotation from them is not complete.
    pub previous: Vec<&'a AuditKeys>,
}

impl AuditKeys {
    /// Derives the MAC keys from a master key.
    pub fn derive(master: &[u8]) -> Self {
        let mark_key = |domain| MarkKey { domain, key: derive_key(master, domain) };
        Self {
            entries: derive_key(master, ENTRY_DOMAIN),
            heads: mark_key(HEAD_DOMAIN),
            checkpoints: mark_key(CHECKPOINT_DOMAIN),
            floors: mark_key(FLOOR_DOMAIN),
        }
    }

    /// Whether a head is valid. The default head of an empty chain needs no MAC: verification refuses empty chains anyway.
    pub fn is_valid_head(&self, chain: &str, head: &ChainMark) -> bool {
        *head == ChainMark::default() || self.heads.is_valid(chain, head)
    }

    /// Whether the MAC of a checkpoint is valid.
    pub fn is_valid_checkpoint(&self, chain: &str, checkpoint: &ChainMark) -> bool {
        self.checkpoints.is_valid(chain, checkpoint)
    }

    /// Whether a floor is valid. It must mark at least one entry: a chain without archived entries has no floor.
    pub fn is_valid_floor(&self, chain: &str, floor: &ChainMark) -> bool {
        floor.length > 0 && self.floors.is_valid(chain, floor)
    }

    pub(super) fn entry_mac(&self, hash: &str) -> String {
        hex::encode(hmac::sign(&self.entries, hash.as_bytes()))
    }

    pub(super) fn is_valid_entry_mac(&self, hash: &str, mac: &str) -> bool {
        is_valid_mac(&self.entries, hash.as_bytes(), mac)
    }
}

impl<'a> AcceptedAuditKeys<'a> {
    /// If the chain has a checkpoint of the current master key, leaves out previous keys: they authenticate nothing in this chain.
    /// `None` if the MAC of the checkpoint is valid under no key.
    pub(super) fn after_checkpoint(self, chain: &str, checkpoint: Option<&ChainMark>) -> Option<Self> {
        let Some(checkpoint) = checkpoint else { return Some(self) };
        if self.current.is_valid_checkpoint(chain, checkpoint) {
            return Some(Self { current: self.current, previous: Vec::new() });
        }
        self.previous.iter().any(|keys| keys.is_valid_checkpoint(chain, checkpoint)).then_some(self)
    }

    /// Whether a head is valid under the keys of a previous master key.
    pub fn is_head_of_previous_key(&self, chain: &str, head: &ChainMark) -> bool {
        self.previous.iter().any(|keys| keys.is_valid_head(chain, head))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &'a AuditKeys> {
        std::iter::once(self.current).chain(self.previous.iter().copied())
    }
}

fn is_valid_mac(key: &hmac::Key, text: &[u8], mac: &str) -> bool {
    hex::decode(mac).is_ok_and(|mac| hmac::verify(key, text, &mac).is_ok())
}
