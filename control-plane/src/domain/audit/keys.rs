//! The MAC keys of the audit log, and the checkpoints that a rotation of the master key leaves.
//!
//! The MAC keys are derived from the master key. A rotation of the master key verifies each chain with the keys of both master
//! keys, and then stores a checkpoint: the length of the chain and the hash of its last entry, under a MAC of the new key. The
//! hashes authenticate the entries up to the checkpoint, and entries after the checkpoint need a MAC of the new key. So the old
//! master key is needed neither to verify old entries nor sufficient to forge new ones.
//!
//! The floor of a chain says that its first entries are in archives: their number and the hash of the last one, under a MAC. A
//! rotation of the master key authenticates the floor with the new key.

use super::chain::ChainHead;
use crate::domain::netstrings::encode;
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
    heads: hmac::Key,
    checkpoints: hmac::Key,
    floors: hmac::Key,
}

/// The part of a chain that was archived.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFloor {
    /// Number of entries.
    pub length: i64,
    /// Hash of the last entry.
    pub hash: String,
    /// MAC of length and hash, hex.
    pub mac: String,
}

/// The part of a chain that existed when the master key was rotated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditCheckpoint {
    /// Number of entries.
    pub length: i64,
    /// Hash of the last entry.
    pub hash: String,
    /// MAC of length and hash, hex.
    pub mac: String,
}

/// The MAC keys of all configured master keys, by the fingerprint of the master key.
pub struct AuditKeyRing(Vec<(String, AuditKeys)>);

/// The MAC keys that the state of the database allows.
#[derive(Clone)]
pub struct AcceptedAuditKeys<'a> {
    /// The keys of the current master key, which authenticate new entries.
    pub current: &'a AuditKeys,
    /// The keys of master keys whose rotation is not complete.
    pub previous: Vec<&'a AuditKeys>,
}

impl AuditKeys {
    /// Derives the MAC keys from a master key.
    pub fn derive(master: &[u8]) -> Self {
        let master = hmac::Key::new(hmac::HMAC_SHA256, master);
        let derive =
            |purpose: &str| hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&master, purpose.as_bytes()).as_ref());
        Self {
            entries: derive(ENTRY_DOMAIN),
            heads: derive(HEAD_DOMAIN),
            checkpoints: derive(CHECKPOINT_DOMAIN),
            floors: derive(FLOOR_DOMAIN),
        }
    }

    /// Whether the MAC of a head is valid. The default head, which belongs to an empty chain, is valid without a MAC.
    pub fn is_valid_head(&self, chain: &str, head: &ChainHead) -> bool {
        *head == ChainHead::default()
            || is_valid_mac(&self.heads, &mac_input(HEAD_DOMAIN, chain, head.length, &head.hash), &head.mac)
    }

    /// Whether the MAC of a checkpoint is valid.
    pub fn is_valid_checkpoint(&self, chain: &str, checkpoint: &AuditCheckpoint) -> bool {
        let AuditCheckpoint { length, hash, mac } = checkpoint;
        is_valid_mac(&self.checkpoints, &mac_input(CHECKPOINT_DOMAIN, chain, *length, hash), mac)
    }

    /// The checkpoint of a verified chain, and its head under this key.
    pub fn checkpoint(&self, chain: &str, length: i64, hash: &str) -> (AuditCheckpoint, ChainHead) {
        let mac = hex::encode(hmac::sign(&self.checkpoints, &mac_input(CHECKPOINT_DOMAIN, chain, length, hash)));
        let head = ChainHead { length, hash: hash.to_owned(), mac: self.head_mac(chain, length, hash) };
        (AuditCheckpoint { length, hash: hash.to_owned(), mac }, head)
    }

    /// Whether the MAC of a floor is valid. A chain has no floor without entries.
    pub fn is_valid_floor(&self, chain: &str, floor: &AuditFloor) -> bool {
        let AuditFloor { length, hash, mac } = floor;
        *length > 0 && is_valid_mac(&self.floors, &mac_input(FLOOR_DOMAIN, chain, *length, hash), mac)
    }

    /// The floor of a chain whose first `length` entries were verified and archived.
    pub fn floor(&self, chain: &str, length: i64, hash: &str) -> AuditFloor {
        let mac = hex::encode(hmac::sign(&self.floors, &mac_input(FLOOR_DOMAIN, chain, length, hash)));
        AuditFloor { length, hash: hash.to_owned(), mac }
    }

    pub(super) fn head_mac(&self, chain: &str, length: i64, hash: &str) -> String {
        hex::encode(hmac::sign(&self.heads, &mac_input(HEAD_DOMAIN, chain, length, hash)))
    }

    pub(super) fn entry_mac(&self, hash: &str) -> String {
        hex::encode(hmac::sign(&self.entries, hash.as_bytes()))
    }

    pub(super) fn is_valid_entry_mac(&self, hash: &str, mac: &str) -> bool {
        is_valid_mac(&self.entries, hash.as_bytes(), mac)
    }
}

impl AuditKeyRing {
    /// A ring of keys, each with the fingerprint of its master key, that of the configured key first.
    pub const fn new(keys: Vec<(String, AuditKeys)>) -> Self {
        Self(keys)
    }

    /// The fingerprint of the configured master key; empty if the ring has no keys.
    pub fn configured(&self) -> &str {
        self.0.first().map_or("", |(fingerprint, _)| fingerprint)
    }

    /// The keys of the master key with a fingerprint; `None` if this master key is not configured.
    pub fn find(&self, fingerprint: &str) -> Option<&AuditKeys> {
        self.0.iter().find(|(name, _)| name == fingerprint).map(|(_, keys)| keys)
    }
}

impl<'a> AcceptedAuditKeys<'a> {
    /// The keys that authenticate a chain with a checkpoint; `None` if the MAC of the checkpoint is not valid. After a
    /// checkpoint of the current master key, the keys of previous master keys authenticate nothing.
    pub(super) fn with_checkpoint(self, chain: &str, checkpoint: Option<&AuditCheckpoint>) -> Option<Self> {
        let Some(checkpoint) = checkpoint else { return Some(self) };
        if self.current.is_valid_checkpoint(chain, checkpoint) {
            return Some(Self { current: self.current, previous: Vec::new() });
        }
        self.previous.iter().any(|keys| keys.is_valid_checkpoint(chain, checkpoint)).then_some(self)
    }

    /// Whether the MAC of a head is valid under a previous key and not under the current one.
    pub fn is_head_of_previous_key(&self, chain: &str, head: &ChainHead) -> bool {
        self.previous.iter().any(|keys| keys.is_valid_head(chain, head))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &'a AuditKeys> {
        std::iter::once(self.current).chain(self.previous.iter().copied())
    }
}

fn mac_input(domain: &str, chain: &str, length: i64, hash: &str) -> Vec<u8> {
    encode(&[Some(domain), Some(chain), Some(&length.to_string()), Some(hash)])
}

fn is_valid_mac(key: &hmac::Key, text: &[u8], mac: &str) -> bool {
    hex::decode(mac).is_ok_and(|mac| hmac::verify(key, text, &mac).is_ok())
}
