//! A copy-on-write map that is cheap to clone and to change, even with a hundred thousand entries.
//!
//! Every change creates a new view while other threads still read the old one. So the map is split into shards, and a change copies only
//! the shards that it modifies.

use countersign_identity::{AgentHash, SessionId, TokenId};
use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
    sync::Arc,
};

/// The number of shards, a power of two. With more shards, a change copies fewer entries, but a longer list of all shards.
const SHARD_COUNT: usize = 256;

/// A key of a [`ShardedMap`]. The bits of the key select the shard.
pub trait ShardKey: Copy + Eq + Hash {
    /// The bits of the key. The low bits must be evenly distributed.
    fn bits(self) -> u128;
}

macro_rules! shard_keys {
    ($($name:ident),+) => {$(
        impl ShardKey for $name {
            fn bits(self) -> u128 {
                $name::bits(self)
            }
        }
    )+};
}

shard_keys!(AgentHash, SessionId, TokenId);

/// A map that is split into shared shards.
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
        Self((0..SHARD_COUNT).map(|_| Arc::clone(&empty)).collect())
    }
}

impl<K: ShardKey, V: Clone> ShardedMap<K, V> {
    pub fn get(&self, key: K) -> Option<&V> {
        self.0.get(shard_index(key))?.get(&key)
    }

    /// The entry of the key. Copies the shard of the key if another map shares the shard.
    pub fn entry(&mut self, key: K) -> Entry<'_, K, V> {
        let shards = Arc::make_mut(&mut self.0);
        Arc::make_mut(&mut shards[shard_index(key)]).entry(key)
    }

    /// Calls `prune` for each old value, and removes the value if `prune` returns true.
    pub fn prune(&mut self, is_old: impl Fn(&V) -> bool, prune: impl Fn(&mut V) -> bool) {
        for shard in Arc::make_mut(&mut self.0) {
            if shard.values().any(&is_old) {
                Arc::make_mut(shard).retain(|_, value| !(is_old(value) && prune(value)));
            }
        }
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.0.iter().flat_map(|shard| shard.iter().map(|(key, value)| (*key, value)))
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|shard| shard.len()).sum()
    }
}

/// The index of the shard of a key. The low bits of ids and hashes are random.
fn shard_index<K: ShardKey>(key: K) -> usize {
    key.bits() as usize & (SHARD_COUNT - 1)
}
