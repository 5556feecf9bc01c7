//! Extracts the agent token from header values (RFC 6750). The API and the sidecar both use this module.
//!
//! Ambiguous input is refused, because a proxy or the service could use another token than the one that was verified.

use crate::Reason;

/// The header for the agent token in requests whose header `Authorization` contains a different credential.
pub const TOKEN_HEADER: &str = "x-agent-token";

/// Extracts the token from the values of `X-Agent-Token`: `Bearer <token>`, or the token alone.
pub fn from_token_header<'a>(values: &[&'a [u8]]) -> Result<Option<&'a str>, Reason> {
    let Some(value) = single_value(values)? else { return Ok(None) };
    parse_bearer_token(strip_bearer(value).unwrap_or(value)).map(Some)
}

/// Extracts the token from the values of `Authorization`. Authentication schemes other than `Bearer` are ignored. A
/// `Bearer` credential after a comma is refused, because proxies join repeated headers with commas.
pub fn from_authorization<'a>(values: &[&'a [u8]]) -> Result<Option<&'a str>, Reason> {
    let Some(value) = single_value(values)? else { return Ok(None) };
    match strip_bearer(value) {
        Some(token) => parse_bearer_token(token).map(Some),
        None if value.split(',').any(|part| strip_bearer(part.trim()).is_some()) => Err(Reason::TokenRepeated),
        None => Ok(None),
    }
}

fn single_value<'a>(values: &[&'a [u8]]) -> Result<Option<&'a str>, Reason> {
    match values {
        [] => Ok(None),
        [value] => {
            // Parsers treat control characters (except the tab) and non-ASCII bytes differently, and no token contains them.
            let is_allowed = |byte: u8| byte.is_ascii_graphic() || matches!(byte, b' ' | b'\t');
            let text = std::str::from_utf8(value).ok().filter(|text| are_all(text, is_allowed));
            text.map(|text| Some(text.trim())).ok_or(Reason::TokenMalformed)
        }
        _ => Err(Reason::TokenRepeated),
    }
}

/// The credential after the scheme, if the scheme is `Bearer`.
fn strip_bearer(value: &str) -> Option<&str> {
    let (scheme, rest) = value.split_at(value.find([' ', '\t']).unwrap_or(value.len()));
    scheme.eq_ignore_ascii_case("bearer").then(|| rest.trim())
}

fn parse_bearer_token(text: &str) -> Result<&str, Reason> {
    let is_token_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'=');
    if !text.is_empty() && are_all(text, is_token_byte) {
        Ok(text)
    } else if text.contains(',') {
        Err(Reason::TokenRepeated)
    } else {
        Err(Reason::TokenMalformed)
    }
}

/// Like `text.bytes().all(is_valid)`, but without an early end, so that the compiler checks many bytes at once.
fn are_all(text: &str, is_valid: impl Fn(u8) -> bool) -> bool {
    text.bytes().fold(true, |are_valid, byte| are_valid & is_valid(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Reason::{TokenMalformed, TokenRepeated};

    #[test]
    fn extracts_bearer_token_from_either_header() {
        for (value, expected) in [("Bearer a.b.c", "a.b.c"), ("bearer  d.e.f ", "d.e.f"), ("BEARER\ta", "a")] {
            assert_eq!(from_authorization(&[value.as_bytes()]), Ok(Some(expected)));
            assert_eq!(from_token_header(&[value.as_bytes()]), Ok(Some(expected)));
        }
        assert_eq!(from_token_header(&[b"a.b.c"]), Ok(Some("a.b.c")));
        assert_eq!((from_token_header(&[]), from_authorization(&[])), (Ok(None), Ok(None)));
    }

    #[test]
    fn ignores_other_authorization_schemes() {
        for value in ["Basic dXNlcg==", r#"Digest username="a", realm="b""#, "a.b.c", "", "BearerX a"] {
            assert_eq!(from_authorization(&[value.as_bytes()]), Ok(None), "{value}");
        }
    }

    #[test]
    fn refuses_malformed_or_repeated_tokens() {
        for (value, expected) in [
            ("Bearer a,Bearer b", TokenRepeated),
            ("Basic a,Bearer b", TokenRepeated),
            ("Bearer a b", TokenMalformed),
            ("Bearer", TokenMalformed),
            ("Bearer ", TokenMalformed),
            ("Bearer a!", TokenMalformed),
            ("Bearer é", TokenMalformed),
            ("Bearer \na", TokenMalformed),
            ("\nBearer a", TokenMalformed),
            ("Bearer a\u{b}", TokenMalformed),
        ] {
            assert_eq!(from_authorization(&[value.as_bytes()]), Err(expected), "{value}");
        }
        for (value, expected) in [("", TokenMalformed), ("Basic dXNlcg==", TokenMalformed), ("a,b", TokenRepeated)] {
            assert_eq!(from_token_header(&[value.as_bytes()]), Err(expected), "{value}");
        }
        assert_eq!(from_token_header(&[b"\ra.b.c"]), Err(TokenMalformed));
        assert_eq!(from_token_header(&[b"a", b"a"]), Err(TokenRepeated));
        assert_eq!(from_authorization(&[b"Bearer a", b"Basic b"]), Err(TokenRepeated));
        assert_eq!(from_authorization(&[b"Bearer \xff"]), Err(TokenMalformed));
    }
}
