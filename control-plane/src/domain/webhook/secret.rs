//! Secrets of webhook targets, and signatures according to Standard Webhooks 1.0.

use base64::{Engine, engine::general_purpose::STANDARD};
use countersign_identity::{EventId, Timestamp};
use secrecy::SecretString;
use zeroize::Zeroizing;

/// Length of a secret in bytes. Standard Webhooks requires secrets of 24 to 64 bytes.
pub const SECRET_LEN: usize = 32;

/// Prefix of a secret in text form.
const SECRET_PREFIX: &str = "whsec_";

/// A signing secret that the control plane shares with one receiver.
pub struct WebhookSecret(Zeroizing<[u8; SECRET_LEN]>);

impl WebhookSecret {
    /// Creates a secret from random bytes.
    pub const fn new(bytes: Zeroizing<[u8; SECRET_LEN]>) -> Self {
        Self(bytes)
    }

    /// Creates a secret from the bytes that [`Self::bytes`] returns; `None` if the length is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self(Zeroizing::new(bytes.try_into().ok()?)))
    }

    /// The plain bytes, for encryption before storage.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_ref()
    }

    /// The secret as text, which the API returns only once.
    pub fn reveal(&self) -> SecretString {
        format!("{SECRET_PREFIX}{}", STANDARD.encode(self.0.as_ref())).into()
    }

    /// Returns a value for the header `webhook-signature`, which signs event id, time of the attempt and body.
    pub fn sign(&self, event: EventId, now: Timestamp, body: &str) -> String {
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, self.0.as_ref());
        let mut context = aws_lc_rs::hmac::Context::with_key(&key);
        context.update(format!("{event}.{}.", now.seconds()).as_bytes());
        context.update(body.as_bytes());
        format!("v1,{}", STANDARD.encode(context.sign()))
    }
}
