//! A cache of tokens whose signature was verified, and of the identity that the last check evaluated for each of them. The
//! signature check is the most expensive part of a decision about a request.
//!
//! Invariant: a cached token saves work and decides nothing. A view with other content, or a time at which the identity has
//! ended, needs a new evaluation.

use super::EvaluatedIdentity;
use crate::view::ContentId;
use arc_swap::ArcSwapOption;
use countersign_identity::{Claims, Permission, RoleName, ServiceId, SignedToken, Timestamp, VerifiedIdentity};
use prometheus::IntCounter;
use quick_cache::{
    Equivalent, Weighter,
    sync::{Cache, DefaultLifecycle},
};
use std::{
    hash::{Hash, Hasher, RandomState},
    sync::Arc,
};

/// The memory that the cache has for each token, in bytes. Most tokens need less, so that the cache has as many tokens as the
/// settings allow. It has fewer if they are large.
const BYTES_PER_TOKEN: usize = 4096;

/// What a cached token needs besides its texts, in bytes: about the claims, the key, and the entry of the cache.
const BASE_COST: usize = 768;

/// What an evaluated identity needs besides its names, in bytes: the identity, and the identity headers and metadata of the
/// encoded response.
const IDENTITY_COST: usize = 1280;

/// What a name needs besides its text: the pointer, the reference counts, and the remainder of the allocation.
const NAME_COST: usize = 40;

/// What an entry of `until` needs besides its text.
const UNTIL_COST: usize = NAME_COST + 16;

/// How many bytes a byte of a name can have in an identity header, where it may be percent-encoded, and in the metadata.
const ENCODED_LENGTH: usize = 3 + 1;

/// The number of characters at the end of a token that its hash depends on. They belong to the signature, so tokens that the
/// control plane has signed differ there. Whoever sends other tokens with the same end only makes the cache compare them.
const HASHED_CHARACTERS: usize = 32;

/// A token at a service. The whole text is compared, because no hash is an identity. The text is a secret, so the key cannot be
/// printed.
struct TokenKey {
    service: ServiceId,
    text: Box<str>,
}

/// A token at a service, as a request contains it.
#[derive(Clone, Copy)]
struct PresentedKey<'a> {
    service: ServiceId,
    text: &'a str,
}

impl TokenKey {
    fn presented(&self) -> PresentedKey<'_> {
        PresentedKey { service: self.service, text: &self.text }
    }
}

impl Hash for PresentedKey<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let bytes = self.text.as_bytes();
        self.service.hash(state);
        bytes.last_chunk::<HASHED_CHARACTERS>().map_or(bytes, <[u8; _]>::as_slice).hash(state);
    }
}

impl Hash for TokenKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.presented().hash(state);
    }
}

impl PartialEq for TokenKey {
    fn eq(&self, other: &Self) -> bool {
        other.presented().equivalent(self)
    }
}

impl Eq for TokenKey {}

impl Equivalent<TokenKey> for PresentedKey<'_> {
    fn equivalent(&self, key: &TokenKey) -> bool {
        self.service == key.service && *self.text == *key.text
    }
}

/// A token whose signature was verified, and its identity as of the last check.
#[derive(Debug)]
pub struct CachedToken {
    token: SignedToken,
    identity: ArcSwapOption<EvaluatedIdentity>,
    /// The memory for the identity, in bytes.
    room: usize,
}

impl CachedToken {
    fn new(token: SignedToken, text: &str) -> Self {
        let Claims { name, roles, permissions, .. } = token.claims();
        let needed = identity_memory(name, roles, permissions);
        let room = BYTES_PER_TOKEN.saturating_sub(text.len() + claims_memory(token.claims())).max(needed);
        Self { token, identity: ArcSwapOption::empty(), room }
    }

    /// The token.
    pub const fn token(&self) -> &SignedToken {
        &self.token
    }

    /// The identity that the last check evaluated, if it applies to this content at this time.
    pub fn identity(&self, content: ContentId, now: Timestamp) -> Option<Arc<EvaluatedIdentity>> {
        self.identity.load().as_ref().filter(|it| it.applies(content, now)).map(Arc::clone)
    }

    /// Keeps an identity for further checks, unless it needs more memory than the cache has for it: an agent may have got many
    /// roles since its token was issued.
    pub fn keep(&self, identity: &Arc<EvaluatedIdentity>) {
        let VerifiedIdentity { name, roles, permissions, .. } = &identity.identity;
        if identity_memory(name, roles, permissions) <= self.room {
            self.identity.store(Some(Arc::clone(identity)));
        }
    }
}

/// About how much memory a token needs.
#[derive(Debug, Clone)]
struct TokenWeight;

impl Weighter<TokenKey, Arc<CachedToken>> for TokenWeight {
    fn weight(&self, key: &TokenKey, cached: &Arc<CachedToken>) -> u64 {
        // Each token counts at least this much, so the cache never has more tokens than its capacity.
        (key.text.len() + claims_memory(cached.token.claims()) + cached.room).max(BYTES_PER_TOKEN) as u64
    }
}

/// A cache of tokens whose signature was verified, bounded in number and in memory.
#[derive(Debug)]
pub struct TokenCache {
    tokens: Cache<TokenKey, Arc<CachedToken>, TokenWeight, RandomState>,
    hits: IntCounter,
    misses: IntCounter,
}

