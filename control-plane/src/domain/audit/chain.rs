//! The chain: each link holds the hash of the one before, so none can be changed, moved or taken out unnoticed.
//!
//! The hash is plain SHA-256: whoever has the links can check it. Beside it stands a MAC of the hash under a key that is
//! derived from the master key: who may write the database but has not that key can hash a chain anew and is
//! noticed. The head says how long a chain is, under another MAC: missing links at the end are missed. What is not noticed
//! is a chain put back, with its head, to what both were before; only who kept a later hash knows better.

use super::{Act, Author, Chain, Entry};
use crate::domain::netstrings::fields;
use aws_lc_rs::hmac;
use countersign_identity::Timestamp;
use sha2::{Digest, Sha256};
use std::fmt;

/// What the text of a link begins with, so that it is no other text of ours.
const LINK: &str = "countersign audit link v1";

/// What the text of a head begins with.
const HEAD: &str = "countersign audit head v1";

/// A link as it is kept: whatever stands there, also if we did not write it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The service, or `deployment`.
    pub chain: String,
    /// Its place, from 1.
    pub sequence: i64,
    /// When it was done.
    pub at: Timestamp,
    /// What was done.
    pub act: String,
    /// What kind of actor did it.
    pub actor_kind: String,
    /// Who says who the actor is.
    pub actor_issuer: Option<String>,
    /// Who it was.
    pub actor_id: Option<String>,
    /// From which address.
    pub address: Option<String>,
    /// By which request.
    pub request_id: Option<String>,
    /// To which agent.
    pub agent: Option<String>,
    /// With what kind of thing.
    pub object_kind: Option<String>,
    /// With which.
    pub object_id: Option<String>,
    /// More about it: a JSON object.
    pub details: String,
    /// The hash of the link before; of the first, nothing.
    pub previous: String,
    /// SHA-256 of all above, hex.
    pub hash: String,
    /// The MAC of the hash, hex.
    pub mac: String,
}

/// Where a chain ends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Head {
    /// How many links it has.
    pub length: i64,
    /// The hash of the last one.
    pub hash: String,
    /// The MAC of both.
    pub mac: String,
}

/// The keys of the MACs, derived from the deployment's master key.
pub struct AuditKeys {
    links: hmac::Key,
    heads: hmac::Key,
}

impl AuditKeys {
    /// Derives both keys.
    pub fn derive(master: &[u8]) -> Self {
        let master = hmac::Key::new(hmac::HMAC_SHA256, master);
        let derive =
            |purpose: &str| hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&master, purpose.as_bytes()).as_ref());
        Self { links: derive(LINK), heads: derive(HEAD) }
    }

    /// The link that follows a head, and the head after it. A head that is not ours is followed, for an act must not
    /// fail because somebody has been at the record of others; but no head after it is sealed again.
    pub fn append(&self, before: &Head, entry: &Entry, by: &Author, at: Timestamp) -> (Link, Head) {
        let Entry { chain, act, agent, object, details } = entry;
        let (actor_kind, actor_issuer, actor_id) = by.actor.parts();
        let object = object.as_ref().map(super::Object::parts);
        let mut link = Link {
            chain: chain.to_string(),
            sequence: before.length.saturating_add(1),
            at,
            act: act.as_str().to_owned(),
            actor_kind: actor_kind.to_owned(),
            actor_issuer: actor_issuer.map(str::to_owned),
            actor_id,
            address: by.origin.address.map(|address| address.to_string()),
            request_id: by.origin.request.clone(),
            agent: agent.map(|agent| agent.to_string()),
            object_kind: object.as_ref().map(|(kind, _)| (*kind).to_owned()),
            object_id: object.map(|(_, id)| id),
            details: serde_json::json!(details).to_string(),
            previous: before.hash.clone(),
            hash: String::new(),
            mac: String::new(),
        };
        link.hash = link.digest();
        link.mac = hex::encode(hmac::sign(&self.links, link.hash.as_bytes()));
        let (length, hash) = (link.sequence, link.hash.clone());
        let sealed = self.sealed(&link.chain, before);
        let mac = if sealed { self.seal(&link.chain, length, &hash) } else { before.mac.clone() };
        (link, Head { length, hash, mac })
    }

    /// Whether a head is one that we wrote; a chain without links has none.
    pub fn sealed(&self, chain: &str, head: &Head) -> bool {
        *head == Head::default() || is_mac(&self.heads, &head_text(chain, head.length, &head.hash), &head.mac)
    }

    fn seal(&self, chain: &str, length: i64, hash: &str) -> String {
        hex::encode(hmac::sign(&self.heads, &head_text(chain, length, hash)))
    }
}

