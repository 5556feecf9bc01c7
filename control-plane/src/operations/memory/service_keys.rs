//! API keys of services, without their secrets.

use super::{CurrentState, ReadAt, RecentChanges};
use crate::domain::{change::Change, service::ServiceKey};
use countersign_identity::ApiKeyId;
use moka::sync::Cache;
use std::{sync::Arc, time::Duration};

/// Maximum number of API keys in memory.
const CACHED_KEYS: u64 = 1 << 12;

/// How long an API key is in memory. Its creation is no change in the change feed, so that its loss, when a database loses commits, is
/// not found.
const KEY_LIFETIME: Duration = Duration::from_mins(1);

/// The API keys in memory, without their secrets.
pub(in crate::operations) struct ServiceKeys(pub Cache<ApiKeyId, Arc<CachedKey>>);

/// An API key as read from the database.
pub(in crate::operations) struct CachedKey {
    pub key: Arc<ServiceKey>,
    pub read_at: ReadAt,
}

impl Default for ServiceKeys {
    fn default() -> Self {
        Self(Cache::builder().max_capacity(CACHED_KEYS).time_to_live(KEY_LIFETIME).build())
    }
}

impl CachedKey {
    /// Whether the database contains the same. The revocation of an API key, and a new owner, count as a change of the settings of
    /// the service.
    pub(in crate::operations) fn applies(&self, recent: &RecentChanges, current: &CurrentState) -> bool {
        recent.are_unchanged(current, self.read_at, &[Change::ServiceSettings(self.key.service)])
    }
}
