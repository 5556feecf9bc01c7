//! Invariants of the key ring under any sequence of operations.

use super::*;
use p256::SecretKey;
use proptest::{collection::vec, prelude::*, sample::select};
use std::collections::{BTreeMap, BTreeSet};

const STALENESS: Duration = Duration::from_secs(100);
const TOKEN_LIFETIME: Duration = Duration::from_mins(10);

fn policy(rotation_age: Option<Duration>, token_lifetime: Duration) -> RotationPolicy {
    RotationPolicy::new(STALENESS, rotation_age, token_lifetime)
}

/// An endless sequence of distinct keys.
fn new_keys(count: &mut u64) -> impl Iterator<Item = P256PublicKey> + '_ {
    std::iter::from_fn(move || {
        *count += 1;
        let mut scalar = [0; 32];
        scalar[24..].copy_from_slice(&count.to_be_bytes());
        let secret = SecretKey::from_slice(&scalar).ok()?;
        P256PublicKey::from_sec1(&secret.public_key().to_sec1_bytes()).ok()
    })
}

#[derive(Debug, Clone)]
enum Operation {
    Maintain,
    Rotate,
    /// Revokes the live key with this index.
    Revoke(usize),
    /// Changes the token lifetime, as a restart with another setting does.
    SetTokenLifetime(u64),
    /// Advances the clock by this many seconds.
    AdvanceClock(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        3 => Just(Operation::Maintain),
        3 => Just(Operation::Rotate),
        2 => (0..6_usize).prop_map(Operation::Revoke),
        1 => select(vec![1, 60, 600]).prop_map(Operation::SetTokenLifetime),
        6 => select(vec![0, 1, 50, 100, 104, 105, 106, 299, 300, 600, 899, 900, 3000]).prop_map(Operation::AdvanceClock),
    ]
}

/// A key ring, and what the test recorded about its keys.
struct Model {
    ring: SigningKeyRing,
    policy: RotationPolicy,
    now: Timestamp,
    key_count: u64,
    /// The time at which the last token of each key expires.
    token_expiries: BTreeMap<Kid, Timestamp>,
    /// Keys that may sign before they have been published for `publication_lead`: the first key, and keys that were live at
    /// a revocation.
    may_sign_early: BTreeSet<Kid>,
    removed: BTreeSet<Kid>,
}

impl Model {
    fn new(rotation_age: Option<Duration>) -> Self {
        let (ring, policy) = (SigningKeyRing::from_iter([]), policy(rotation_age, TOKEN_LIFETIME));
        let now = Timestamp::from_seconds(1_000_000);
        let (token_expiries, may_sign_early, removed) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        let mut model = Self { ring, policy, now, key_count: 0, token_expiries, may_sign_early, removed };
        model.run(&Operation::Maintain);
        model.may_sign_early = model.ring.live_keys().map(|key| key.kid.clone()).collect();
        model
    }

    fn run(&mut self, operation: &Operation) {
        let new_keys = new_keys(&mut self.key_count);
        match operation {
            Operation::Maintain => drop(self.ring.maintain(&self.policy, self.now, new_keys)),
            Operation::Rotate => {
                self.ring.rotate(&self.policy, self.now, new_keys).expect("there is a next key");
            }
            Operation::Revoke(index) => {
                self.may_sign_early.extend(self.ring.live_keys().map(|key| key.kid.clone()));
                let index = index % self.ring.live_keys().count();
                let kid = self.ring.live_keys().nth(index).map(|key| key.kid.clone()).expect("the index is in range");
                assert!(self.ring.revoke(&kid, &self.policy, self.now, new_keys));
                self.token_expiries.remove(&kid);
            }
            Operation::SetTokenLifetime(seconds) => {
                drop(new_keys);
                self.policy.token_lifetime = Duration::from_secs(*seconds);
                self.run(&Operation::Maintain);
            }
            Operation::AdvanceClock(seconds) => self.now = self.now.saturating_add(Duration::from_secs(*seconds)),
        }
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let now = self.now;
        let live: BTreeSet<_> = self.ring.live_keys().map(|key| key.kid.clone()).collect();
        self.removed.extend(self.ring.keys().iter().map(|key| key.kid.clone()).filter(|kid| !live.contains(kid)));
        prop_assert!(live.is_disjoint(&self.removed), "a removed key is live again");
        let with_status = |status| self.ring.live_keys().filter(|key| key.status(now) == status).collect::<Vec<_>>();
        let signing = with_status(KeyStatus::Signing);
        prop_assert_eq!(signing.len(), 1);
        let signing_key = self.ring.signing_key(now).expect("a key signs");
        prop_assert_eq!(signing[0], signing_key);
        let next = with_status(KeyStatus::Next);
        prop_assert!((1..=2).contains(&next.len()), "expected one next key and at most one scheduled key: {:?}", next);
        prop_assert_eq!(next.iter().filter(|key| key.signs_from.is_none()).count(), 1);
        if !self.may_sign_early.contains(&signing_key.kid) {
            prop_assert!(now.duration_since(signing_key.published_at) >= STALENESS, "the key signs too early");
        }
        let expiry = self.token_expiries.entry(signing_key.kid.clone()).or_insert(now);
        *expiry = now.saturating_add(self.policy.token_lifetime).max(*expiry);
        for (kid, expiry) in &self.token_expiries {
            prop_assert!(live.contains(kid) || *expiry <= now, "a key was removed before its last token expired");
        }
        // Drops removed keys from the key ring, as reading the key ring from the database does.
        self.ring = self.ring.live_keys().cloned().collect();
        Ok(())
    }
}

