//! A map that is cheap to copy and then change a little.
//!
//! Every change makes a new view while the old one is still being read, and copying a hundred thousand
//! records for one new record would be waste: so the map is cut into shards, and only those that a
//! change touches are copied.

use countersign_identity::{AgentId, SessionId, TokenId};
use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
    sync::Arc,
};

/// A power of two. The copy of an untouched map costs this many reference counts.
const SHARDS: usize = 256;

/// A key that says which shard it lives in.
pub trait Key: Copy + Eq + Hash {
    /// Evenly spread bits.
    fn bits(self) -> u128;
}

macro_rules! keys {
    ($($name:ident),+) => {$(
        impl Key for $name {
            fn bits(self) -> u128 {
                $name::bits(self)
            }
        }
    )+};
}

keys!(AgentId, SessionId, TokenId);

/// What is remembered, by key.
#[derive(Debug)]
pub struct Remembered<K, V>(Arc<[Arc<HashMap<K, V>>]>);

impl<K, V> Clone for Remembered<K, V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K, V> Default for Remembered<K, V> {
    fn default() -> Self {
        let empty = Arc::new(HashMap::new());
        Self((0..SHARDS).map(|_| Arc::clone(&empty)).collect())
    }
}

impl<K: Key, V: Clone> Remembered<K, V> {
    /// What is remembered under this key.
    pub fn get(&self, key: K) -> Option<&V> {
        self.0.get(shard_of(key))?.get(&key)
    }

    /// The place of this key, to be filled or changed.
    pub fn entry(&mut self, key: K) -> Entry<'_, K, V> {
        let shards = Arc::make_mut(&mut self.0);
        Arc::make_mut(&mut shards[shard_of(key)]).entry(key)
    }

    /// Changes the values that are `old` by `forget`, and drops those of which it says that nothing is left.
    pub fn forget(&mut self, old: impl Fn(&V) -> bool, forget: impl Fn(&mut V) -> bool) {
        for shard in Arc::make_mut(&mut self.0) {
            if shard.values().any(&old) {
                Arc::make_mut(shard).retain(|_, value| !(old(value) && forget(value)));
            }
        }
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.0.iter().map(|shard| shard.len()).sum()
    }
}

/// The low bits of an id are its random ones.
fn shard_of<K: Key>(key: K) -> usize {
    key.bits() as usize & (SHARDS - 1)
}
