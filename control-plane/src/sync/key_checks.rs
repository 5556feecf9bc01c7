//! Checks whether the API keys of open streams are still valid. The streams of a process use at most one connection to the database
//! for it, also when the settings of a service with many streams change.

use super::coalesced_reads::{CoalescedReads, Source};
use crate::store::{Store, StoreError, services};
use countersign_identity::ApiKeyId;
use std::collections::HashSet;

/// Requests checks. The response is whether the API key is valid.
pub(super) type KeyChecks = CoalescedReads<KeySource>;

/// Reads which API keys are valid.
pub(super) struct KeySource(pub(super) Store);

impl Source for KeySource {
    type Request = ApiKeyId;
    type Response = bool;

    async fn read(&self, keys: Vec<ApiKeyId>) -> Result<Vec<bool>, StoreError> {
        let distinct: HashSet<_> = keys.iter().copied().collect();
        let valid = services::find_valid_keys(self.0.read().await?.conn(), distinct).await?;
        Ok(keys.iter().map(|key| valid.contains(key)).collect())
    }
}
