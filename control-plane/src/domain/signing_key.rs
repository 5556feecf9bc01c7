//! The lifecycle of signing keys, and the choice of the key that signs at a given time.
//!
//! A key is published first, so that all sidecars have it before it signs. We store the time of each transition in advance. So all
//! processes that issue tokens switch keys at the same time without a notification, and agree on the signing key after a restart.

use super::string_enum::string_enum;
use countersign_identity::{KeySet, Kid, P256PublicKey, Timestamp, key_set::JsonWebKey};
use std::time::Duration;

/// Before a new key signs, it is published for the maximum staleness and this margin. The margin allows for slow commits and clock
/// skew. It is never longer than the maximum staleness: an operator who sets a short staleness relies on fast transactions.
const PUBLICATION_MARGIN: Duration = Duration::from_secs(5);

/// How long we keep a key after the last token that it signed has expired, to allow for clock skew.
const REMOVAL_DELAY: Duration = Duration::from_mins(5);

/// Upper bound of `max-age` in the response with the published keys.
const JWKS_MAX_AGE_LIMIT: Duration = Duration::from_mins(5);

/// The rules for the rotation of signing keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RotationPolicy {
    /// How long a key is published before it signs. After this time, every sidecar that still accepts tokens has the key.
    pub publication_lead: Duration,
    /// How long clients may cache the published keys. It is shorter than `publication_lead`, so they get a new key before it signs.
    pub jwks_max_age: Duration,
    /// The age at which a signing key is replaced; `None` disables replacement by age.
    pub rotation_age: Option<Duration>,
    /// Lifetime of an access token.
    pub token_lifetime: Duration,
}

impl RotationPolicy {
    /// Derives the policy from `max_staleness`, the longest time for which a sidecar accepts tokens without contact to the
    /// control plane.
    pub fn new(max_staleness: Duration, rotation_age: Option<Duration>, token_lifetime: Duration) -> Self {
        Self {
            publication_lead: max_staleness + PUBLICATION_MARGIN.min(max_staleness),
            jwks_max_age: JWKS_MAX_AGE_LIMIT.min(max_staleness),
            rotation_age,
            token_lifetime,
        }
    }
}

/// A signing key without its private key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SigningKey {
    /// The key ID (`kid`).
    pub kid: Kid,
    pub public: P256PublicKey,
    /// When the key was published.
    pub published_at: Timestamp,
    /// When the key starts to sign; `None` until a rotation is scheduled.
    pub signs_from: Option<Timestamp>,
    /// When the key stops signing; `None` until the next rotation is scheduled.
    pub retires_at: Option<Timestamp>,
    /// The longest lifetime that a token of the key can have.
    pub token_lifetime: Duration,
    /// When the key was removed or revoked. From then on, tokens that the key signed are rejected.
    pub removed_at: Option<Timestamp>,
    /// When the key was revoked; `None` if it was not revoked.
    pub revoked_at: Option<Timestamp>,
}

string_enum! {
    /// A state in the lifecycle of a key. The name is the value in API responses and metrics.
    KeyStatus {
        /// The key is published and does not sign yet. The time at which it starts to sign may be set already.
        Next = "next";
        /// The key signs new tokens.
        Signing = "signing";
        /// The key no longer signs. Tokens that the key signed may still be valid.
        Retired = "retired";
        /// The key was removed after all tokens that it signed had expired.
        Removed = "removed";
        /// The key was revoked. Tokens that a revoked key signed are rejected even if they have not expired.
        Revoked = "revoked";
    }
}

impl SigningKey {
    /// Creates a key that is published now.
    pub fn new_published(public: P256PublicKey, now: Timestamp, token_lifetime: Duration) -> Self {
        Self {
            kid: Kid::from_key(public),
            public,
            published_at: now,
            signs_from: None,
            retires_at: None,
            token_lifetime,
            removed_at: None,
            revoked_at: None,
        }
    }

