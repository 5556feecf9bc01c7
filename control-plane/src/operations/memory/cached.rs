//! Data of earlier requests in memory: API keys of services, without their secrets, and successful verifications of tokens.

use super::{CurrentState, ReadAt, RecentChanges};
use crate::domain::{change::Change, service::ServiceKey};
use bytes::Bytes;
use countersign_identity::{
    ApiKeyId, Revision, ServiceId, Timestamp, TokenCache, VerifiedIdentity,
    token_cache::{CachedForToken, names_memory},
};
use moka::sync::Cache;
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

const CACHED_KEYS: u64 = 1 << 12;

/// How long an API key stays in memory. If the database loses commits, it may lose a new API key. The change feed does not tell us
/// of the loss, because creating a key is no change for sidecars. So we read each key again after this time.
const KEY_LIFETIME: Duration = Duration::from_mins(1);

const CACHED_TOKENS: usize = 1 << 14;

/// The memory of a verification without its names, in bytes.
const BASE_COST: usize = 768;

/// A verification contains each name twice: in the identity, and in the response.
const COPIES_OF_NAMES: usize = 2;

/// An API key as read from the database.
pub(in crate::operations) struct CachedKey {
    pub key: Arc<ServiceKey>,
    pub read_at: ReadAt,
}

pub(in crate::operations) fn cache_of_keys() -> Cache<ApiKeyId, Arc<CachedKey>> {
    Cache::builder().max_capacity(CACHED_KEYS).time_to_live(KEY_LIFETIME).build()
}

impl CachedKey {
    /// Whether the database still contains the same key. Revoking an API key, or a new owner of the service, counts as a change of the
    /// settings of the service.
    pub(in crate::operations) fn applies(&self, recent: &RecentChanges, current: &CurrentState) -> bool {
        recent.are_unchanged(current, self.read_at, &[Change::ServiceSettings(self.key.service)])
    }
}

/// A successful verification of a token at a service.
#[derive(Debug)]
pub struct Verification {
    pub identity: VerifiedIdentity,
    /// The service that the token was issued for; `None` for an unbound token.
    pub audience: Option<ServiceId>,
    pub issued_at: Timestamp,
    pub expires_at: Timestamp,
    pub(in crate::operations) basis: Basis,
    pub(in crate::operations) response: OnceLock<Bytes>,
}

/// When a verification was made, and what its result depends on.
#[derive(Debug)]
pub(in crate::operations) struct Basis {
    pub read_at: ReadAt,
    pub verified_at: Timestamp,
    /// From this time on, a verification records again that the agent is known to the service.
    pub contact_due: Timestamp,
    /// The `rev` claim of the token.
    pub token_revision: Revision,
    /// If one of these subjects changes, the result may change.
    pub subjects: [Change; 8],
}

pub(in crate::operations) fn cache_of_verifications() -> TokenCache<Verification> {
    TokenCache::new(CACHED_TOKENS)
}

impl Verification {
    /// The response that `encode` makes of the identity. We encode it only once, so `encode` must always be the same function.
    pub fn response(&self, encode: impl FnOnce(&VerifiedIdentity) -> Bytes) -> Bytes {
        self.response.get_or_init(|| encode(&self.identity)).clone()
    }

    /// Whether a verification now would have the same result and record nothing. No role of the identity ends before `valid_until`. If
    /// the clock has gone back to before `verified_at`, a role that had ended then may apply again.
    pub(in crate::operations) fn applies(
        &self,
        recent: &RecentChanges,
        current: &CurrentState,
        now: Timestamp,
    ) -> bool {
        let Basis { read_at, verified_at, contact_due, token_revision, subjects } = &self.basis;
        (*verified_at..self.identity.valid_until.min(*contact_due)).contains(&now)
            && *token_revision >= current.floor()
            && !current.trust_may_differ(self.identity.agent)
            && recent.are_unchanged(current, *read_at, subjects)
    }
}

impl CachedForToken for Verification {
    fn memory(&self) -> usize {
        let VerifiedIdentity { name, roles, permissions, .. } = &self.identity;
        BASE_COST + COPIES_OF_NAMES * (name.len() + names_memory(roles, permissions))
    }
}
