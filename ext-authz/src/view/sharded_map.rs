//! A copy-on-write map that is cheap to clone and change.
//!
//! Every change creates a new view while other threads still read the old one. The map is split into shards, and a
//! change copies only the shards that it modifies, not all of perhaps a hundred thousand entries.

use countersign_identity::{AgentId, SessionId, TokenId};
use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
    sync::Arc,
};

/// The number of shards, a power of two. Cloning the shard list increments this many reference counts.
const SHARDS: usize = 256;

/// A key whose bits select its shard.
pub trait Key: Copy + Eq + Hash {
    /// Bits whose low end is evenly distributed.
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

/// A map of `Arc`ed shards.
#[derive(Debug)]
pub struct ShardedMap<K, V>(Arc<[Arc<HashMap<K, V>>]>);

impl<K, V> Clone for ShardedMap<K, V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K, V> Default for ShardedMap<K, V> {
    fn default() -> Self {
        let empty = Arc::new(HashMap::new());
        Self((0..SHARDS).map(|_| Arc::clone(&empty)).collect())
    }
}

impl<K: Key, V: Clone> ShardedMap<K, V> {
    /// The value of the key.
    pub fn get(&self, key: K) -> Option<&V> {
        self.0.get(shard_of(key))?.get(&key)
    }

    /// The entry of the key; copies its shard if it is shared.
    pub fn entry(&mut self, key: K) -> Entry<'_, K, V> {
        let shards = Arc::make_mut(&mut self.0);
        Arc::make_mut(&mut shards[shard_of(key)]).entry(key)
    }

    /// Applies `prune` to the values that match `is_old`, and removes those for which it returns true.
    pub fn prune(&mut self, is_old: impl Fn(&V) -> bool, prune: impl Fn(&mut V) -> bool) {
        for shard in Arc::make_mut(&mut self.0) {
            if shard.values().any(&is_old) {
                Arc::make_mut(shard).retain(|_, value| !(is_old(value) && prune(value)));
            }
        }
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.0.iter().map(|shard| shard.len()).sum()
    }
}

/// The low bits of an id are random.
fn shard_of<K: Key>(key: K) -> usize {
    key.bits() as usize & (SHARDS - 1)
}
