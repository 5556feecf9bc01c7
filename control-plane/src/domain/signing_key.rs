//! The life of a signing key, and who signs when.
//!
//! Every instant of a life stands in the database before it comes, so that all who issue tokens switch by it
//! without being told, and agree after any restart.

use countersign_identity::{KeySet, Kid, P256PublicKey, Timestamp, key_set::JsonWebKey};
use std::time::Duration;

/// Added to the longest staleness before a new key signs: for a publication that takes long to commit, and for
/// clocks that run apart. An operator who wants sidecars that fresh has no slower ones.
const MARGIN: Duration = Duration::from_secs(5);

/// After the death of its last token a key is kept for so long, for clocks that run apart.
const GRACE: Duration = Duration::from_mins(5);

/// How long those who verify by themselves may keep the published keys, at the most.
const LONGEST_CACHING: Duration = Duration::from_mins(5);

/// When keys change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRules {
    /// How long a key is published before it signs: whoever still answers has learnt of it by then.
    pub notice: Duration,
    /// How long whoever reads the published keys may keep them: less than the notice.
    pub caching: Duration,
    /// The age at which a key that signs is replaced; `None` for never.
    pub rotation: Option<Duration>,
    /// How long tokens live.
    pub token_life: Duration,
}

impl KeyRules {
    /// What follows from the longest time for which a sidecar may answer without contact.
    pub fn new(max_staleness: Duration, rotation: Option<Duration>, token_life: Duration) -> Self {
        let notice = max_staleness + MARGIN.min(max_staleness);
        Self { notice, caching: LONGEST_CACHING.min(max_staleness), rotation, token_life }
    }
}

/// A signing key, without its private half.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SigningKey {
    /// Its identifier.
    pub kid: Kid,
    /// Its public half.
    pub public: P256PublicKey,
    /// Since when everybody may know it.
    pub published_at: Timestamp,
    /// From when it signs; `None` as long as no rotation is asked for.
    pub signs_from: Option<Timestamp>,
    /// From when another signs.
    pub retires_at: Option<Timestamp>,
    /// The longest life that a token under it may have.
    pub token_life: Duration,
    /// Since when no token under it is believed.
    pub removed_at: Option<Timestamp>,
    /// Since when it is revoked.
    pub revoked_at: Option<Timestamp>,
}

/// Where a key is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyStatus {
    /// Published and does not sign yet.
    Next,
    /// Signs.
    Signing,
    /// Signs no more; tokens under it may live.
    Retired,
    /// No token under it is believed: the last one had died.
    Removed,
    /// No token under it is believed, whether it lived or not.
    Revoked,
}

impl KeyStatus {
    /// As it stands in answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Next => "next",
            Self::Signing => "signing",
            Self::Retired => "retired",
            Self::Removed => "removed",
            Self::Revoked => "revoked",
        }
    }
}

impl SigningKey {
    /// A key that is published now.
    pub fn publish(public: P256PublicKey, now: Timestamp, token_life: Duration) -> Self {
        Self {
            kid: Kid::from_key(public),
            public,
            published_at: now,
            signs_from: None,
            retires_at: None,
            token_life,
            removed_at: None,
            revoked_at: None,
        }
    }

    /// Where it is in its life.
    pub fn status(&self, now: Timestamp) -> KeyStatus {
        let has_come = |instant: Option<Timestamp>| instant.is_some_and(|instant| instant <= now);
        if self.revoked_at.is_some() {
            KeyStatus::Revoked
        } else if self.removed_at.is_some() {
            KeyStatus::Removed
        } else if has_come(self.retires_at) {
            KeyStatus::Retired
        } else if has_come(self.signs_from) {
            KeyStatus::Signing
        } else {
            KeyStatus::Next
        }
    }

    /// Among those that sign, the last is the one that signs. Of two in the same instant, one retires in it.
    const fn place(&self) -> (Option<Timestamp>, bool) {
        (self.signs_from, self.retires_at.is_none())
    }

    const fn is_live(&self) -> bool {
        self.removed_at.is_none()
    }

    /// True from when the last token that it signed is dead for everybody.
    fn is_done(&self, now: Timestamp) -> bool {
        self.retires_at.is_some_and(|end| end.saturating_add(self.token_life).saturating_add(GRACE) <= now)
    }
}

/// A rotation, done or to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rotation {
    /// The key that signs from then on.
    pub kid: Kid,
    /// From when.
    pub signs_from: Timestamp,
}

/// The keys whose tokens are believed: one that signs, one that is next, and those before and between them.
///
/// It is read whole and written whole; what it removes stays in it, marked, until it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRing(Vec<SigningKey>);

impl FromIterator<SigningKey> for KeyRing {
    fn from_iter<I: IntoIterator<Item = SigningKey>>(keys: I) -> Self {
        Self(keys.into_iter().collect())
    }
}

impl KeyRing {
    /// The keys, also those that were just removed.
    pub fn keys(&self) -> &[SigningKey] {
        &self.0
    }

    /// The keys whose tokens are believed, in the order of their publication.
    pub fn live(&self) -> impl Iterator<Item = &SigningKey> {
        self.0.iter().filter(|key| key.is_live())
    }

