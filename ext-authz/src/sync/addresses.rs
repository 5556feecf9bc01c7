//! Which address of the control plane is tried next, and when.
//!
//! The order of the addresses is the order of preference. A lost address is followed by the next one; from another address than
//! the first, the client returns to the first after a successful probe of that address. Invariant: sidecars that lose the same
//! address at the same instant do not arrive at the next one at the same instant, because every wait contains chance.

use countersign_process::Rng;
use std::{sync::Arc, time::Duration};

/// After the loss of a stream that was in use, the next attempt comes at a random instant in this window. So 1,000 sidecars that
/// lose one replica arrive at the next at about 330 per second.
pub const LOSS_WINDOW: Duration = Duration::from_secs(3);

/// The wait after the first failed attempt, without the random part, which at most doubles it.
const MIN_BACKOFF: Duration = Duration::from_millis(200);

/// The longest wait after a failed attempt, without the random part.
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// The shortest wait before an attempt to return to the first address, in intervals of pings: a minute, if they have 3 seconds.
pub const RETURN_PINGS: u32 = 20;

/// A preferred address that is lost sooner after a return than this is not stable: the next return waits longer.
const STABLE_AFTER: Duration = Duration::from_mins(10);

/// The wait before a return doubles at most this many times.
const MAX_DOUBLINGS: u32 = 5;

/// The address in use, and the failures that decide the next waits.
pub struct AddressPlan {
    count: usize,
    current: usize,
    /// The attempts that failed since the last stream that was in use.
    failed_attempts: u32,
    /// The returns to the first address that failed in a row, or that did not last.
    failed_returns: u32,
    /// When the client returned to the first address, since boot.
    returned_at: Option<Duration>,
    /// The shortest wait before a return.
    return_wait: Duration,
    rng: Arc<dyn Rng>,
}

impl AddressPlan {
    /// Begins with the first of `count` addresses.
    pub fn new(count: usize, return_wait: Duration, rng: Arc<dyn Rng>) -> Self {
        Self {
            count: count.max(1),
            current: 0,
            failed_attempts: 0,
            failed_returns: 0,
            returned_at: None,
            return_wait,
            rng,
        }
    }

    /// The index of the address in use.
    pub const fn current(&self) -> usize {
        self.current
    }

    /// The number of addresses.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Whether there is another address.
    pub const fn has_alternatives(&self) -> bool {
        self.count > 1
    }

    /// The stream at the current address ended, or could not be opened. Moves on to the next address, and returns the wait before
    /// the attempt. `was_in_use`: the stream had confirmed the view. `now` is the time since boot.
    pub fn lost(&mut self, was_in_use: bool, now: Duration) -> Duration {
        if let Some(returned_at) = self.returned_at.take().filter(|_| self.current == 0) {
            let is_stable = now.saturating_sub(returned_at) >= STABLE_AFTER;
            self.failed_returns = if is_stable { 0 } else { self.failed_returns.saturating_add(1) };
        }
        self.current = (self.current + 1) % self.count;
        if was_in_use {
            self.failed_attempts = 0;
            return self.chance(LOSS_WINDOW);
        }
        // The wait grows when all addresses have failed once more.
        let round = self.failed_attempts / u32::try_from(self.count).unwrap_or(u32::MAX);
        self.failed_attempts = self.failed_attempts.saturating_add(1);
        let base = MIN_BACKOFF.saturating_mul(1 << round.min(10)).min(MAX_BACKOFF);
        base + self.chance(base)
    }

    /// How long the current address serves before the client tries to return to the first; `None` if it is the first.
    pub fn return_wait(&self) -> Option<Duration> {
        let wait = self.return_wait.saturating_mul(1 << self.failed_returns.min(MAX_DOUBLINGS));
        (self.current > 0).then(|| wait + self.chance(wait))
    }

    /// The first address serves again.
    pub const fn returned(&mut self, now: Duration) {
        (self.current, self.returned_at) = (0, Some(now));
    }

    /// The probe of the first address failed.
    pub const fn return_failed(&mut self) {
        self.failed_returns = self.failed_returns.saturating_add(1);
    }