impl Link {
    /// What its hash must be.
    pub fn digest(&self) -> String {
        let (sequence, at) = (self.sequence.to_string(), self.at.micros().to_string());
        hex::encode(Sha256::digest(fields(&[
            Some(LINK),
            Some(&self.chain),
            Some(&sequence),
            Some(&at),
            Some(&self.act),
            Some(&self.actor_kind),
            self.actor_issuer.as_deref(),
            self.actor_id.as_deref(),
            self.address.as_deref(),
            self.request_id.as_deref(),
            self.agent.as_deref(),
            self.object_kind.as_deref(),
            self.object_id.as_deref(),
            Some(&self.details),
            Some(&self.previous),
        ])))
    }
}

fn head_text(chain: &str, length: i64, hash: &str) -> Vec<u8> {
    fields(&[Some(HEAD), Some(chain), Some(&length.to_string()), Some(hash)])
}

fn is_mac(key: &hmac::Key, text: &[u8], mac: &str) -> bool {
    hex::decode(mac).is_ok_and(|mac| hmac::verify(key, text, &mac).is_ok())
}

/// What is wrong with a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is not there, and a later one is; or it is the first, and not there.
    Missing,
    /// It does not follow from the one before.
    Unlinked,
    /// Its content is not what was hashed.
    Changed,
    /// It was not made with the master key of this deployment.
    Forged,
    /// A column holds what we never write.
    Unreadable,
    /// A chain does not begin like this.
    Beginning,
    /// The chain ends there, but its head says otherwise.
    Head,
}

impl Fault {
    /// What is wrong, for people.
    const fn text(self) -> &'static str {
        match self {
            Self::Missing => "it is missing",
            Self::Unlinked => "it does not follow from the link before",
            Self::Changed => "its content does not fit its hash",
            Self::Forged => "it was not made with the master key of this deployment",
            Self::Unreadable => "a column holds what is never written there",
            Self::Beginning => "no chain begins with such an act",
            Self::Head => {
                "the chain does not end where its head says: links were added or taken at the end, or the head was changed"
            }
        }
    }
}

/// The first link of a chain that is not as it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken {
    /// Its place in the chain.
    pub sequence: i64,
    /// What is wrong with it.
    pub fault: Fault,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broken at link {}: {}", self.sequence, self.fault.text())
    }
}

/// Goes along a chain, link by link.
pub struct Walk<'a> {
    keys: &'a AuditKeys,
    chain: &'a str,
    length: i64,
    hash: String,
}

impl<'a> Walk<'a> {
    /// Before the first link.
    pub const fn new(keys: &'a AuditKeys, chain: &'a str) -> Self {
        Self { keys, chain, length: 0, hash: String::new() }
    }

    /// The place of the last link.
    pub const fn length(&self) -> i64 {
        self.length
    }

    /// That something is wrong with the next link.
    pub const fn broken(&self, fault: Fault) -> Broken {
        Broken { sequence: self.length + 1, fault }
    }

    /// Checks the next link.
    pub fn step(&mut self, link: &Link) -> Result<(), Broken> {
        let fault = if link.sequence != self.length + 1 {
            Some(Fault::Missing)
        } else if link.chain != self.chain || link.digest() != link.hash {
            Some(Fault::Changed)
        } else if link.previous != self.hash {
            Some(Fault::Unlinked)
        } else if !is_mac(&self.keys.links, link.hash.as_bytes(), &link.mac) {
            Some(Fault::Forged)
        } else if self.length == 0 && !begins(self.chain, &link.act) {
            Some(Fault::Beginning)
        } else {
            None
        };
        if let Some(fault) = fault {
            return Err(self.broken(fault));
        }
        self.length = link.sequence;
        self.hash.clone_from(&link.hash);
        Ok(())
    }

    /// Checks that the chain ends where its head says.
    pub fn end(self, head: Option<&Head>) -> Result<(), Broken> {
        let same = |head: &&Head| (head.length, &head.hash) == (self.length, &self.hash);
        if self.length == 0 {
            Err(self.broken(Fault::Missing))
        } else if head.filter(same).is_some_and(|head| self.keys.sealed(self.chain, head)) {
            Ok(())
        } else {
            Err(self.broken(Fault::Head))
        }
    }
}

/// A service's chain begins when it is made; else a chain begins when the audit does.
fn begins(chain: &str, act: &str) -> bool {
    act == Act::AuditBegan.as_str() || (act == Act::ServiceCreated.as_str() && chain != Chain::Deployment.to_string())
}

#[cfg(test)]
mod tests;
