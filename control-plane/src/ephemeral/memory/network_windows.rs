//! The windows of unauthenticated callers, by the network of their address.
//!
//! A client can have any number of keys, so the table is bounded. When it is full, the network with the most windows gets one
//! common window instead: first the block of networks with the most windows is selected, then the network with the most
//! windows in it, or the whole block if each of its networks has only one. Invariants: no window is forgotten before it
//! expires, because the common window has at least as many live calls as each of the windows that it replaces; and a network
//! loses its windows only while no other block has more.

use super::call_log::{CallLog, micros};
use crate::ephemeral::{
    client_network::{ClientNetwork, NetworkBlock},
    rate_limit::{Quota, QuotaStatus},
};
use std::{
    collections::{BTreeSet, HashMap},
    mem,
};

/// The largest number of windows whose calls are merged. The common window of more windows is exhausted at first: so many
/// windows have used up a common quota anyway.
const MAX_MERGED: usize = 1024;

/// Networks that are removed or searched for expired windows at one call.
const NETWORKS_PER_CALL: usize = 256;

/// Identifies the key of a caller.
pub(super) type KeyDigest = [u8; 16];

/// A network, or a block whose networks have one common window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Scope {
    Network(ClientNetwork),
    Block(NetworkBlock),
}

/// The windows of a network. Most networks have one.
#[derive(Debug)]
pub(super) enum Windows {
    One(KeyDigest, CallLog),
    Many(HashMap<KeyDigest, CallLog>),
    /// The common window of all keys.
    Common(CallLog),
}

#[derive(Debug)]
struct ScopeEntry {
    windows: Windows,
    /// Length of the windows in microseconds.
    window: u64,
    /// When expired windows are removed next, in microseconds since boot.
    cleanup_at: u64,
}

/// The windows of unauthenticated callers.
#[derive(Debug, Default)]
pub(super) struct NetworkWindows {
    len: usize,
    scopes: HashMap<Scope, ScopeEntry>,
    /// Scopes by the time of their next cleanup.
    cleanups: BTreeSet<(u64, Scope)>,
    /// The scopes of each block, by their number of windows.
    by_window_count: BTreeSet<(NetworkBlock, usize, Scope)>,
    blocks: HashMap<NetworkBlock, usize>,
    /// Blocks by their number of windows.
    blocks_by_window_count: BTreeSet<(usize, NetworkBlock)>,
}

/// Windows that were removed. They are dropped after the table is unlocked, because there may be many.
pub(super) type RemovedWindows = Vec<Windows>;

impl Scope {
    const MIN: Self = Self::Network(ClientNetwork::MIN);
    const MAX: Self = Self::Block(NetworkBlock::MAX);

    const fn block(self) -> NetworkBlock {
        match self {
            Self::Network(network) => network.block(),
            Self::Block(block) => block,
        }
    }
}

impl Windows {
    fn len(&self) -> usize {
        match self {
            Self::One(..) | Self::Common(_) => 1,
            Self::Many(windows) => windows.len(),
        }
    }

    fn find(&mut self, key: &KeyDigest) -> Option<&mut CallLog> {
        match self {
            Self::One(only, log) => (only == key).then_some(log),
            Self::Many(windows) => windows.get_mut(key),
            Self::Common(log) => Some(log),
        }
    }

    /// Adds a window for a key that has none.
    fn add(&mut self, key: KeyDigest, log: CallLog) {
        match self {
            Self::One(other, other_log) => *self = Self::Many([(*other, mem::take(other_log)), (key, log)].into()),
            Self::Many(windows) => drop(windows.insert(key, log)),
            Self::Common(_) => {}
        }
    }

    /// Removes expired windows. Returns whether windows remain.
    fn remove_expired(&mut self, now: u64) -> bool {
        match self {
            Self::One(_, log) | Self::Common(log) => !log.is_expired(now),
            Self::Many(windows) => {
                windows.retain(|_, log| !log.is_expired(now));
                if windows.len() < windows.capacity() / 4 {
                    windows.shrink_to_fit();
                }
                !windows.is_empty()
            }
        }
    }

