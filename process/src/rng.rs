//! The only source of randomness, and the keys generated from it. Tests may inject their own [`Rng`].

use p256::SecretKey;
use zeroize::Zeroizing;

/// How many random scalars [`generate_p256_key`] tries.
const KEY_ATTEMPTS: usize = 8;

/// A cryptographically secure random number generator.
pub trait Rng: Send + Sync + 'static {
    /// Fills the buffer with unpredictable bytes.
    fn fill(&self, buffer: &mut [u8]);
}

/// The generator of the cryptographic library, seeded by the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemRng;

impl Rng for SystemRng {
    /// # Panics
    ///
    /// If the operating system provides no randomness: no secret generated afterwards would be safe.
    #[expect(
        clippy::expect_used,
        clippy::disallowed_methods,
        reason = "the only source of randomness; without it no secret is safe, so the process stops"
    )]
    fn fill(&self, buffer: &mut [u8]) {
        aws_lc_rs::rand::fill(buffer).expect("the operating system provides random bytes");
    }
}

/// Generates a P-256 private key.
///
/// About one random scalar in 2^32 is not below the order of the curve. Returns `None` after several invalid scalars in
/// a row, which means that the generator is broken.
pub fn generate_p256_key(rng: &dyn Rng) -> Option<SecretKey> {
    (0..KEY_ATTEMPTS).find_map(|_| {
        let mut scalar = Zeroizing::new([0; 32]);
        rng.fill(scalar.as_mut());
        SecretKey::from_slice(scalar.as_ref()).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Returns 0xFF bytes, an invalid scalar, for the first `invalid` calls, then 0x07 bytes.
    struct FixedRng {
        invalid: usize,
        calls: AtomicUsize,
    }

    impl Rng for FixedRng {
        fn fill(&self, buffer: &mut [u8]) {
            let call = self.calls.fetch_add(1, Ordering::Relaxed);
            buffer.fill(if call < self.invalid { 0xFF } else { 7 });
        }
    }

    #[test]
    fn generate_p256_key_retries_invalid_scalars_and_gives_up() {
        let key = |invalid| generate_p256_key(&FixedRng { invalid, calls: AtomicUsize::default() });
        assert_eq!(key(0), SecretKey::from_slice(&[7; 32]).ok());
        assert_eq!(key(KEY_ATTEMPTS - 1), key(0));
        assert_eq!(key(KEY_ATTEMPTS), None);
    }
}
