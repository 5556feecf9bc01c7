//! For services that receive webhooks: whether a request was signed with the secret of their target.
//!
//! The signatures are those of Standard Webhooks, version `v1`: HMAC-SHA256 over `id.timestamp.body`. The rule of the
//! room: a secret does not print, signatures are compared in constant time, and `now` is an argument.
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
//!         // At least once means that it may be the second time: keep `event.id`, and pass over one that is known.
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

/// The event's id, the same on every try.
pub const ID: &str = "webhook-id";

/// When this try was made, in seconds since 1970.
pub const TIMESTAMP: &str = "webhook-timestamp";

/// One signature or several, separated by spaces.
pub const SIGNATURE: &str = "webhook-signature";

/// How far the clocks of sender and receiver may be apart, the way included.
pub const TOLERANCE: Duration = Duration::from_mins(5);

/// What secrets begin with.
const PREFIX: &str = "whsec_";

/// What signatures that we know begin with.
const VERSION: &str = "v1,";

/// Bytes of a secret: fewer are guessed, and of more only a hash would count.
const SECRET: RangeInclusive<usize> = 24..=64;

/// Why a text is no secret of a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// It begins with something else.
    #[error("a webhook's secret begins with {PREFIX}")]
    Prefix,
    /// It does not go on in Base64.
    #[error("behind {PREFIX}, a webhook's secret is Base64, with `=` at the end where that is needed")]
    Encoding,
    /// It is shorter or longer than any.
    #[error("a webhook's secret has {} to {} bytes behind {PREFIX}", SECRET.start(), SECRET.end())]
    Length,
}

/// Why a request is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WebhookError {
    /// A header is not there.
    #[error("the header {0} is missing")]
    Missing(&'static str),
    /// A header stands there more than once.
    #[error("the header {0} is there more than once")]
    Repeated(&'static str),
    /// A header holds what no sender writes.
    #[error("the header {0} cannot be read")]
    Unreadable(&'static str),
    /// There are signatures, but none of a kind that is known.
    #[error("{SIGNATURE} holds no signature that begins with {VERSION}")]
    UnknownVersion,
    /// Nobody who has the secret signed this.
    #[error("the signature is wrong: another secret, or the body is not as it was sent")]
    WrongSignature,
    /// The signature is good, but old: somebody may have kept the request to send it again.
    #[error("the signature is good, but made more than five minutes ago")]
    TooOld,
    /// The signature is good, but made in the future: a clock is wrong.
    #[error("the signature is good, but made more than five minutes ahead: is the clock right?")]
    TooNew,
    /// It is signed, but its body is no event.
    #[error("the signature is good, but the body is no event of Countersign's")]
    NoEvent,
}

/// The secret of a webhook, as it was shown when the target was made. It does not print.
#[derive(Clone)]
pub struct WebhookSecret(hmac::Key);

impl FromStr for WebhookSecret {
    type Err = SecretError;

    fn from_str(text: &str) -> Result<Self, SecretError> {
        let encoded = text.strip_prefix(PREFIX).ok_or(SecretError::Prefix)?;
        let bytes = STANDARD.decode(encoded).map(Zeroizing::new).map_err(|_| SecretError::Encoding)?;
        if !SECRET.contains(&bytes.len()) {
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

/// Believes what was signed with one of its secrets.
#[derive(Debug, Clone)]
pub struct Verifier {
    secrets: Vec<WebhookSecret>,
}

/// A request that was signed, and lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signed<'a> {
    /// The event's id: whoever has seen it before, passes over it.
    pub id: &'a str,
    /// When this try was made.
    pub sent_at: Timestamp,
    /// What was signed.
    pub body: &'a [u8],
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The event's id: whoever has seen it before, passes over it.
    pub id: String,
    /// Its kind, such as `agent.role_assigned`. More may come: pass over one that is unknown.
    pub kind: String,
    /// When it happened (RFC 3339).
    pub timestamp: String,
    /// The rest, by kind.
    pub data: Value,
}

#[derive(Deserialize)]
struct Body {
    event: String,
    timestamp: String,
    data: Value,
}

impl Verifier {
    /// Believes what was signed with this secret.
    pub fn new(secret: WebhookSecret) -> Self {
        Self { secrets: vec![secret] }
    }

    /// Believes another secret too: the old one beside the new one, while it is being replaced.
    pub fn or(mut self, secret: WebhookSecret) -> Self {
        self.secrets.push(secret);
        self
    }

    /// Whether a request with these headers and exactly this body was signed, and that lately.
    pub fn verify<'a>(
        &self,
        headers: &'a HeaderMap,
        body: &'a [u8],
        now: Timestamp,
    ) -> Result<Signed<'a>, WebhookError> {
        let (id, timestamp, signatures) = (one(headers, ID)?, one(headers, TIMESTAMP)?, one(headers, SIGNATURE)?);
        // With one in it, the same bytes could be signed for another id.
        if id.is_empty() || id.contains('.') {
            return Err(WebhookError::Unreadable(ID));
        }
        let seconds = timestamp.parse().map_err(|_| WebhookError::Unreadable(TIMESTAMP))?;
        self.find(signatures, &[id.as_bytes(), b".", timestamp.as_bytes(), b".", body])?;
        let sent_at = Timestamp::from_seconds(seconds);
        // Whole seconds are sent, so whole seconds are compared.
        if now.truncated_to_second().duration_since(sent_at) > TOLERANCE {
            return Err(WebhookError::TooOld);
        }
        if sent_at.duration_since(now.truncated_to_second()) > TOLERANCE {
            return Err(WebhookError::TooNew);
        }
        Ok(Signed { id, sent_at, body })
    }

    /// Looks for a signature that one of the secrets made.
    fn find(&self, signatures: &str, signed: &[&[u8]]) -> Result<(), WebhookError> {
        let given: Vec<_> = signatures.split(' ').filter_map(|signature| signature.strip_prefix(VERSION)).collect();
        if given.is_empty() {
            return Err(WebhookError::UnknownVersion);
        }
        let given: Vec<_> = given.into_iter().filter_map(|signature| STANDARD.decode(signature).ok()).collect();
        let mut made = self.secrets.iter().map(|WebhookSecret(key)| {
            let mut context = hmac::Context::with_key(key);
            for part in signed {
                context.update(part);
            }
            context.sign()
        });
        let equal = |tag: &hmac::Tag, given: &[u8]| constant_time::verify_slices_are_equal(tag.as_ref(), given).is_ok();
        let found = made.any(|tag| given.iter().any(|given| equal(&tag, given)));
        if found { Ok(()) } else { Err(WebhookError::WrongSignature) }
    }
}

impl Signed<'_> {
    /// What it says.
    pub fn event(&self) -> Result<Event, WebhookError> {
        let Body { event: kind, timestamp, data } =
            serde_json::from_slice(self.body).map_err(|_| WebhookError::NoEvent)?;
        Ok(Event { id: self.id.to_owned(), kind, timestamp, data })
    }
}

/// A header that must be there once.
fn one<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<&'a str, WebhookError> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().ok_or(WebhookError::Missing(name))?;
    if values.next().is_some() {
        return Err(WebhookError::Repeated(name));
    }
    value.to_str().map_err(|_| WebhookError::Unreadable(name))
}
