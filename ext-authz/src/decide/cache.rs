//! A cache of tokens whose signature was verified, each with the identity that its last check evaluated. Verifying a signature is the
//! most expensive part of a check.
//!
//! Invariant: the cache saves work and decides nothing. When the view has other content, or the identity has ended, the token is
//! evaluated again.

use super::EvaluatedIdentity;
use crate::view::ContentId;
use arc_swap::ArcSwapOption;
use countersign_identity::{
    Claims, Permission, RoleName, ServiceId, SignedToken, Timestamp, TokenCache, VerifiedIdentity,
    token_cache::{BYTES_PER_TOKEN, CachedForToken, NAME_COST, names, names_memory},
};
use prometheus::IntCounter;
use std::sync::Arc;

/// About how many bytes a cached token needs besides its texts: for the claims, the key, and the entry of the cache.
const BASE_COST: usize = 768;

/// How many bytes an evaluated identity needs at most besides its names.
const IDENTITY_COST: usize = 1280;

/// How many bytes an entry of the claim `until` needs besides the id of the role: for a time, and for the entry in the map.
const UNTIL_COST: usize = NAME_COST + 16;

/// How many bytes are reserved for each byte of an identity's names: more than it needs.
const RESERVED_PER_BYTE: usize = 5;

/// A token whose signature was verified, and its identity as of the last check.
#[derive(Debug)]
pub struct CachedToken {
    pub token: SignedToken,
    identity: ArcSwapOption<EvaluatedIdentity>,
    /// The bytes that the cache reserves for the identity.
    room: usize,
}

impl CachedToken {
    fn new(token: SignedToken, text: &str) -> Self {
        let Claims { name, roles, permissions, grants, .. } = token.claims();
        // The names of the roles of an unbound token are not in the token, so we reserve room for many.
        let of_roles = if grants.is_empty() { 0 } else { BYTES_PER_TOKEN };
        let needed = identity_memory(name, roles, permissions) + of_roles;
        // Enough for an identity with the names in the token, or the rest of the token's share of the cache if that is more.
        let room = BYTES_PER_TOKEN.saturating_sub(text.len() + claims_memory(token.claims())).max(needed);
        Self { token, identity: ArcSwapOption::empty(), room }
    }

    /// The identity that the last check evaluated, if it applies to this content at this time.
    pub fn identity(&self, content: ContentId, now: Timestamp) -> Option<Arc<EvaluatedIdentity>> {
        self.identity.load().as_ref().filter(|it| it.applies(content, now)).map(Arc::clone)
    }

    /// Keeps an identity for further checks, unless it needs more memory than the cache reserves: the agent may have got many roles
    /// since its token was issued.
    pub fn keep(&self, identity: &Arc<EvaluatedIdentity>) {
        let VerifiedIdentity { name, roles, permissions, .. } = &identity.identity;
        if identity_memory(name, roles, permissions) <= self.room {
            self.identity.store(Some(Arc::clone(identity)));
        }
    }
}

impl CachedForToken for CachedToken {
    fn memory(&self) -> usize {
        claims_memory(self.token.claims()) + self.room
    }
}

/// A cache of tokens whose signature was verified, bounded in number and in memory.
pub struct VerifiedTokens {
    tokens: TokenCache<CachedToken>,
    hits: IntCounter,
    misses: IntCounter,
}

impl VerifiedTokens {
    /// Creates a cache of at most `capacity` tokens that counts hits and misses.
    pub fn new(capacity: usize, hits: IntCounter, misses: IntCounter) -> Self {
        Self { tokens: TokenCache::new(capacity), hits, misses }
    }

    /// The cached token, if there is one. Counts a cache hit or a cache miss.
    pub fn get(&self, service: ServiceId, text: &str) -> Option<Arc<CachedToken>> {
        let token = self.tokens.get(service, text);
        let counter = if token.is_some() { &self.hits } else { &self.misses };
        counter.inc();
        token
    }

    pub fn insert(&self, service: ServiceId, text: &str, token: SignedToken) -> Arc<CachedToken> {
        let cached = Arc::new(CachedToken::new(token, text));
        self.tokens.insert(service, text, Arc::clone(&cached));
        cached
    }
}

/// About how much memory the claims of a cached token need, in bytes.
fn claims_memory(claims: &Claims) -> usize {
    let Claims { iss, aud, name, roles, permissions, until, grants, scope, requested_scope, .. } = claims;
    let until: usize = until.keys().map(|role| role.as_str().len() + UNTIL_COST).sum();
    let requested = requested_scope.as_ref().map_or(0, |scope| names_memory(&[], scope.permissions()));
    let scopes = scope.as_ref().map_or(0, String::len) + requested;
    let names = name.len() + names_memory(roles, permissions) + until + scopes;
    BASE_COST + iss.len() + aud.as_str().len() + names + grants.memory()
}

/// The most bytes that an identity with these names needs.
fn identity_memory(name: &str, roles: &[RoleName], permissions: &[Permission]) -> usize {
    let names = names(roles, permissions).chain([name]);
    IDENTITY_COST + names.map(|name| name.len() * RESERVED_PER_BYTE + NAME_COST).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        decide::tests::unbound_claims,
        fixtures::{SERVICE_ID, TestIssuer, claims},
    };
    use countersign_identity::{KeySet, RoleGrant, RoleId, UnverifiedToken};

    /// A token of an agent with this many roles, and its text.
    fn token(roles: usize) -> (String, SignedToken) {
        let roles = (0..roles).map(|role| format!("r{role}").try_into().unwrap()).collect();
        signed(&Claims { roles, ..claims() })
    }

    /// An unbound token with this many roles, and its text.
    fn unbound_token(roles: usize) -> (String, SignedToken) {
        signed(&unbound_claims((0..roles).map(|role| RoleGrant { role: RoleId::from_bits(role as u128), until: None })))
    }

    fn signed(claims: &Claims) -> (String, SignedToken) {
        let issuer = TestIssuer::new(1);
        let keys = KeySet::from_points([issuer.public_point()]).unwrap();
        let text = issuer.sign(claims);
        let token = UnverifiedToken::parse(&text).unwrap().verify(&keys).unwrap();
        (text, token)
    }

    fn cache(capacity: usize) -> VerifiedTokens {
        let counter = |name| IntCounter::new(name, name).unwrap();
        VerifiedTokens::new(capacity, counter("hits"), counter("misses"))
    }

    #[test]
    fn large_tokens_need_more_memory() {
        let memory = |(text, token): (String, SignedToken)| text.len() + CachedToken::new(token, &text).memory();
        assert!(memory(token(1)) <= BYTES_PER_TOKEN);
        assert!(memory(token(200)) > 4 * BYTES_PER_TOKEN);
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

    #[test]
    fn identities_of_unbound_tokens_are_kept() {
        for roles in [1, 128] {
            let (text, token) = unbound_token(roles);
            let cached = cache(10).insert(SERVICE_ID, &text, token);
            let names = (0..16).map(|role| format!("role number {role}").try_into().unwrap()).collect();
            let identity = Arc::new(EvaluatedIdentity::fixture(names));
            cached.keep(&identity);
            assert!(cached.identity(identity.content, identity.evaluated_at).is_some(), "{roles} roles");
        }
    }
}
