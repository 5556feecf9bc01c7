//! The only source of random bytes, and the generation of P-256 keys. Tests can replace the [`Rng`].

use p256::SecretKey;
use zeroize::Zeroizing;

/// How many random scalars [`generate_p256_key`] tries.
const KEY_ATTEMPTS: usize = 8;

/// A cryptographically secure random number generator.
pub trait Rng: Send + Sync + 'static {
    /// Fills the buffer with unpredictable bytes.
    fn fill(&self, buffer: &mut [u8]);
}

/// The random number generator of aws-lc, seeded by the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemRng;

impl Rng for SystemRng {
    /// # Panics
    ///
    /// Panics if the operating system provides no random bytes, because every secret generated afterwards could be guessed.
    #[expect(
        clippy::expect_used,
        clippy::disallowed_methods,
        reason = "the only source of random bytes; a process without it must stop"
    )]
    fn fill(&self, buffer: &mut [u8]) {
        aws_lc_rs::rand::fill(buffer).expect("the operating system provides random bytes");
    }
}

/// Generates a P-256 private key.
///
/// About one random scalar in 2^32 is too large for the curve. Returns `None` after several of them in a row: then the random number
/// generator is broken.
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

    /// Fills the buffer with 0xFF bytes, an invalid scalar, on the first `invalid_calls` calls, and with 0x07 bytes afterwards.
    struct FixedRng {
        invalid_calls: usize,
        calls: AtomicUsize,
    }

    impl Rng for FixedRng {
        fn fill(&self, buffer: &mut [u8]) {
            let call = self.calls.fetch_add(1, Ordering::Relaxed);
            buffer.fill(if call < self.invalid_calls { 0xFF } else { 7 });
        }
    }

    #[test]
    fn generate_p256_key_retries_invalid_scalars_up_to_a_limit() {
        let key = |invalid_calls| generate_p256_key(&FixedRng { invalid_calls, calls: AtomicUsize::default() });
        assert_eq!(key(0), SecretKey::from_slice(&[7; 32]).ok());
        assert_eq!(key(KEY_ATTEMPTS - 1), key(0));
        assert_eq!(key(KEY_ATTEMPTS), None);
    }
}