    /// The common window for all keys of these windows.
    fn merge(&self, now: u64) -> CallLog {
        match self {
            Self::One(_, log) | Self::Common(log) => CallLog::merge(std::iter::once(log)),
            Self::Many(windows) if windows.len() <= MAX_MERGED => CallLog::merge(windows.values()),
            Self::Many(windows) => windows.values().next().map(|log| log.exhausted(now)).unwrap_or_default(),
        }
    }
}

impl NetworkWindows {
    /// Number of windows.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Number of common windows. Looks at all networks.
    pub(super) fn common_windows(&self) -> usize {
        self.scopes.values().filter(|entry| matches!(entry.windows, Windows::Common(_))).count()
    }

    /// Whether a call of this key is counted in an existing window: its own, or a common one.
    pub(super) fn contains(&mut self, network: ClientNetwork, key: &KeyDigest) -> bool {
        self.find(network, key).is_some()
    }

    /// The status of a limit before the current call is counted.
    pub(super) fn status(&mut self, network: ClientNetwork, key: &KeyDigest, quota: Quota, now: u64) -> QuotaStatus {
        match self.find(network, key) {
            Some(log) => {
                log.remove_expired(now);
                log.status(quota.max_calls, now)
            }
            None => QuotaStatus { remaining: quota.max_calls, reset_after: std::time::Duration::ZERO },
        }
    }

    /// Counts a call.
    pub(super) fn count(&mut self, network: ClientNetwork, key: KeyDigest, quota: Quota, now: u64) -> QuotaStatus {
        if let Some(log) = self.find(network, &key) {
            log.count(quota, now);
            return log.status(quota.max_calls, now);
        }
        let mut log = CallLog::default();
        log.count(quota, now);
        let status = log.status(quota.max_calls, now);
        let scope = Scope::Network(network);
        if let Some(entry) = self.scopes.get_mut(&scope) {
            let before = entry.windows.len();
            entry.windows.add(key, log);
            self.set_window_count(scope, before, before + 1);
        } else {
            self.insert(scope, Windows::One(key, log), micros(quota.window), now);
        }
        status
    }

    /// Removes expired windows of networks whose cleanup is due.
    pub(super) fn remove_expired(&mut self, now: u64) {
        for _ in 0..NETWORKS_PER_CALL {
            let Some(&(due, scope)) = self.cleanups.first().filter(|(due, _)| *due <= now) else { return };
            let Some(entry) = self.scopes.get_mut(&scope) else { return };
            let before = entry.windows.len();
            let after = if entry.windows.remove_expired(now) { entry.windows.len() } else { 0 };
            entry.cleanup_at = now.saturating_add(entry.window.max(1));
            let next = entry.cleanup_at;
            self.cleanups.remove(&(due, scope));
            if after == 0 {
                self.scopes.remove(&scope);
            } else {
                self.cleanups.insert((next, scope));
            }
            self.set_window_count(scope, before, after);
        }
    }

    /// Removes windows until there are less than `max_len`, by giving the greediest networks common windows. Returns false if
    /// no block has more than one window.
    pub(super) fn make_room(&mut self, max_len: usize, now: u64, removed: &mut RemovedWindows) -> bool {
        while self.len >= max_len {
            let Some((windows, block)) = self.blocks_by_window_count.last().copied() else { return false };
            if windows < 2 {
                return false;
            }
            let all = (block, 0, Scope::MIN)..=(block, usize::MAX, Scope::MAX);
            let Some(&(_, windows, scope)) = self.by_window_count.range(all).next_back() else { return false };
            if windows > 1 {
                removed.extend(self.replace_by_common_window(scope, now));
            } else {
                self.shrink_block(block, now, removed);
            }
        }
        true
    }

