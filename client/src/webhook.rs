//! Verifies webhook requests at the service that receives them.
//!
//! Webhook requests are signed according to Standard Webhooks, version `v1`: HMAC-SHA256 over `id.timestamp.body`.
//! Invariants: `Debug` prints no secret, signatures are compared in constant time, and the current time is an argument.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use countersign_client::{Verifier, clock};
//! use reqwest::header::HeaderMap;
//!
//! let verifier = Verifier::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse()?);
//!
//! // Handles a request. `body` must be the received bytes, unchanged.
//! fn receive(verifier: &Verifier, headers: &HeaderMap, body: &[u8]) -> u16 {
//!     match verifier.verify(headers, body, clock::now()).and_then(|signed| signed.event()) {
//!         // An event can be delivered more than once: store `event.id`, and ignore ids that were processed before.
//!         Ok(event) => { println!("{} {}: {}", event.id, event.kind, event.data); 200 }
//!         Err(error) => { eprintln!("refused: {error}"); 401 }
//!     }
//! }
//! # assert_eq!(receive(&verifier, &HeaderMap::new(), b""), 401);
//! # Ok(())
//! # }
//! ```

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;

use aws_lc_rs::{constant_time, hmac};
use base64::{Engine, engine::general_purpose::STANDARD};
use countersign_identity::Timestamp;
use reqwest::header::HeaderMap;
use secrecy::zeroize::Zeroizing;
use serde::Deserialize;
use serde_json::Value;
use std::{fmt, ops::RangeInclusive, str::FromStr, time::Duration};

/// The name of the header with the id of the event, which is the same on every attempt.
pub const ID: &str = "webhook-id";

/// The name of the header with the time of the attempt, in Unix seconds.
pub const TIMESTAMP: &str = "webhook-timestamp";

/// The name of the header with one or more signatures, separated by spaces.
pub const SIGNATURE: &str = "webhook-signature";

/// The maximum difference between the time of an attempt and the current time, in both directions.
pub const TOLERANCE: Duration = Duration::from_mins(5);

/// The kinds of events that a webhook can select.
pub const EVENT_KINDS: [&str; 5] = [
    "agent.authenticated",
    "agent.authentication_failed",
    "agent.role_assigned",
    "agent.role_revoked",
    "trust.feedback_received",
];

/// The prefix of webhook secrets.
const SECRET_PREFIX: &str = "whsec_";

/// The prefix of signatures of the supported version.
const SIGNATURE_PREFIX: &str = "v1,";

/// The valid lengths of a secret in bytes. HMAC-SHA256 hashes keys longer than 64 bytes, so more bytes add no security.
const SECRET_LENGTH: RangeInclusive<usize> = 24..=64;

/// Why a text is not a webhook secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// The text does not begin with `whsec_`.
    #[error("a webhook secret must begin with {SECRET_PREFIX}")]
    Prefix,
    /// The text after the prefix is not Base64.
    #[error("a webhook secret must be {SECRET_PREFIX} and Base64 with padding")]
    Encoding,
    /// The secret is too short or too long.
    #[error("a webhook secret must be {SECRET_PREFIX} and the Base64 of {} to {} bytes", SECRET_LENGTH.start(), SECRET_LENGTH.end())]
    Length,
}

/// Why a request is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WebhookError {
    /// A header is missing.
    #[error("the header {0} is missing")]
    Missing(&'static str),
    /// A header occurs more than once.
    #[error("the header {0} occurs more than once")]
    Repeated(&'static str),
    /// A header has an invalid value.
    #[error("the header {0} cannot be parsed")]
    Unreadable(&'static str),
    /// The header `webhook-signature` has no signature of a supported version.
    #[error("the header {SIGNATURE} contains no signature that begins with {SIGNATURE_PREFIX}")]
    UnknownVersion,
    /// No signature of a supported version is correct.
    #[error("the signature is wrong: it was made with another secret, or the body was changed")]
    WrongSignature,
    /// The signature is valid but too old. The request may be a replay.
    #[error("the signature is valid, but was made more than five minutes ago")]
    TooOld,
    /// The signature is valid, but its time is in the future. The clock of the sender or of the receiver is wrong.
    #[error("the signature is valid, but its time is more than five minutes in the future: check the clock")]
    TooNew,
    /// The signature is valid, but the body is not an event.
    #[error("the signature is valid, but the body is not a Countersign event")]
    NotAnEvent,
}

/// The secret of a webhook. `Debug` does not print the secret.
#[derive(Clone)]
pub struct WebhookSecret(hmac::Key);

impl FromStr for WebhookSecret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        let encoded = text.strip_prefix(SECRET_PREFIX).ok_or(SecretError::Prefix)?;
        let bytes = STANDARD.decode(encoded).map(Zeroizing::new).map_err(|_| SecretError::Encoding)?;
        if !SECRET_LENGTH.contains(&bytes.len()) {
            return Err(SecretError::Length);
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret(…)")
    }
}

/// A verifier of webhook requests that accepts one or more secrets.
#[derive(Debug, Clone)]
pub struct Verifier {
    secrets: Vec<WebhookSecret>,
}

/// A webhook request with a valid and recent signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignedRequest<'a> {
    /// The id of the event. The receiver should ignore ids that it processed before.
    pub id: &'a str,
    /// The time at which the request was sent.
    pub sent_at: Timestamp,
    /// The body of the request.
    pub body: &'a [u8],
}