    pub fn status(&self, now: Timestamp) -> KeyStatus {
        let has_passed = |time: Option<Timestamp>| time.is_some_and(|time| time <= now);
        if self.revoked_at.is_some() {
            KeyStatus::Revoked
        } else if self.removed_at.is_some() {
            KeyStatus::Removed
        } else if has_passed(self.retires_at) {
            KeyStatus::Retired
        } else if has_passed(self.signs_from) {
            KeyStatus::Signing
        } else {
            KeyStatus::Next
        }
    }

    const fn is_live(&self) -> bool {
        self.removed_at.is_none()
    }

    /// Whether all tokens that the key signed have expired, with [`REMOVAL_DELAY`] for clock skew.
    fn is_removable(&self, now: Timestamp) -> bool {
        self.retires_at.is_some_and(|end| end.saturating_add(self.token_lifetime).saturating_add(REMOVAL_DELAY) <= now)
    }
}

/// A completed or scheduled rotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rotation {
    /// The key that replaces the signing key.
    pub kid: Kid,
    /// When the new key starts to sign.
    pub signs_from: Timestamp,
}

/// The keys whose tokens are accepted: the signing key, the next key, a scheduled key if any, and retired keys.
///
/// A rotation makes the next key the scheduled key: it gets a time from which it signs, and another next key is published.
/// We read and write the key ring as a whole. A removed key stays in memory, marked as removed, until we write the ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SigningKeyRing(Vec<SigningKey>);

impl FromIterator<SigningKey> for SigningKeyRing {
    fn from_iter<I: IntoIterator<Item = SigningKey>>(keys: I) -> Self {
        Self(keys.into_iter().collect())
    }
}

impl SigningKeyRing {
    /// All keys, including keys that were removed since we read the ring.
    pub fn keys(&self) -> &[SigningKey] {
        &self.0
    }

    /// The keys whose tokens are accepted, in order of publication.
    pub fn live_keys(&self) -> impl Iterator<Item = &SigningKey> {
        self.0.iter().filter(|key| key.is_live())
    }

    /// The live keys as a key set, to verify tokens.
    pub fn key_set(&self) -> KeySet {
        self.live_keys().map(|key| key.public).collect()
    }

    /// The live keys as JWKs (RFC 7517).
    pub fn to_jwks(&self) -> Vec<JsonWebKey> {
        self.live_keys().map(|key| JsonWebKey::from_key(key.public)).collect()
    }

    /// The key that signs at `now`: the live key that has started to sign last. If our clock is behind and no key has started, the
    /// key with the earliest start signs.
    pub fn signing_key(&self, now: Timestamp) -> Option<&SigningKey> {
        let started = self.live_keys().filter(|key| key.signs_from.is_some_and(|start| start <= now));
        let first = || self.live_keys().filter(|key| key.signs_from.is_some()).min_by_key(|key| key.signs_from);
        started.max_by_key(|key| Self::start(key)).or_else(first)
    }

    /// Adds the signing key and the next key from `new_keys` if they are missing, and records the token lifetime. Removes keys
    /// whose tokens have expired. Rotates if the signing key is old enough, and returns this rotation.
    pub fn maintain(
        &mut self,
        policy: &RotationPolicy,
        now: Timestamp,
        mut new_keys: impl Iterator<Item = P256PublicKey>,
    ) -> Option<Rotation> {
        if self.signing_key(now).is_none() {
            let first = new_keys.next().map(|public| SigningKey::new_published(public, now, policy.token_lifetime));
            self.0.extend(first.map(|key| SigningKey { signs_from: Some(now), ..key }));
        }
        for key in self.0.iter_mut().filter(|key| key.is_live()) {
            key.token_lifetime = key.token_lifetime.max(policy.token_lifetime);
            if key.is_removable(now) {
                key.removed_at = Some(now);
            }
        }
        self.publish_next_key(policy, now, &mut new_keys);
        let start = self.signing_key(now).and_then(|key| key.signs_from);
        let is_due = policy.rotation_age.zip(start).is_some_and(|(age, start)| now.duration_since(start) >= age);
        if is_due && self.scheduled_key(now).is_none() { self.rotate(policy, now, new_keys) } else { None }
    }

