//! The interface of rate limiters: keys, quotas and decisions.

use sha2::{Digest, Sha256};
use std::{pin::Pin, time::Duration};

/// Limits calls in sliding windows: any period as long as the window contains at most `max_calls` calls.
///
/// Refused calls are not counted. So the caller can try again after the longest `reset_after` of the exhausted quotas, unless other
/// calls of the same caller are counted first.
pub trait RateLimiter: Send + Sync + 'static {
    /// Decides whether every limit in `limits` allows one more call. With `count_call`, counts an allowed call.
    fn decide<'a>(&'a self, limits: &'a [RateLimit], count_call: bool) -> DecisionFuture<'a>;

    /// Counts one call against every limit in `limits`, or against no limit if any limit is exhausted.
    fn acquire<'a>(&'a self, limits: &'a [RateLimit]) -> DecisionFuture<'a> {
        self.decide(limits, true)
    }

    /// Returns the decision that [`Self::acquire`] would make now, without counting a call.
    fn peek<'a>(&'a self, limits: &'a [RateLimit]) -> DecisionFuture<'a> {
        self.decide(limits, false)
    }

    /// Where calls are counted now.
    fn backend(&self) -> RateLimitBackend;
}

/// Where calls are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateLimitBackend {
    /// This process counts, because no Redis is configured.
    Memory,
    /// Redis counts the calls of all replicas together.
    Redis,
    /// This process counts, because the configured Redis is unavailable.
    MemoryFallback,
}

/// A pending decision.
pub type DecisionFuture<'a> = Pin<Box<dyn Future<Output = RateLimitDecision> + Send + 'a>>;

/// A quota applied to one key.
#[derive(Debug, Clone, Copy)]
pub struct RateLimit {
    /// The key whose calls are counted together.
    pub key: RateLimitKey,
    /// How many calls the key may make.
    pub quota: Quota,
}

/// The number of calls allowed in any window of a given length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Calls per window, at least 1.
    pub max_calls: u32,
    /// Length of the window.
    pub window: Duration,
}

/// Identifies a caller by a digest of the parts of its identity, so that the key is short and reveals no secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RateLimitKey {
    pub(super) caller: CallerKind,
    pub(super) digest: [u8; 16],
}

/// The kind of caller behind a key. A limiter in memory has a table for each kind, and forgets the oldest windows of a full table.
/// So a flood of keys of one kind cannot push out the windows of another kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallerKind {
    /// An authenticated service or human user. There are few keys of this kind.
    Authenticated,
    /// An agent that has proved its identity. There may be many: where registration is public, anyone can create agents.
    Agent,
    /// Anybody else. There may be any number of keys: a client with many addresses has many keys.
    Unauthenticated,
}

/// The decision about a call, with the status of each limit in the order of the limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimitDecision {
    /// Whether the call is allowed.
    pub allowed: bool,
    /// The status of each limit after the decision.
    pub statuses: Vec<QuotaStatus>,
}

/// The remaining calls of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaStatus {
    /// Calls that are still allowed.
    pub remaining: u32,
    /// Time until one more call than `remaining` is allowed; zero if no calls are counted.
    pub reset_after: Duration,
}

impl RateLimitKey {
    /// The key for a list of parts. If the order of the parts changes, the key changes too.
    pub fn new(caller: CallerKind, parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            // The length before each part makes the encoding injective: different lists of parts never have the same bytes.
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let mut digest = [0; 16];
        digest.copy_from_slice(&hash.finalize()[..16]);
        Self { caller, digest }
    }
}