    /// A random part of a window.
    fn chance(&self, window: Duration) -> Duration {
        let mut bytes = [0; 4];
        self.rng.fill(&mut bytes);
        let micros = window.as_micros().saturating_mul(u128::from(u32::from_be_bytes(bytes))) >> 32;
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    const RETURN_WAIT: Duration = Duration::from_mins(1);
    const BOOT: Duration = Duration::ZERO;

    /// A generator with a known sequence (splitmix64).
    struct Sequence(AtomicU64);

    impl Rng for Sequence {
        fn fill(&self, buffer: &mut [u8]) {
            let mut state = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
            state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            let bytes = (state ^ (state >> 31)).to_be_bytes();
            buffer.copy_from_slice(&bytes[..buffer.len()]);
        }
    }

    fn plan(count: usize, seed: u64) -> AddressPlan {
        AddressPlan::new(count, RETURN_WAIT, Arc::new(Sequence(AtomicU64::new(seed << 32))))
    }

    /// How many of these instants are in the fullest second.
    fn most_in_a_second(mut arrivals: Vec<Duration>) -> usize {
        arrivals.sort_unstable();
        let in_second_of = |first: &Duration| {
            arrivals.partition_point(|at| *at < *first + Duration::from_secs(1))
                - arrivals.partition_point(|at| at < first)
        };
        arrivals.iter().map(in_second_of).max().unwrap()
    }

    #[test]
    fn sidecars_that_lose_one_replica_do_not_arrive_at_the_next_in_one_second() {
        let mut sidecars: Vec<_> = (0..1000).map(|seed| plan(3, seed)).collect();
        let mut arrivals: Vec<_> = sidecars.iter_mut().map(|sidecar| sidecar.lost(true, BOOT)).collect();
        assert!(sidecars.iter().all(|sidecar| sidecar.current() == 1));
        assert!(arrivals.iter().all(|at| *at < LOSS_WINDOW));
        assert!(most_in_a_second(arrivals.clone()) < 450, "{}", most_in_a_second(arrivals));
        // The next address does not answer either.
        for (sidecar, at) in sidecars.iter_mut().zip(&mut arrivals) {
            *at += sidecar.lost(false, *at);
        }
        assert!(sidecars.iter().all(|sidecar| sidecar.current() == 2));
        assert!(most_in_a_second(arrivals.clone()) < 450, "{}", most_in_a_second(arrivals));
        let returns = sidecars.iter().map(|sidecar| sidecar.return_wait().unwrap()).collect();
        assert!(most_in_a_second(returns) < 50);
    }

    #[test]
    fn wait_grows_when_all_addresses_have_failed_and_is_bounded() {
        for count in [1, 2, 16] {
            let mut plan = plan(count, 7);
            for round in 0..20 {
                let base = (MIN_BACKOFF * 2_u32.pow(round.min(10))).min(MAX_BACKOFF);
                for address in 0..count {
                    assert_eq!(plan.current(), address);
                    let wait = plan.lost(false, BOOT);
                    assert!((base..base * 2).contains(&wait), "{count} addresses, round {round}: {wait:?}");
                }
            }
            plan.lost(true, BOOT);
            assert!(plan.lost(false, BOOT) < MIN_BACKOFF * 2, "a stream that was in use resets the wait");
        }
    }

    #[test]
    fn first_address_is_returned_to_later_each_time_it_does_not_last() {
        let mut plan = plan(2, 3);
        assert_eq!(plan.return_wait(), None, "the first address is in use");
        let mut now = BOOT;
        for doublings in [0, 1, 2, 3, 4, 5, 5, 5] {
            plan.lost(true, now);
            let wait = plan.return_wait().unwrap();
            let base = RETURN_WAIT * 2_u32.pow(doublings);
            assert!((base..base * 2).contains(&wait), "{doublings}: {wait:?}");
            now += wait;
            plan.returned(now);
            assert_eq!((plan.current(), plan.return_wait()), (0, None));
            now += STABLE_AFTER / 2;
        }
        now += STABLE_AFTER;
        plan.lost(true, now);
        assert!(plan.return_wait().unwrap() < RETURN_WAIT * 2, "the first address was stable");
        plan.return_failed();
        assert!(plan.return_wait().unwrap() >= RETURN_WAIT * 2);
    }
}
