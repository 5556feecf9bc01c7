//! A cache of tokens whose signature was verified. The signature check is the most expensive part of a decision about a
//! request.

use countersign_identity::{ServiceId, SignedToken};
use moka::sync::Cache;
use prometheus::IntCounter;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// A cache key: the service and the SHA-256 digest of the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheKey(ServiceId, [u8; 32]);

impl CacheKey {
    /// Creates the cache key of a token at a service.
    pub fn new(service: ServiceId, token: &str) -> Self {
        Self(service, Sha256::digest(token).into())
    }
}

/// A bounded cache of tokens whose signature was verified.
#[derive(Debug)]
pub struct TokenCache {
    tokens: Cache<CacheKey, Arc<SignedToken>>,
    hits: IntCounter,
    misses: IntCounter,
}

impl TokenCache {
    /// Creates a cache of at most `capacity` tokens that counts hits and misses.
    pub fn new(capacity: u64, hits: IntCounter, misses: IntCounter) -> Self {
        Self { tokens: Cache::new(capacity), hits, misses }
    }

    /// The cached token, if there is one. Counts a cache hit or a cache miss.
    pub fn get(&self, key: &CacheKey) -> Option<Arc<SignedToken>> {
        let token = self.tokens.get(key);
        let counter = if token.is_some() { &self.hits } else { &self.misses };
        counter.inc();
        token
    }

    /// Caches a token whose signature was verified.
    pub fn insert(&self, key: CacheKey, token: &Arc<SignedToken>) {
        self.tokens.insert(key, Arc::clone(token));
    }
}