    /// Schedules the next key to sign as soon as it has been published for `policy.publication_lead`. If it was published long ago,
    /// it signs at once. If a rotation is already scheduled, returns that rotation. `None` if there is no live key and no new key.
    pub fn rotate(
        &mut self,
        policy: &RotationPolicy,
        now: Timestamp,
        mut new_keys: impl Iterator<Item = P256PublicKey>,
    ) -> Option<Rotation> {
        if self.scheduled_key(now).is_none() {
            // First make sure that there is a next key. After it is scheduled, publish its successor.
            self.publish_next_key(policy, now, &mut new_keys);
            self.schedule_next_key(policy, now);
            self.publish_next_key(policy, now, &mut new_keys);
        }
        let newest = self.live_keys().max_by_key(|key| Self::start(key))?;
        Some(Rotation { kid: newest.kid.clone(), signs_from: newest.signs_from? })
    }

    /// Revokes a live key. If it was signing, the scheduled key signs at once, or else the next key. If it was scheduled, the next key is
    /// scheduled instead. Returns false if the ring has no live key with the id `kid`.
    pub fn revoke(
        &mut self,
        kid: &Kid,
        policy: &RotationPolicy,
        now: Timestamp,
        mut new_keys: impl Iterator<Item = P256PublicKey>,
    ) -> bool {
        let is_revoked = |key: &SigningKey| key.kid == *kid;
        let was_signing = self.signing_key(now).is_some_and(is_revoked);
        let was_scheduled = self.scheduled_key(now).is_some_and(is_revoked);
        let Some(revoked) = self.0.iter_mut().find(|key| key.is_live() && is_revoked(key)) else { return false };
        (revoked.removed_at, revoked.revoked_at) = (Some(now), Some(now));
        if was_signing {
            revoked.retires_at = Some(now);
        }
        self.publish_next_key(policy, now, &mut new_keys);
        if was_signing {
            let successor = self.scheduled_key(now).or_else(|| self.unscheduled_key()).map(|key| key.kid.clone());
            if let Some(successor) = self.find_live_mut(successor.as_ref()) {
                successor.signs_from = Some(now);
            }
        } else if was_scheduled {
            self.schedule_next_key(policy, now);
        }
        self.publish_next_key(policy, now, &mut new_keys);
        true
    }

    /// Orders keys by the time at which they start to sign. Of two that start at the same microsecond, one replaces the other, which
    /// therefore retires.
    const fn start(key: &SigningKey) -> (Option<Timestamp>, bool) {
        (key.signs_from, key.retires_at.is_none())
    }

    /// The next key: it is published, and not scheduled to sign.
    fn unscheduled_key(&self) -> Option<&SigningKey> {
        self.live_keys().find(|key| key.signs_from.is_none())
    }

    /// The key that is scheduled to sign in the future.
    fn scheduled_key(&self, now: Timestamp) -> Option<&SigningKey> {
        self.live_keys().find(|key| key.signs_from.is_some_and(|start| start > now))
    }

    fn find_live_mut(&mut self, kid: Option<&Kid>) -> Option<&mut SigningKey> {
        self.0.iter_mut().find(|key| key.is_live() && Some(&key.kid) == kid)
    }

    /// Publishes a new key, unless there is a next key already.
    fn publish_next_key(
        &mut self,
        policy: &RotationPolicy,
        now: Timestamp,
        new_keys: &mut impl Iterator<Item = P256PublicKey>,
    ) {
        if self.unscheduled_key().is_none() {
            self.0.extend(new_keys.next().map(|public| SigningKey::new_published(public, now, policy.token_lifetime)));
        }
    }

    /// Schedules the next key to replace the signing key. Changes nothing if there is no next key.
    fn schedule_next_key(&mut self, policy: &RotationPolicy, now: Timestamp) {
        let signing = self.signing_key(now).map(|key| key.kid.clone());
        let next = self.unscheduled_key().map(|key| key.kid.clone());
        let Some(next) = self.find_live_mut(next.as_ref()) else { return };
        let start = next.published_at.saturating_add(policy.publication_lead).max(now);
        next.signs_from = Some(start);
        if let Some(signing) = self.find_live_mut(signing.as_ref()) {
            signing.retires_at = Some(start);
        }
    }
}

#[cfg(test)]
mod tests;
