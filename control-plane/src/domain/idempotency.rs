//! The `Idempotency-Key` header (IETF draft-ietf-httpapi-idempotency-key-header).

use super::netstrings::encode;
use sha2::{Digest, Sha256};
use std::time::Duration;

/// How long we store a response and return it to repeated requests.
pub const RESPONSE_RETENTION: Duration = Duration::from_hours(24);

/// Maximum length of a key, in bytes.
const MAX_KEY_LEN: usize = 255;

/// The key that a client chose for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey(String);

/// A request with an idempotency key.
#[derive(Debug, Clone)]
pub struct IdempotentRequest {
    /// Key from the header.
    pub key: IdempotencyKey,
    /// SHA-256 of the request body, in hex.
    pub body_digest: String,
}

/// Identifies a request in the table of stored responses.
#[derive(Debug, Clone)]
pub struct RequestFingerprint {
    /// Hash of caller, operation and key.
    pub id: String,
    /// SHA-256 of the request body, in hex.
    pub body_digest: String,
}

/// The stored response for a request fingerprint, if any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredResponse {
    /// No response is stored: the request is new.
    New,
    /// The request was completed; the variant contains the response body.
    Completed(String),
    /// The key was used for a request with a different body.
    BodyDiffers,
}

impl IdempotencyKey {
    /// Parses the header value: a quoted string (RFC 8941, section 3.3.3) or the same text without quotes. An unquoted value must not
    /// contain a comma: it may be two headers that a proxy has joined with a comma.
    pub fn parse(text: &str) -> Option<Self> {
        let key = match text.strip_prefix('"') {
            Some(rest) => unescape(rest.strip_suffix('"')?)?,
            None if text.contains(',') => return None,
            None => text.to_owned(),
        };
        let is_valid = (1..=MAX_KEY_LEN).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
        is_valid.then_some(Self(key))
    }
}

/// Unescapes the content of a quoted string.
fn unescape(text: &str) -> Option<String> {
    let (mut content, mut characters) = (String::new(), text.chars());
    while let Some(character) = characters.next() {
        content.push(match character {
            '"' => return None,
            '\\' => characters.next().filter(|escaped| "\"\\".contains(*escaped))?,
            plain => plain,
        });
    }
    Some(content)
}

impl IdempotentRequest {
    /// SHA-256 of a request body, in hex.
    pub fn digest(body: &[u8]) -> String {
        hex::encode(Sha256::digest(body))
    }

    /// The fingerprint of the request. `scope` is the caller and the operation: an equal key in another scope is another request.
    pub fn fingerprint(&self, scope: &[Option<&str>]) -> RequestFingerprint {
        let text = [encode(&[Some(&self.key.0)]), encode(scope)].concat();
        RequestFingerprint { id: hex::encode(Sha256::digest(text)), body_digest: self.body_digest.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_keys_with_and_without_quotes() {
        for (text, key) in
            [("abc", "abc"), (r#""abc""#, "abc"), (r#""a\"\\b""#, r#"a"\b"#), (r"a\b", r"a\b"), (r#""a,b""#, "a,b")]
        {
            assert_eq!(IdempotencyKey::parse(text), Some(IdempotencyKey(key.to_owned())), "{text}");
        }
        let longest = "k".repeat(MAX_KEY_LEN);
        assert!(
            IdempotencyKey::parse(&longest).is_some() && IdempotencyKey::parse(&format!("\"{longest}\"")).is_some()
        );
    }

    #[test]
    fn refuses_malformed_keys() {
        let long = "k".repeat(MAX_KEY_LEN + 1);
        for text in [
            "",
            r#""""#,
            r#"""#,
            "a b",
            "a,b",
            "ä",
            "\u{7f}",
            r#""a"#,
            r#""a"b""#,
            r#""a\b""#,
            r#""a\""#,
            r#""a";x=1"#,
            &long,
        ] {
            assert_eq!(IdempotencyKey::parse(text), None, "{text}");
        }
    }

    #[test]
    fn fingerprint_id_depends_on_key_and_scope_only() {
        let request = |key: &str, body: &[u8]| IdempotentRequest {
            key: IdempotencyKey::parse(key).unwrap(),
            body_digest: IdempotentRequest::digest(body),
        };
        let base = request("a", b"1").fingerprint(&[Some("b"), None]);
        assert_eq!(base.id, request("a", b"2").fingerprint(&[Some("b"), None]).id);
        assert_ne!(base.body_digest, IdempotentRequest::digest(b"2"));
        for other in [
            request("b", b"1").fingerprint(&[Some("b"), None]),
            request("a", b"1").fingerprint(&[Some("b"), Some("")]),
            request("a", b"1").fingerprint(&[Some("b")]),
        ] {
            assert_ne!(base.id, other.id);
        }
    }
}
