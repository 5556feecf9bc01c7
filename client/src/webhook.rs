//! Verification of webhook requests, for services that receive them.
//!
//! Signatures are those of Standard Webhooks, version `v1`: HMAC-SHA256 over `id.timestamp.body`. Invariants: secrets are
//! not printed, signatures are compared in constant time, and the current time is an argument.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use countersign_client::{Verifier, clock};
//! use reqwest::header::HeaderMap;
//!
//! let verifier = Verifier::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse()?);
//!
//! // The headers and the body of a request, the body byte for byte as it came.
//! fn receive(verifier: &Verifier, headers: &HeaderMap, body: &[u8]) -> u16 {
//!     match verifier.verify(headers, body, clock::now()).and_then(|signed| signed.event()) {
//!         // Delivery is at least once: store `event.id`, and ignore an event that was processed before.
//!         Ok(event) => { println!("{} {}: {}", event.id, event.kind, event.data); 200 }
//!         Err(problem) => { eprintln!("refused: {problem}"); 401 }
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

/// The header with the id of the event, the same on every attempt.
pub const ID: &str = "webhook-id";

/// The header with the time of the attempt, in seconds since 1970.
pub const TIMESTAMP: &str = "webhook-timestamp";

/// The header with one or more signatures, separated by spaces.
pub const SIGNATURE: &str = "webhook-signature";

/// The largest accepted age of an attempt, and the largest accepted time in the future.
pub const TOLERANCE: Duration = Duration::from_mins(5);

/// The prefix of secrets.
const PREFIX: &str = "whsec_";

/// The prefix of signatures of the supported version.
const VERSION: &str = "v1,";

/// The length of a secret in bytes. HMAC-SHA256 hashes a longer key, so more bytes add nothing.
const SECRET_LENGTH: RangeInclusive<usize> = 24..=64;

/// Why a text is not the secret of a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// It has another prefix.
    #[error("the secret of a webhook begins with {PREFIX}")]
    Prefix,
    /// The rest is not Base64.
    #[error("after {PREFIX}, the secret of a webhook is Base64 with padding")]
    Encoding,
    /// It is too short or too long.
    #[error("after {PREFIX}, the secret of a webhook has {} to {} bytes", SECRET_LENGTH.start(), SECRET_LENGTH.end())]
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
    /// No signature has a supported version.
    #[error("{SIGNATURE} contains no signature that begins with {VERSION}")]
    UnknownVersion,
    /// No signature matches.
    #[error("the signature is wrong: it was made with another secret, or the body was changed")]
    WrongSignature,
    /// The signature is valid but old: the request may be a replay.
    #[error("the signature is valid, but was made more than five minutes ago")]
    TooOld,
    /// The signature is valid but from the future: a clock is wrong.
    #[error("the signature is valid, but was made more than five minutes in the future: is the clock right?")]
    TooNew,
    /// The signature is valid, but the body is not an event.
    #[error("the signature is valid, but the body is not an event of Countersign")]
    NotAnEvent,
}

/// The secret of a webhook. `Debug` does not print it.
#[derive(Clone)]
pub struct WebhookSecret(hmac::Key);

impl FromStr for WebhookSecret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        let encoded = text.strip_prefix(PREFIX).ok_or(SecretError::Prefix)?;
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

/// Verifies requests with one or more secrets.
#[derive(Debug, Clone)]
pub struct Verifier {
    secrets: Vec<WebhookSecret>,
}

/// A request with a valid and recent signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignedRequest<'a> {
    /// The id of the event. Ignore an event that was processed before.
    pub id: &'a str,
    /// The time of the attempt.
    pub sent_at: Timestamp,
    /// The body.
    pub body: &'a [u8],
}

/// An event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The id. Ignore an event that was processed before.
    pub id: String,
    /// The kind, such as `agent.role_assigned`. Ignore unknown kinds, since more will follow.
    pub kind: String,
    /// When it occurred (RFC 3339).
    pub timestamp: String,
    /// Further fields, by kind.
    pub data: Value,
}

#[derive(Deserialize)]
struct Body {
    event: String,
    timestamp: String,
    data: Value,
}

impl Verifier {
    /// A verifier with one secret.
    pub fn new(secret: WebhookSecret) -> Self {
        Self { secrets: vec![secret] }
    }

    /// Accepts another secret too, during a rotation.
    #[must_use]
    pub fn or(mut self, secret: WebhookSecret) -> Self {
        self.secrets.push(secret);
        self
    }

    /// Verifies the signature and the time of a request. `body` is the body byte for byte.
    pub fn verify<'a>(
        &self,
        headers: &'a HeaderMap,
        body: &'a [u8],
        now: Timestamp,
    ) -> Result<SignedRequest<'a>, WebhookError> {
        let (id, timestamp, signatures) =
            (single(headers, ID)?, single(headers, TIMESTAMP)?, single(headers, SIGNATURE)?);
        // An id with a dot would allow the same signed bytes to be split into another id and timestamp.
        if id.is_empty() || id.contains('.') {
            return Err(WebhookError::Unreadable(ID));
        }
        let seconds = timestamp.parse().map_err(|_| WebhookError::Unreadable(TIMESTAMP))?;
        self.check_signature(signatures, &[id.as_bytes(), b".", timestamp.as_bytes(), b".", body])?;
        let sent_at = Timestamp::from_seconds(seconds);
        // The header has whole seconds, so the comparison has too.
        if now.truncated_to_second().duration_since(sent_at) > TOLERANCE {
            return Err(WebhookError::TooOld);
        }
        if sent_at.duration_since(now.truncated_to_second()) > TOLERANCE {
            return Err(WebhookError::TooNew);
        }
        Ok(SignedRequest { id, sent_at, body })
    }

    /// Checks that one of the signatures was made with one of the secrets over the concatenation of `parts`.
    fn check_signature(&self, signatures: &str, parts: &[&[u8]]) -> Result<(), WebhookError> {
        let supported: Vec<_> = signatures.split(' ').filter_map(|signature| signature.strip_prefix(VERSION)).collect();
        if supported.is_empty() {
            return Err(WebhookError::UnknownVersion);
        }
        let candidates: Vec<_> =
            supported.into_iter().filter_map(|signature| STANDARD.decode(signature).ok()).collect();
        let mut expected = self.secrets.iter().map(|WebhookSecret(key)| {
            let mut context = hmac::Context::with_key(key);
            for part in parts {
                context.update(part);
            }
            context.sign()
        });
        let equal =
            |tag: &hmac::Tag, candidate: &[u8]| constant_time::verify_slices_are_equal(tag.as_ref(), candidate).is_ok();
        let valid = expected.any(|tag| candidates.iter().any(|candidate| equal(&tag, candidate)));
        if valid { Ok(()) } else { Err(WebhookError::WrongSignature) }
    }
}

impl SignedRequest<'_> {
    /// Parses the body as an event.
    pub fn event(&self) -> Result<Event, WebhookError> {
        let Body { event: kind, timestamp, data } =
            serde_json::from_slice(self.body).map_err(|_| WebhookError::NotAnEvent)?;
        Ok(Event { id: self.id.to_owned(), kind, timestamp, data })
    }
}

/// The value of a header that must occur exactly once.
fn single<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<&'a str, WebhookError> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().ok_or(WebhookError::Missing(name))?;
    if values.next().is_some() {
        return Err(WebhookError::Repeated(name));
    }
    value.to_str().map_err(|_| WebhookError::Unreadable(name))
}
