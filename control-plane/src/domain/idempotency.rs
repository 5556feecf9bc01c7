//! Requests that are done once, however often they are sent: `Idempotency-Key`, of the IETF draft of that name.

use super::netstrings::fields;
use sha2::{Digest, Sha256};
use std::time::Duration;

/// How long a request that was done is answered again.
pub const REMEMBERED: Duration = Duration::from_hours(24);

/// The longest key.
const LONGEST: usize = 255;

/// What a client calls a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey(String);

/// A request that may come again.
#[derive(Debug, Clone)]
pub struct Repeat {
    /// What its sender calls it.
    pub key: IdempotencyKey,
    /// A hash of its body.
    pub body_digest: String,
}

/// Under what a request is remembered.
#[derive(Debug, Clone)]
pub struct Ticket {
    /// Who asked for what under which key, hashed.
    pub id: String,
    /// A hash of the body.
    pub body_digest: String,
}

/// What is remembered of a ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Memory {
    /// Nothing: it is taken now.
    New,
    /// It was done, and answered with this.
    Done(String),
    /// It was done with another body.
    Reused,
}

impl IdempotencyKey {
    /// Reads the value of the header: a string in quotes (RFC 8941, 3.3.3), or what would stand between them. Without
    /// quotes, no comma: that is how two headers look that something on the way made one.
    pub fn parse(text: &str) -> Option<Self> {
        let key = match text.strip_prefix('"') {
            Some(rest) => unescape(rest.strip_suffix('"')?)?,
            None if text.contains(',') => return None,
            None => text.to_owned(),
        };
        let fits = (1..=LONGEST).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then_some(Self(key))
    }
}

/// The content of a quoted string.
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

impl Repeat {
    /// The hash of a body.
    pub fn digest(body: &[u8]) -> String {
        hex::encode(Sha256::digest(body))
    }

    /// Its ticket, by who asks and for what: the same key of somebody else, or for something else, is another.
    pub fn ticket(&self, scope: &[Option<&str>]) -> Ticket {
        let text = [fields(&[Some(&self.key.0)]), fields(scope)].concat();
        Ticket { id: hex::encode(Sha256::digest(text)), body_digest: self.body_digest.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_same_with_and_without_quotes() {
        for (text, key) in
            [("abc", "abc"), (r#""abc""#, "abc"), (r#""a\"\\b""#, r#"a"\b"#), (r"a\b", r"a\b"), (r#""a,b""#, "a,b")]
        {
            assert_eq!(IdempotencyKey::parse(text), Some(IdempotencyKey(key.to_owned())), "{text}");
        }
        let longest = "k".repeat(LONGEST);
        assert!(
            IdempotencyKey::parse(&longest).is_some() && IdempotencyKey::parse(&format!("\"{longest}\"")).is_some()
        );
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let long = "k".repeat(LONGEST + 1);
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
    fn tickets_differ_with_key_and_scope_and_not_with_the_body() {
        let repeat = |key: &str, body: &[u8]| Repeat {
            key: IdempotencyKey::parse(key).unwrap(),
            body_digest: Repeat::digest(body),
        };
        let base = repeat("a", b"1").ticket(&[Some("b"), None]);
        assert_eq!(base.id, repeat("a", b"2").ticket(&[Some("b"), None]).id);
        assert_ne!(base.body_digest, Repeat::digest(b"2"));
        for other in [
            repeat("b", b"1").ticket(&[Some("b"), None]),
            repeat("a", b"1").ticket(&[Some("b"), Some("")]),
            repeat("a", b"1").ticket(&[Some("b")]),
        ] {
            assert_ne!(base.id, other.id);
        }
    }
}