#[test]
fn of_two_keys_that_start_at_once_the_one_that_replaces_the_other_signs() {
    let mut model = Model::new(None);
    model.run(&Operation::Rotate);
    model.run(&Operation::AdvanceClock(105));
    let rotation = model.ring.rotate(&model.policy, model.now, new_keys(&mut model.key_count)).unwrap();
    assert_eq!(rotation.signs_from, model.now);
    // The store returns the keys in an order that depends on their ids.
    let keys = model.ring.keys().to_vec();
    for keys in [keys.clone(), keys.into_iter().rev().collect()] {
        let ring = SigningKeyRing::from_iter(keys);
        assert_eq!(ring.signing_key(model.now).map(|key| &key.kid), Some(&rotation.kid));
    }
}

proptest! {
    #[test]
    fn exactly_one_key_signs_and_keys_are_kept_until_their_tokens_expire(
        operations in vec(operation(), 0..60),
        rotation_age in select(vec![None, Some(Duration::from_secs(1)), Some(Duration::from_secs(2000))]),
    ) {
        let mut model = Model::new(rotation_age);
        model.check()?;
        for operation in &operations {
            model.run(operation);
            model.check()?;
        }
    }
}

#[test]
fn rotation_waits_for_the_publication_lead_and_is_idempotent() {
    let mut model = Model::new(None);
    let publication_lead = model.policy.publication_lead;
    assert_eq!(publication_lead, STALENESS + PUBLICATION_MARGIN);
    let next = model.ring.unscheduled_key().unwrap().clone();
    model.run(&Operation::AdvanceClock(7));
    let rotation = model.ring.rotate(&model.policy, model.now, new_keys(&mut model.key_count)).unwrap();
    assert_eq!(
        rotation,
        Rotation { kid: next.kid.clone(), signs_from: next.published_at.saturating_add(publication_lead) }
    );
    let before = model.ring.clone();
    model.run(&Operation::AdvanceClock(7));
    assert_eq!(model.ring.rotate(&model.policy, model.now, new_keys(&mut model.key_count)), Some(rotation));
    assert_eq!(model.ring, before);
    model.run(&Operation::AdvanceClock(publication_lead.as_secs()));
    assert_eq!(model.ring.signing_key(model.now).unwrap().kid, next.kid);
    let immediate = model.ring.rotate(&model.policy, model.now, new_keys(&mut model.key_count)).unwrap();
    assert_eq!(immediate.signs_from, model.now, "the key was published at the first rotation, so it must sign at once");
}

#[test]
fn first_key_signs_if_the_clock_is_behind() {
    let model = Model::new(None);
    let earlier = model.now.saturating_sub(Duration::from_secs(10));
    assert_eq!(model.ring.signing_key(earlier), model.ring.signing_key(model.now));
}

#[test]
fn publication_lead_and_jwks_max_age_depend_on_the_staleness() {
    for (staleness, publication_lead, max_age) in [(1, 2, 1), (5, 10, 5), (300, 305, 300), (3600, 3605, 300)] {
        let seconds = Duration::from_secs;
        let policy = RotationPolicy::new(seconds(staleness), None, TOKEN_LIFETIME);
        assert_eq!((policy.publication_lead, policy.jwks_max_age), (seconds(publication_lead), seconds(max_age)));
    }
}
