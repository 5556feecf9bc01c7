//! A bounded cache of what a process knows about tokens whose signature it has verified.
//!
//! Invariant: a token is found only by its whole text, at the service for which it was cached.

use crate::{Permission, RoleName, ServiceId};
use moka::{Equivalent, sync::Cache};
use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

/// How many bytes a cache may use for each token of its capacity. If many tokens need more, the cache keeps fewer tokens.
pub const BYTES_PER_TOKEN: usize = 4096;

/// How many bytes a name needs besides its text: for the pointer, the reference counts, and the remainder of the allocation.
pub const NAME_COST: usize = 40;

/// Only this many characters at the end of a token are hashed. They belong to the signature, so signed tokens differ there. A
/// client that sends other tokens with the same end only makes the cache compare whole texts.
const HASHED_CHARACTERS: usize = 32;

/// A value that a cache can keep for a token.
pub trait CachedForToken: Send + Sync + 'static {
    /// About how many bytes the value needs.
    fn memory(&self) -> usize;
}

/// About how much memory the names of roles and permissions need, in bytes.
pub fn names_memory(roles: &[RoleName], permissions: &[Permission]) -> usize {
    names(roles, permissions).map(|name| name.len() + NAME_COST).sum()
}

/// The names of roles and permissions.
pub fn names<'a>(roles: &'a [RoleName], permissions: &'a [Permission]) -> impl Iterator<Item = &'a str> {
    roles.iter().map(RoleName::as_str).chain(permissions.iter().map(Permission::as_str))
}

/// A token at a service. Keys are compared by the whole text, because two tokens can have the same hash. The text is a secret, so
/// the key cannot be printed.
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

/// A cache of tokens, bounded in number and in memory.
pub struct TokenCache<T>(Cache<TokenKey, Arc<T>>);

impl<T: CachedForToken> TokenCache<T> {
    /// A cache of at most `capacity` tokens.
    pub fn new(capacity: usize) -> Self {
        let bytes = (capacity as u64).saturating_mul(BYTES_PER_TOKEN as u64);
        // Small tokens count as BYTES_PER_TOKEN, so the cache never has more tokens than its capacity.
        let memory = |key: &TokenKey, cached: &Arc<T>| (key.text.len() + cached.memory()).max(BYTES_PER_TOKEN);
        let weigher = move |key: &_, cached: &_| u32::try_from(memory(key, cached)).unwrap_or(u32::MAX);
        Self(Cache::builder().max_capacity(bytes).weigher(weigher).build())
    }

    /// The value that is cached for a token at a service.
    pub fn get(&self, service: ServiceId, text: &str) -> Option<Arc<T>> {
        self.0.get(&PresentedKey { service, text })
    }

    /// Caches a value for a token at a service. It replaces an earlier value.
    pub fn insert(&self, service: ServiceId, text: &str, value: Arc<T>) {
        self.0.insert(TokenKey { service, text: text.into() }, value);
    }

    /// Removes the value that is cached for a token at a service.
    pub fn remove(&self, service: ServiceId, text: &str) {
        self.0.invalidate(&PresentedKey { service, text });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value that needs this memory.
    struct ValueOfSize(usize);

    impl CachedForToken for ValueOfSize {
        fn memory(&self) -> usize {
            self.0
        }
    }

    const SERVICE: ServiceId = ServiceId::from_bits(1);
    const TEXT: &str = "the header.the claims.a signature of more than thirty-two characters";

    /// How many of 2,000 tokens a cache for a hundred keeps.
    fn cached(memory: usize) -> u64 {
        let cache = TokenCache::new(100);
        for number in 0..2000 {
            cache.insert(SERVICE, &format!("{TEXT}{number}"), Arc::new(ValueOfSize(memory)));
        }
        cache.0.run_pending_tasks();
        assert!(cache.0.weighted_size() <= 100 * BYTES_PER_TOKEN as u64);
        cache.0.entry_count()
    }

    #[test]
    fn tokens_are_bounded_in_number_and_in_memory() {
        let small = cached(100);
        assert!((50..=100).contains(&small), "{small}");
        let large = cached(4 * BYTES_PER_TOKEN);
        assert!((5..=25).contains(&large), "{large}");
    }

    #[test]
    fn tokens_with_the_same_end_are_different() {
        let cache = TokenCache::new(10);
        cache.insert(SERVICE, TEXT, Arc::new(ValueOfSize(1)));
        let (_, end) = TEXT.split_at(TEXT.len() - HASHED_CHARACTERS);
        let same_length = format!("x{}", &TEXT[1..]);
        for other in [end, &TEXT[1..], &format!("x{TEXT}"), &same_length, ""] {
            assert!(cache.get(SERVICE, other).is_none(), "{other}");
        }
        assert!(cache.get(ServiceId::from_bits(99), TEXT).is_none());
        assert!(cache.get(SERVICE, TEXT).is_some());
        cache.remove(SERVICE, &same_length);
        assert!(cache.get(SERVICE, TEXT).is_some());
        cache.remove(SERVICE, TEXT);
        assert!(cache.get(SERVICE, TEXT).is_none());
    }
}
