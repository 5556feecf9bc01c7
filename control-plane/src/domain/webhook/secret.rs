//! The secret of a target, and what it signs: Standard Webhooks 1.0.

use base64::{Engine, engine::general_purpose::STANDARD};
use countersign_identity::{EventId, Timestamp};
use secrecy::SecretString;
use zeroize::Zeroizing;

/// Bytes of a secret; Standard Webhooks asks for 24 to 64.
pub const SECRET_LEN: usize = 32;

/// What every secret begins with.
const PREFIX: &str = "whsec_";

/// What a target knows us by.
pub struct WebhookSecret(Zeroizing<[u8; SECRET_LEN]>);

impl WebhookSecret {
    /// A secret of fresh random bytes.
    pub const fn new(bytes: Zeroizing<[u8; SECRET_LEN]>) -> Self {
        Self(bytes)
    }

    /// Reads what [`Self::bytes`] gave.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self(Zeroizing::new(bytes.try_into().ok()?)))
    }

    /// Its bytes, to be sealed.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_ref()
    }

    /// The text that is told once.
    pub fn reveal(&self) -> SecretString {
        format!("{PREFIX}{}", STANDARD.encode(self.0.as_ref())).into()
    }

    /// Signs an event that is sent now.
    pub fn sign(&self, event: EventId, now: Timestamp, body: &str) -> String {
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, self.0.as_ref());
        let mut context = aws_lc_rs::hmac::Context::with_key(&key);
        context.update(format!("{event}.{}.", now.seconds()).as_bytes());
        context.update(body.as_bytes());
        format!("v1,{}", STANDARD.encode(context.sign()))
    }
}
