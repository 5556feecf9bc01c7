//! The only source of randomness. Tests may bring their own.

/// Gives random bytes.
pub trait Rng: Send + Sync + 'static {
    /// Fills the buffer with unpredictable bytes.
    fn fill(&self, buffer: &mut [u8]);
}

/// The random generator of the cryptographic library, seeded by the system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemRng;

impl Rng for SystemRng {
    /// # Panics
    ///
    /// If the system gives no randomness: nothing that follows would be safe.
    #[expect(
        clippy::expect_used,
        clippy::disallowed_methods,
        reason = "the one source; without randomness no secret is one, so stop"
    )]
    fn fill(&self, buffer: &mut [u8]) {
        aws_lc_rs::rand::fill(buffer).expect("the system gives random bytes");
    }
}
