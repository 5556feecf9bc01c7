//! A cache of tokens whose signature was verified. The signature check is the most expensive part of a decision about a
//! request.

use countersign_identity::{Claims, Permission, RoleName, ServiceId, SignedToken};
use moka::sync::Cache;
use prometheus::IntCounter;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// The memory that the cache has for each token, in bytes. Most tokens need less, so that the cache has as many tokens as the
/// settings allow. It has fewer if they are large.
const BYTES_PER_TOKEN: u32 = 2048;

/// What a cached token needs besides its texts, in bytes: about the claims, the key, and the entry of the cache.
const BASE_COST: usize = 768;

/// What a name needs besides its text: the pointer, the reference counts, and the remainder of the allocation.
const NAME_COST: usize = 40;

/// What an entry of `until` needs besides its text.
const UNTIL_COST: usize = NAME_COST + 16;

/// A cache key: the service and the SHA-256 digest of the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheKey(ServiceId, [u8; 32]);

impl CacheKey {
    /// Creates the cache key of a token at a service.
    pub fn new(service: ServiceId, token: &str) -> Self {
        Self(service, Sha256::digest(token).into())
    }
}

/// A cache of tokens whose signature was verified, bounded in number and in memory.
#[derive(Debug)]
pub struct TokenCache {
    tokens: Cache<CacheKey, Arc<SignedToken>>,
    hits: IntCounter,
    misses: IntCounter,
}

impl TokenCache {
    /// Creates a cache of at most `capacity` tokens that counts hits and misses.
    pub fn new(capacity: u64, hits: IntCounter, misses: IntCounter) -> Self {
        let weigh = |_: &CacheKey, token: &Arc<SignedToken>| {
            // A small token counts as much as it may need, which bounds the number of tokens.
            u32::try_from(memory(token.claims())).unwrap_or(u32::MAX).max(BYTES_PER_TOKEN)
        };
        let bytes = capacity.saturating_mul(BYTES_PER_TOKEN.into());
        Self { tokens: Cache::builder().max_capacity(bytes).weigher(weigh).build(), hits, misses }
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

/// About how much memory the claims of a cached token need, in bytes.
fn memory(claims: &Claims) -> usize {
    let Claims { iss, aud, name, roles, permissions, until, .. } = claims;
    let names = roles.iter().map(RoleName::as_str).chain(permissions.iter().map(Permission::as_str));
    let names: usize = names.map(|name| name.len() + NAME_COST).sum();
    let until: usize = until.keys().map(|role| role.as_str().len() + UNTIL_COST).sum();
    BASE_COST + iss.len() + aud.len() + name.len() + names + until
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{SERVICE_ID, TestIssuer, claims};
    use countersign_identity::{KeySet, UnverifiedToken};

    /// Tokens whose agents have this many roles.
    fn token(roles: usize) -> Arc<SignedToken> {
        let issuer = TestIssuer::new(1);
        let mut claims = claims();
        claims.roles = (0..roles).map(|role| format!("r{role}").try_into().unwrap()).collect();
        let keys = KeySet::from_points([issuer.public_point()]).unwrap();
        Arc::new(UnverifiedToken::parse(&issuer.sign(&claims)).unwrap().verify(&keys).unwrap())
    }

    /// How many of many tokens are in a cache of ten.
    fn cached(token: &Arc<SignedToken>) -> u64 {
        let counter = |name| IntCounter::new(name, name).unwrap();
        let cache = TokenCache::new(10, counter("hits"), counter("misses"));
        for number in 0..100 {
            cache.insert(CacheKey::new(SERVICE_ID, &number.to_string()), token);
        }
        cache.tokens.run_pending_tasks();
        assert!(cache.tokens.weighted_size() <= 10 * u64::from(BYTES_PER_TOKEN));
        cache.tokens.entry_count()
    }

    #[test]
    fn tokens_are_bounded_in_number_and_in_memory() {
        assert_eq!(cached(&token(1)), 10);
        let large = token(200);
        let needed = memory(large.claims());
        assert!(needed > 8000, "{needed}");
        assert_eq!(cached(&large), 2);
    }
}