/// An event in a webhook request.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The id of the event. The receiver should ignore ids that it processed before.
    pub id: String,
    /// The kind, such as `agent.role_assigned`. The receiver should ignore unknown kinds: new kinds may be added.
    pub kind: String,
    /// When the event occurred (RFC 3339).
    pub timestamp: String,
    /// The fields of the event that depend on its kind.
    pub data: Value,
}

#[derive(Deserialize)]
struct EventBody {
    event: String,
    timestamp: String,
    data: Value,
}

impl Verifier {
    /// Creates a verifier that accepts one secret.
    pub fn new(secret: WebhookSecret) -> Self {
        Self { secrets: vec![secret] }
    }

    /// Also accepts requests that were signed with `secret`, for example while a secret is rotated.
    #[must_use]
    pub fn or(mut self, secret: WebhookSecret) -> Self {
        self.secrets.push(secret);
        self
    }

    /// Verifies the signature and the time of a request. `body` must be the received bytes, unchanged.
    pub fn verify<'a>(
        &self,
        headers: &'a HeaderMap,
        body: &'a [u8],
        now: Timestamp,
    ) -> Result<SignedRequest<'a>, WebhookError> {
        let id = single_value(headers, ID)?;
        let timestamp = single_value(headers, TIMESTAMP)?;
        let signatures = single_value(headers, SIGNATURE)?;
        // A dot separates the signed parts. With a dot in the id, an attacker could split a signed text into another id and time.
        if id.is_empty() || id.contains('.') {
            return Err(WebhookError::Unreadable(ID));
        }
        let seconds = timestamp.parse().map_err(|_| WebhookError::Unreadable(TIMESTAMP))?;
        self.check_signature(signatures, &[id.as_bytes(), b".", timestamp.as_bytes(), b".", body])?;
        let sent_at = Timestamp::from_seconds(seconds);
        // `webhook-timestamp` contains whole seconds, so we compare whole seconds.
        if now.truncated_to_second().duration_since(sent_at) > TOLERANCE {
            return Err(WebhookError::TooOld);
        }
        if sent_at.duration_since(now.truncated_to_second()) > TOLERANCE {
            return Err(WebhookError::TooNew);
        }
        Ok(SignedRequest { id, sent_at, body })
    }

    /// Checks that one of the signatures was made over the concatenated `parts` with one of the secrets.
    fn check_signature(&self, signatures: &str, parts: &[&[u8]]) -> Result<(), WebhookError> {
        let supported_signatures: Vec<_> =
            signatures.split(' ').filter_map(|signature| signature.strip_prefix(SIGNATURE_PREFIX)).collect();
        if supported_signatures.is_empty() {
            return Err(WebhookError::UnknownVersion);
        }
        // A signature that is not Base64 is not valid, so it can be skipped.
        let candidates: Vec<_> =
            supported_signatures.into_iter().filter_map(|signature| STANDARD.decode(signature).ok()).collect();
        let mut expected = self.secrets.iter().map(|WebhookSecret(key)| {
            let mut context = hmac::Context::with_key(key);
            for part in parts {
                context.update(part);
            }
            context.sign()
        });
        let is_equal =
            |tag: &hmac::Tag, candidate: &[u8]| constant_time::verify_slices_are_equal(tag.as_ref(), candidate).is_ok();
        let is_valid = expected.any(|tag| candidates.iter().any(|candidate| is_equal(&tag, candidate)));
        if is_valid { Ok(()) } else { Err(WebhookError::WrongSignature) }
    }
}

impl SignedRequest<'_> {
    /// Parses the body as an event.
    pub fn event(&self) -> Result<Event, WebhookError> {
        let EventBody { event: kind, timestamp, data } =
            serde_json::from_slice(self.body).map_err(|_| WebhookError::NotAnEvent)?;
        Ok(Event { id: self.id.to_owned(), kind, timestamp, data })
    }
}

/// Returns the value of a header that must occur exactly once.
fn single_value<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<&'a str, WebhookError> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().ok_or(WebhookError::Missing(name))?;
    if values.next().is_some() {
        return Err(WebhookError::Repeated(name));
    }
    value.to_str().map_err(|_| WebhookError::Unreadable(name))
}