    /// Gives a network one common window. Returns its previous windows.
    fn replace_by_common_window(&mut self, scope: Scope, now: u64) -> Option<Windows> {
        let entry = self.scopes.get_mut(&scope)?;
        let (common, before) =
            (Windows::Common(entry.windows.merge(now).accepting_for_its_length(now)), entry.windows.len());
        let previous = mem::replace(&mut entry.windows, common);
        // Two lengths from now, the common window is certainly expired.
        self.cleanups.remove(&(entry.cleanup_at, scope));
        entry.cleanup_at = now.saturating_add(entry.window.max(1));
        self.cleanups.insert((entry.cleanup_at, scope));
        self.set_window_count(scope, before, 1);
        Some(previous)
    }

    /// Gives a block one common window if it has none, and removes some of its networks, whose calls are counted in the common
    /// window from now on. Each network of the block has one window.
    fn shrink_block(&mut self, block: NetworkBlock, now: u64, removed: &mut RemovedWindows) {
        let common = Scope::Block(block);
        let networks = (block, 0, Scope::MIN)..(block, 1, common);
        if !self.scopes.contains_key(&common) {
            let some: Vec<_> = self.by_window_count.range(networks.clone()).take(MAX_MERGED + 1).collect();
            let logs =
                some.iter().filter_map(|(_, _, scope)| self.scopes.get(scope)).map(|entry| entry.windows.merge(now));
            let (logs, window) =
                (logs.collect::<Vec<_>>(), some.first().and_then(|(_, _, scope)| self.scopes.get(scope)));
            let Some(window) = window.map(|entry| entry.window) else { return };
            let merged = if logs.len() <= MAX_MERGED {
                CallLog::merge(logs.iter())
            } else {
                logs.first().map(|log| log.exhausted(now)).unwrap_or_default()
            };
            self.insert(common, Windows::Common(merged.accepting_for_its_length(now)), window, now);
        }
        let replaced: Vec<_> = self.by_window_count.range(networks).take(NETWORKS_PER_CALL).copied().collect();
        for (_, windows, scope) in replaced {
            if let Some(entry) = self.scopes.remove(&scope) {
                self.cleanups.remove(&(entry.cleanup_at, scope));
                removed.push(entry.windows);
            }
            self.set_window_count(scope, windows, 0);
        }
    }

    /// The window in which calls of a key are counted.
    fn find(&mut self, network: ClientNetwork, key: &KeyDigest) -> Option<&mut CallLog> {
        let block = Scope::Block(network.block());
        let scope = if self.scopes.contains_key(&block) { block } else { Scope::Network(network) };
        self.scopes.get_mut(&scope)?.windows.find(key)
    }

    fn insert(&mut self, scope: Scope, windows: Windows, window: u64, now: u64) {
        let (len, cleanup_at) = (windows.len(), now.saturating_add(window.max(1)));
        self.scopes.insert(scope, ScopeEntry { windows, window, cleanup_at });
        self.cleanups.insert((cleanup_at, scope));
        self.set_window_count(scope, 0, len);
    }

    /// Records that the number of windows of a scope has changed.
    fn set_window_count(&mut self, scope: Scope, before: usize, after: usize) {
        let block = scope.block();
        self.len = self.len + after - before;
        self.by_window_count.remove(&(block, before, scope));
        if after > 0 {
            self.by_window_count.insert((block, after, scope));
        }
        let in_block = self.blocks.get(&block).copied().unwrap_or_default();
        let in_block_now = in_block + after - before;
        self.blocks_by_window_count.remove(&(in_block, block));
        if in_block_now > 0 {
            self.blocks_by_window_count.insert((in_block_now, block));
            self.blocks.insert(block, in_block_now);
        } else {
            self.blocks.remove(&block);
        }
    }
}

#[cfg(test)]
mod tests;
