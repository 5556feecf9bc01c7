//! What must be true of any life of the ring.

use super::*;
use p256::SecretKey;
use proptest::{collection::vec, prelude::*, sample::select};
use std::collections::{BTreeMap, BTreeSet};

const STALENESS: Duration = Duration::from_secs(100);
const LIFE: Duration = Duration::from_mins(10);

fn rules(rotation: Option<Duration>, token_life: Duration) -> KeyRules {
    KeyRules::new(STALENESS, rotation, token_life)
}

/// Keys that differ from each other, without end.
fn fresh(made: &mut u64) -> impl Iterator<Item = P256PublicKey> + '_ {
    std::iter::from_fn(move || {
        *made += 1;
        let mut scalar = [0; 32];
        scalar[24..].copy_from_slice(&made.to_be_bytes());
        let secret = SecretKey::from_slice(&scalar).ok()?;
        P256PublicKey::from_sec1(&secret.public_key().to_sec1_bytes()).ok()
    })
}

#[derive(Debug, Clone)]
enum Step {
    Tend,
    Rotate,
    /// Of the keys that live, by number.
    Revoke(usize),
    /// Tokens live shorter or longer from now on, as after a restart.
    Life(u64),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Tend),
        3 => Just(Step::Rotate),
        2 => (0..6_usize).prop_map(Step::Revoke),
        1 => select(vec![1, 60, 600]).prop_map(Step::Life),
        6 => select(vec![0, 1, 50, 100, 104, 105, 106, 299, 300, 600, 899, 900, 3000]).prop_map(Step::Pass),
    ]
}

/// A ring, and what was seen of it.
struct Watched {
    ring: KeyRing,
    rules: KeyRules,
    now: Timestamp,
    made: u64,
    /// By key, until when a token under it lives.
    tokens: BTreeMap<Kid, Timestamp>,
    /// Keys that may sign early: the first one, and all that were there when another was revoked.
    hurried: BTreeSet<Kid>,
    dead: BTreeSet<Kid>,
}

impl Watched {
    fn new(rotation: Option<Duration>) -> Self {
        let (ring, rules) = (KeyRing::from_iter([]), rules(rotation, LIFE));
        let now = Timestamp::from_seconds(1_000_000);
        let (tokens, hurried, dead) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        let mut new = Self { ring, rules, now, made: 0, tokens, hurried, dead };
        new.take(&Step::Tend);
        new.hurried = new.ring.live().map(|key| key.kid.clone()).collect();
        new
    }

    fn take(&mut self, step: &Step) {
        let fresh = fresh(&mut self.made);
        match step {
            Step::Tend => drop(self.ring.tend(&self.rules, self.now, fresh)),
            Step::Rotate => {
                self.ring.rotate(&self.rules, self.now, fresh).expect("there is a next key");
            }
            Step::Revoke(number) => {
                self.hurried.extend(self.ring.live().map(|key| key.kid.clone()));
                let number = number % self.ring.live().count();
                let kid = self.ring.live().nth(number).map(|key| key.kid.clone()).expect("it is one of them");
                assert!(self.ring.revoke(&kid, &self.rules, self.now, fresh));
                self.tokens.remove(&kid);
            }
            Step::Life(seconds) => {
                drop(fresh);
                self.rules.token_life = Duration::from_secs(*seconds);
                self.take(&Step::Tend);
            }
            Step::Pass(seconds) => self.now = self.now.saturating_add(Duration::from_secs(*seconds)),
        }
    }

    fn look(&mut self) -> Result<(), TestCaseError> {
        let now = self.now;
        let live: BTreeSet<_> = self.ring.live().map(|key| key.kid.clone()).collect();
        self.dead.extend(self.ring.keys().iter().map(|key| key.kid.clone()).filter(|kid| !live.contains(kid)));
        prop_assert!(live.is_disjoint(&self.dead), "dead is dead");
        let with = |wanted| self.ring.live().filter(|key| key.status(now) == wanted).collect::<Vec<_>>();
        let signing = with(KeyStatus::Signing);
        prop_assert_eq!(signing.len(), 1);
        let signer = self.ring.signer(now).expect("somebody signs");
        prop_assert_eq!(signing[0], signer);
        let next = with(KeyStatus::Next);
        prop_assert!((1..=2).contains(&next.len()), "one is next, and one may be scheduled: {:?}", next);
        prop_assert_eq!(next.iter().filter(|key| key.signs_from.is_none()).count(), 1);
        if !self.hurried.contains(&signer.kid) {
            prop_assert!(now.duration_since(signer.published_at) >= STALENESS, "it signs too early");
        }
        let until = self.tokens.entry(signer.kid.clone()).or_insert(now);
        *until = now.saturating_add(self.rules.token_life).max(*until);
        for (kid, until) in &self.tokens {
            prop_assert!(live.contains(kid) || *until <= now, "a token outlives its key");
        }
        // As the database does: what is removed is read no more.
        self.ring = self.ring.live().cloned().collect();
        Ok(())
    }
}

proptest! {
    #[test]
    fn somebody_signs_who_is_known_and_no_token_outlives_its_key(
        steps in vec(step(), 0..60),
        rotation in select(vec![None, Some(Duration::from_secs(1)), Some(Duration::from_secs(2000))]),
    ) {
        let mut watched = Watched::new(rotation);
        watched.look()?;
        for step in &steps {
            watched.take(step);
            watched.look()?;
        }
    }
}

#[test]
fn a_rotation_waits_for_the_notice_and_asking_again_changes_nothing() {
    let mut watched = Watched::new(None);
    let notice = watched.rules.notice;
    assert_eq!(notice, STALENESS + MARGIN);
    let next = watched.ring.next().unwrap().clone();
    watched.take(&Step::Pass(7));
    let rotation = watched.ring.rotate(&watched.rules, watched.now, fresh(&mut watched.made)).unwrap();
    assert_eq!(rotation, Rotation { kid: next.kid.clone(), signs_from: next.published_at.saturating_add(notice) });
    let before = watched.ring.clone();
    watched.take(&Step::Pass(7));
    assert_eq!(watched.ring.rotate(&watched.rules, watched.now, fresh(&mut watched.made)), Some(rotation));
    assert_eq!(watched.ring, before);
    watched.take(&Step::Pass(notice.as_secs()));
    assert_eq!(watched.ring.signer(watched.now).unwrap().kid, next.kid);
    let at_once = watched.ring.rotate(&watched.rules, watched.now, fresh(&mut watched.made)).unwrap();
    assert_eq!(at_once.signs_from, watched.now, "the one behind it was published at the first rotation");
}

#[test]
fn a_clock_that_is_behind_signs_with_the_first_key() {
    let watched = Watched::new(None);
    let earlier = watched.now.saturating_sub(Duration::from_secs(10));
    assert_eq!(watched.ring.signer(earlier), watched.ring.signer(watched.now));
}

#[test]
fn a_short_staleness_has_a_short_notice_and_keys_are_never_cached_longer() {
    for (staleness, notice, caching) in [(1, 2, 1), (5, 10, 5), (300, 305, 300), (3600, 3605, 300)] {
        let seconds = Duration::from_secs;
        let rules = KeyRules::new(seconds(staleness), None, LIFE);
        assert_eq!((rules.notice, rules.caching), (seconds(notice), seconds(caching)));
    }
}
