//! Measures how many ES256 signatures one processor can verify per second with the library aws-lc.

use crate::servers::{on_server_core, repeated};
use aws_lc_rs::{
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, ParsedPublicKey,
    },
};
use std::time::Duration;

/// A signed message with the length of the header and the claims of a token.
pub struct Signed {
    /// The public key in its parsed form, in which the sidecar keeps keys.
    public: ParsedPublicKey,
    message: [u8; 500],
    signature: Vec<u8>,
}

impl Signed {
    pub fn new() -> Self {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref()).unwrap();
        let message = [7; 500];
        let signature = pair.sign(&SystemRandom::new(), &message).unwrap().as_ref().to_vec();
        let public = ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, pair.public_key().as_ref()).unwrap();
        Self { public, message, signature }
    }

    /// Verifications in a second, on the processor of the servers.
    pub fn verifications_per_second(&self, time: Duration) -> f64 {
        on_server_core(|| repeated(time, || self.verify()))
    }

    fn verify(&self) {
        self.public.verify_sig(&self.message, &self.signature).unwrap();
    }
}
