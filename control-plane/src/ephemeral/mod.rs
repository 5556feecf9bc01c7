//! What may be lost: windows of rate limits, and the word among replicas that something has changed. Whoever loses
//! them lets a few more calls pass for a minute, or hears of a change a quarter of a second later, no more.
//!
//! Neighbours: `http` counts its callers here; `app` connects the wake-ups with the store. The rule of the room: nothing
//! here is needed to give a right answer, nothing is kept longer than its window, and what there is no room to count is
//! not let pass. [`Memory`] is for one process, [`Redis`] for several; both pass `conformance`.

#[cfg(test)]
mod conformance;
mod memory;
mod redis;

pub use memory::Memory;
pub use redis::{Place, Redis, Servers, Watched};

use sha2::{Digest, Sha256};
use std::{pin::Pin, time::Duration};

/// Counts calls in sliding windows: at most so many in any span of that length, wherever it begins.
///
/// Calls that were refused do not count. So of a refusal, the longest wait of those that have none left is when a
/// call passes, unless others come before it.
pub trait Windows: Send + Sync + 'static {
    /// Takes one call out of each of these; or, if any has none left, out of none.
    fn take<'a>(&'a self, counts: &'a [Count]) -> Answer<'a>;

    /// What [`Self::take`] would say now. Takes nothing.
    fn look<'a>(&'a self, counts: &'a [Count]) -> Answer<'a>;

    /// Where these are.
    fn presence(&self) -> Presence;
}

/// Where windows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// In the memory of this process, as is meant.
    Own,
    /// In a Redis, with those of all replicas.
    Shared,
    /// In the memory of this process, for the Redis is not there.
    Lost,
}

/// What is being found out.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>;

/// Against whom a call counts, and how many of them there may be.
#[derive(Debug, Clone, Copy)]
pub struct Count {
    /// Against whom.
    pub subject: Subject,
    /// How many.
    pub quota: Quota,
}

/// At most so many calls in any span of this length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// How many, at least one.
    pub most: u32,
    /// In which span.
    pub window: Duration,
}

/// Who is counted. Of what it consists only a digest is kept, so that it is short and no secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Subject {
    kind: Kind,
    digest: [u8; 16],
}

/// Whether a subject had to prove who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It had, so there are not more of them than there are services and people.
    Proven,
    /// It had not: somebody may make up as many as fit.
    Claimed,
}

/// What came of it: a reading for each count, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the call passes.
    pub granted: bool,
    /// What is left now.
    pub readings: Vec<Reading>,
}

/// What is left of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// How many calls may still be made.
    pub left: u32,
    /// How long until one more may be made.
    pub wait: Duration,
}

impl Subject {
    /// The subject that consists of these parts, in this order.
    pub fn new(kind: Kind, parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            // With its length, so that no other parts read the same.
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let mut digest = [0; 16];
        digest.copy_from_slice(&hash.finalize()[..16]);
        Self { kind, digest }
    }
}
