//! A cache of tokens whose signature is verified, because the signature check is the most expensive part of a decision.

use countersign_identity::{ServiceId, SignedToken};
use moka::sync::Cache;
use prometheus::IntCounter;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// The service and the SHA-256 digest of the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheKey(ServiceId, [u8; 32]);

impl CacheKey {
    /// The key of a token at a service.
    pub fn new(service: ServiceId, token: &str) -> Self {
        Self(service, Sha256::digest(token).into())
    }
}

/// A bounded cache of tokens whose signature is verified.
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

    /// The token, if its signature was verified before.
    pub fn get(&self, key: &CacheKey) -> Option<Arc<SignedToken>> {
        let token = self.tokens.get(key);
        let counter = if token.is_some() { &self.hits } else { &self.misses };
        counter.inc();
        token
    }

    /// Adds a token whose signature was just verified.
    pub fn insert(&self, key: CacheKey, token: &Arc<SignedToken>) {
        self.tokens.insert(key, Arc::clone(token));
    }
}