impl TokenCache {
    /// Creates a cache of at most `capacity` tokens that counts hits and misses.
    pub fn new(capacity: usize, hits: IntCounter, misses: IntCounter) -> Self {
        let bytes = (capacity as u64).saturating_mul(BYTES_PER_TOKEN as u64);
        let tokens = Cache::with(capacity, bytes, TokenWeight, RandomState::new(), DefaultLifecycle::default());
        Self { tokens, hits, misses }
    }

    /// The cached token, if there is one. Counts a cache hit or a cache miss.
    pub fn get(&self, service: ServiceId, text: &str) -> Option<Arc<CachedToken>> {
        let token = self.tokens.get(&PresentedKey { service, text });
        let counter = if token.is_some() { &self.hits } else { &self.misses };
        counter.inc();
        token
    }

    /// Caches a token whose signature was verified.
    pub fn insert(&self, service: ServiceId, text: &str, token: SignedToken) -> Arc<CachedToken> {
        let cached = Arc::new(CachedToken::new(token, text));
        self.tokens.insert(TokenKey { service, text: text.into() }, Arc::clone(&cached));
        cached
    }
}

/// About how much memory the claims of a cached token need, in bytes.
fn claims_memory(claims: &Claims) -> usize {
    let Claims { iss, aud, name, roles, permissions, until, .. } = claims;
    let names: usize = names(roles, permissions).map(|name| name.len() + NAME_COST).sum();
    let until: usize = until.keys().map(|role| role.as_str().len() + UNTIL_COST).sum();
    BASE_COST + iss.len() + aud.len() + name.len() + names + until
}

/// At most how much memory an identity with these names needs, in bytes, with its encoded response.
fn identity_memory(name: &str, roles: &[RoleName], permissions: &[Permission]) -> usize {
    let names = names(roles, permissions).chain([name]);
    IDENTITY_COST + names.map(|name| name.len() * (1 + ENCODED_LENGTH) + NAME_COST).sum::<usize>()
}

fn names<'a>(roles: &'a [RoleName], permissions: &'a [Permission]) -> impl Iterator<Item = &'a str> {
    roles.iter().map(RoleName::as_str).chain(permissions.iter().map(Permission::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{SERVICE_ID, TestIssuer, claims};
    use countersign_identity::{KeySet, UnverifiedToken};

    /// A token of an agent with this many roles, and its text.
    fn token(roles: usize) -> (String, SignedToken) {
        let issuer = TestIssuer::new(1);
        let mut claims = claims();
        claims.roles = (0..roles).map(|role| format!("r{role}").try_into().unwrap()).collect();
        let keys = KeySet::from_points([issuer.public_point()]).unwrap();
        let text = issuer.sign(&claims);
        let token = UnverifiedToken::parse(&text).unwrap().verify(&keys).unwrap();
        (text, token)
    }

    fn cache(capacity: usize) -> TokenCache {
        let counter = |name| IntCounter::new(name, name).unwrap();
        TokenCache::new(capacity, counter("hits"), counter("misses"))
    }

    /// How many of many tokens are in a cache for a hundred.
    fn cached((text, token): &(String, SignedToken)) -> usize {
        let cache = cache(100);
        for number in 0..2000 {
            cache.insert(SERVICE_ID, &format!("{text}{number}"), token.clone());
        }
        assert!(cache.tokens.weight() <= 100 * BYTES_PER_TOKEN as u64);
        cache.tokens.len()
    }

    #[test]
    fn tokens_are_bounded_in_number_and_in_memory() {
        let small = cached(&token(1));
        assert!((50..=100).contains(&small), "{small}");
        let large = token(200);
        let needed = claims_memory(large.1.claims());
        assert!(needed > 8000, "{needed}");
        let large = cached(&large);
        assert!((5..=25).contains(&large), "{large}");
    }

    #[test]
    fn tokens_with_the_same_end_are_different() {
        let (text, token) = token(1);
        let cache = cache(10);
        cache.insert(SERVICE_ID, &text, token);
        let (_, end) = text.split_at(text.len() - HASHED_CHARACTERS);
        let same_length = format!("x{}", &text[1..]);
        for other in [end, &text[1..], &format!("x{text}"), &same_length, ""] {
            assert!(cache.get(SERVICE_ID, other).is_none(), "{other}");
        }
        assert!(cache.get(ServiceId::from_bits(99), &text).is_none());
        assert!(cache.get(SERVICE_ID, &text).is_some());
    }

    #[test]
    fn identities_that_need_more_memory_than_the_cache_has_are_not_kept() {
        let (text, token) = token(1);
        let cached = cache(10).insert(SERVICE_ID, &text, token);
        let identity = |roles: usize| {
            let roles = (0..roles).map(|role| format!("role {role}").try_into().unwrap()).collect();
            Arc::new(EvaluatedIdentity::fixture(roles))
        };
        let is_kept = |identity: &Arc<EvaluatedIdentity>| {
            cached.keep(identity);
            cached.identity(identity.content, identity.evaluated_at).is_some()
        };
        assert!(!is_kept(&identity(1000)));
        assert!(is_kept(&identity(3)));
    }
}
