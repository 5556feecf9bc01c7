//! Tokens whose signature was verified before: the one costly question, asked once.

use countersign_identity::{ServiceId, SignedToken};
use moka::sync::Cache;
use prometheus::IntCounter;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Where a token stands in the cache: its full hash, and the service that was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place(ServiceId, [u8; 32]);

/// Verified tokens, as many as the settings say.
#[derive(Debug)]
pub struct TokenCache {
    tokens: Cache<Place, Arc<SignedToken>>,
    hits: IntCounter,
    misses: IntCounter,
}

impl TokenCache {
    /// Remembers at most `capacity` tokens, and counts how often that helped.
    pub fn new(capacity: u64, hits: IntCounter, misses: IntCounter) -> Self {
        Self { tokens: Cache::new(capacity), hits, misses }
    }

    /// Where this token stands.
    pub fn place(service: ServiceId, token: &str) -> Place {
        Place(service, Sha256::digest(token).into())
    }

    /// The token, if its signature was verified before.
    pub fn get(&self, place: &Place) -> Option<Arc<SignedToken>> {
        let found = self.tokens.get(place);
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.inc();
        found
    }

    /// Remembers a token whose signature was just verified.
    pub fn put(&self, place: Place, token: &Arc<SignedToken>) {
        self.tokens.insert(place, Arc::clone(token));
    }
}
