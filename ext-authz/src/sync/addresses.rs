//! Decides which address of the control plane is tried next, and when.
//!
//! When a stream ends, the next address of the settings is tried. Invariant: every wait has a random part, so sidecars that lose an
//! address at the same time do not reach the next one at the same time.

use countersign_process::Rng;
use std::{sync::Arc, time::Duration};

/// When a stream that had confirmed the view ends, the next attempt follows at a random time in this window. So 1,000 sidecars that
/// lose a replica reach the next one at about 330 per second.
pub const LOSS_WINDOW: Duration = Duration::from_secs(3);

/// The wait after the first failed attempt. The random part at most doubles it.
const MIN_BACKOFF: Duration = Duration::from_millis(200);

/// The longest wait after a failed attempt, without the random part.
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// The address in use, and the failures that make the next waits longer.
pub struct AddressPlan {
    count: usize,
    current: usize,
    /// How many attempts have failed since a stream last confirmed the view.
    failed_attempts: u32,
    rng: Arc<dyn Rng>,
}

impl AddressPlan {
    /// Begins with the first of `count` addresses.
    pub fn new(count: usize, rng: Arc<dyn Rng>) -> Self {
        Self { count: count.max(1), current: 0, failed_attempts: 0, rng }
    }

    /// The index of the address in use.
    pub const fn current(&self) -> usize {
        self.current
    }

    pub const fn count(&self) -> usize {
        self.count
    }

    pub const fn has_alternatives(&self) -> bool {
        self.count > 1
    }

    /// Moves on to the next address, because the stream at the current one ended or could not be opened. Returns the wait before the
    /// next attempt. `was_in_use` says that the stream had confirmed the view.
    pub fn lost(&mut self, was_in_use: bool) -> Duration {
        self.current = (self.current + 1) % self.count;
        if was_in_use {
            self.failed_attempts = 0;
            return self.random_part(LOSS_WINDOW);
        }
        // The wait doubles each time when all addresses have failed.
        let round = self.failed_attempts / u32::try_from(self.count).unwrap_or(u32::MAX);
        self.failed_attempts = self.failed_attempts.saturating_add(1);
        let base = MIN_BACKOFF.saturating_mul(1 << round.min(10)).min(MAX_BACKOFF);
        base + self.random_part(base)
    }

    fn random_part(&self, window: Duration) -> Duration {
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
        AddressPlan::new(count, Arc::new(Sequence(AtomicU64::new(seed << 32))))
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
        let mut arrivals: Vec<_> = sidecars.iter_mut().map(|sidecar| sidecar.lost(true)).collect();
        assert!(sidecars.iter().all(|sidecar| sidecar.current() == 1));
        assert!(arrivals.iter().all(|at| *at < LOSS_WINDOW));
        assert!(most_in_a_second(arrivals.clone()) < 450, "{}", most_in_a_second(arrivals));
        // The next address does not answer either.
        for (sidecar, at) in sidecars.iter_mut().zip(&mut arrivals) {
            *at += sidecar.lost(false);
        }
        assert!(sidecars.iter().all(|sidecar| sidecar.current() == 2));
        assert!(most_in_a_second(arrivals.clone()) < 450, "{}", most_in_a_second(arrivals));
    }

    #[test]
    fn wait_grows_when_all_addresses_have_failed_and_is_bounded() {
        for count in [1, 2, 16] {
            let mut plan = plan(count, 7);
            for round in 0..20 {
                let base = (MIN_BACKOFF * 2_u32.pow(round.min(10))).min(MAX_BACKOFF);
                for address in 0..count {
                    assert_eq!(plan.current(), address);
                    let wait = plan.lost(false);
                    assert!((base..base * 2).contains(&wait), "{count} addresses, round {round}: {wait:?}");
                }
            }
            plan.lost(true);
            assert!(plan.lost(false) < MIN_BACKOFF * 2, "a stream that was in use resets the wait");
        }
    }
}