    /// For verifying.
    pub fn set(&self) -> KeySet {
        self.live().map(|key| key.public).collect()
    }

    /// As published (RFC 7517).
    pub fn published(&self) -> Vec<JsonWebKey> {
        self.live().map(|key| JsonWebKey::from_key(key.public)).collect()
    }

    /// The key that signs: of those whose instant has come, the last. Where none has come, as on a clock that is
    /// behind, the first to come.
    pub fn signer(&self, now: Timestamp) -> Option<&SigningKey> {
        let due = self.live().filter(|key| key.signs_from.is_some_and(|start| start <= now));
        let first = || self.live().filter(|key| key.signs_from.is_some()).min_by_key(|key| key.signs_from);
        due.max_by_key(|key| key.place()).or_else(first)
    }

    /// Makes sure of a key that signs and of one that is next, and that they remember how long tokens live;
    /// removes what is done; rotates by age, and says so.
    pub fn tend(
        &mut self,
        rules: &KeyRules,
        now: Timestamp,
        mut fresh: impl Iterator<Item = P256PublicKey>,
    ) -> Option<Rotation> {
        if self.signer(now).is_none() {
            let first = fresh.next().map(|public| SigningKey::publish(public, now, rules.token_life));
            self.0.extend(first.map(|key| SigningKey { signs_from: Some(now), ..key }));
        }
        for key in self.0.iter_mut().filter(|key| key.is_live()) {
            key.token_life = key.token_life.max(rules.token_life);
            if key.is_done(now) {
                key.removed_at = Some(now);
            }
        }
        self.complete(rules, now, &mut fresh);
        let start = self.signer(now).and_then(|key| key.signs_from);
        let is_due = rules.rotation.zip(start).is_some_and(|(age, start)| now.duration_since(start) >= age);
        if is_due && self.scheduled(now).is_none() { self.rotate(rules, now, fresh) } else { None }
    }

    /// Lets the next key sign: at once if it was published long enough ago, else as soon as it was. As long as a
    /// rotation is to come, that is the one. `None` if there is neither a key nor a fresh one.
    pub fn rotate(
        &mut self,
        rules: &KeyRules,
        now: Timestamp,
        mut fresh: impl Iterator<Item = P256PublicKey>,
    ) -> Option<Rotation> {
        if self.scheduled(now).is_none() {
            self.complete(rules, now, &mut fresh);
            self.promote(rules, now);
            self.complete(rules, now, &mut fresh);
        }
        let newest = self.live().max_by_key(|key| key.place())?;
        Some(Rotation { kid: newest.kid.clone(), signs_from: newest.signs_from? })
    }

    /// Takes a key out, whatever it does. If it signed, the one that would follow signs at once; if it was to
    /// sign, the next takes its place as soon as it may. False if there is no such key.
    pub fn revoke(
        &mut self,
        kid: &Kid,
        rules: &KeyRules,
        now: Timestamp,
        mut fresh: impl Iterator<Item = P256PublicKey>,
    ) -> bool {
        let is = |key: &SigningKey| key.kid == *kid;
        let (signed, was_to_sign) = (self.signer(now).is_some_and(is), self.scheduled(now).is_some_and(is));
        let Some(revoked) = self.0.iter_mut().find(|key| key.is_live() && is(key)) else { return false };
        (revoked.removed_at, revoked.revoked_at) = (Some(now), Some(now));
        if signed {
            revoked.retires_at = Some(now);
        }
        self.complete(rules, now, &mut fresh);
        if signed {
            let to_come = self.scheduled(now).or_else(|| self.next()).map(|key| key.kid.clone());
            if let Some(heir) = self.find(to_come.as_ref()) {
                heir.signs_from = Some(now);
            }
        } else if was_to_sign {
            self.promote(rules, now);
        }
        self.complete(rules, now, &mut fresh);
        true
    }

    /// The key that has no instant yet.
    fn next(&self) -> Option<&SigningKey> {
        self.live().find(|key| key.signs_from.is_none())
    }

    /// The key of a rotation that is to come.
    fn scheduled(&self, now: Timestamp) -> Option<&SigningKey> {
        self.live().find(|key| key.signs_from.is_some_and(|start| start > now))
    }

    fn find(&mut self, kid: Option<&Kid>) -> Option<&mut SigningKey> {
        self.0.iter_mut().find(|key| key.is_live() && Some(&key.kid) == kid)
    }

    /// Publishes a new next key if there is none.
    fn complete(&mut self, rules: &KeyRules, now: Timestamp, fresh: &mut impl Iterator<Item = P256PublicKey>) {
        if self.next().is_none() {
            self.0.extend(fresh.next().map(|public| SigningKey::publish(public, now, rules.token_life)));
        }
    }

    /// The next key follows the one that signs.
    fn promote(&mut self, rules: &KeyRules, now: Timestamp) {
        let signing = self.signer(now).map(|key| key.kid.clone());
        let next = self.next().map(|key| key.kid.clone());
        let Some(next) = self.find(next.as_ref()) else { return };
        let start = next.published_at.saturating_add(rules.notice).max(now);
        next.signs_from = Some(start);
        if let Some(signing) = self.find(signing.as_ref()) {
            signing.retires_at = Some(start);
        }
    }
}

#[cfg(test)]
mod tests;
