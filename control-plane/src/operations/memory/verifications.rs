//! Successful verifications of tokens.

use super::{CurrentState, ReadAt, RecentChanges};
use crate::domain::change::Change;
use bytes::Bytes;
use countersign_identity::{
    Revision, ServiceId, Timestamp, TokenCache, VerifiedIdentity,
    token_cache::{CachedForToken, names_memory},
};
use std::sync::OnceLock;

/// Maximum number of verified tokens in memory.
const CACHED_TOKENS: usize = 1 << 14;

/// What a verification needs in memory besides names, in bytes.
const BASE_COST: usize = 768;

/// How many bytes a byte of a name has in a verification: in the identity, and in the response.
const COPIES_OF_NAMES: usize = 2;

/// The verifications in memory.
pub(in crate::operations) struct Verifications(pub TokenCache<Verification>);

impl Default for Verifications {
    fn default() -> Self {
        Self(TokenCache::new(CACHED_TOKENS))
    }
}

/// A successful verification of a token at a service.
#[derive(Debug)]
pub struct Verification {
    pub(in crate::operations) identity: VerifiedIdentity,
    /// The service that the token was issued for; `None` for an unbound token.
    pub(in crate::operations) audience: Option<ServiceId>,
    pub(in crate::operations) issued_at: Timestamp,
    pub(in crate::operations) expires_at: Timestamp,
    pub(in crate::operations) basis: Basis,
    pub(in crate::operations) response: OnceLock<Bytes>,
}

/// What the result of a verification depends on.
#[derive(Debug)]
pub(in crate::operations) struct Basis {
    pub read_at: ReadAt,
    pub verified_at: Timestamp,
    /// From this time on, a verification records a contact.
    pub contact_due: Timestamp,
    /// The `rev` claim of the token.
    pub token_revision: Revision,
    /// After a change of one of these, the result may be another one.
    pub subjects: [Change; 8],
}

impl Verification {
    /// The identity that the token grants.
    pub const fn identity(&self) -> &VerifiedIdentity {
        &self.identity
    }

    /// The service that the token was issued for; `None` for an unbound token.
    pub const fn audience(&self) -> Option<ServiceId> {
        self.audience
    }

    /// The time at which the token was issued.
    pub const fn issued_at(&self) -> Timestamp {
        self.issued_at
    }

    /// The time at which the token expires.
    pub const fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    /// The response that `encode` makes of the identity. It must always be the same function.
    pub fn response(&self, encode: impl FnOnce(&VerifiedIdentity) -> Bytes) -> Bytes {
        self.response.get_or_init(|| encode(&self.identity)).clone()
    }

    /// Whether a verification now has the same result and records nothing. Until `valid_until`, no role of the identity ends. At a time
    /// before `verified_at`, a role that had ended by then may still apply.
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
