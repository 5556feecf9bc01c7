//! The one agent token among a header's values (RFC 6750), read alike by API and sidecar.
//!
//! What is not clearly one token is refused rather than guessed at: a proxy in between and a service
//! behind might guess differently.

use crate::Reason;

/// The header that carries an agent's token beside an `Authorization` of another kind.
pub const TOKEN_HEADER: &str = "x-agent-token";

/// The token in the values of `X-Agent-Token`: `Bearer <token>`, or the token alone.
pub fn from_token_header<'a>(values: &[&'a [u8]]) -> Result<Option<&'a str>, Reason> {
    let Some(value) = the_one(values)? else { return Ok(None) };
    one_token(bearer(value).unwrap_or(value)).map(Some)
}

/// The token in the values of `Authorization`, which may carry something that is not for us. Proxies join
/// repeated headers by commas, so a token of ours may stand behind one.
pub fn from_authorization<'a>(values: &[&'a [u8]]) -> Result<Option<&'a str>, Reason> {
    let Some(value) = the_one(values)? else { return Ok(None) };
    match bearer(value) {
        Some(token) => one_token(token).map(Some),
        None if value.split(',').any(|part| bearer(part.trim()).is_some()) => Err(Reason::TokenRepeated),
        None => Ok(None),
    }
}

fn the_one<'a>(values: &[&'a [u8]]) -> Result<Option<&'a str>, Reason> {
    match values {
        [] => Ok(None),
        [value] => {
            // Other white space, as control characters, has no place in a header and another meaning elsewhere.
            let visible = |byte: u8| byte.is_ascii_graphic() || matches!(byte, b' ' | b'\t');
            let text = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(visible));
            text.map(|text| Some(text.trim())).ok_or(Reason::TokenMalformed)
        }
        _ => Err(Reason::TokenRepeated),
    }
}

/// What follows the scheme, if the scheme is Bearer.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, rest) = value.split_at(value.find([' ', '\t']).unwrap_or(value.len()));
    scheme.eq_ignore_ascii_case("bearer").then(|| rest.trim())
}

fn one_token(text: &str) -> Result<&str, Reason> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'=');
    if text.contains(',') {
        Err(Reason::TokenRepeated)
    } else if !text.is_empty() && text.bytes().all(plain) {
        Ok(text)
    } else {
        Err(Reason::TokenMalformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Reason::{TokenMalformed, TokenRepeated};

    #[test]
    fn one_token_is_found_in_either_header() {
        for (value, expected) in [("Bearer a.b.c", "a.b.c"), ("bearer  d.e.f ", "d.e.f"), ("BEARER\ta", "a")] {
            assert_eq!(from_authorization(&[value.as_bytes()]), Ok(Some(expected)));
            assert_eq!(from_token_header(&[value.as_bytes()]), Ok(Some(expected)));
        }
        assert_eq!(from_token_header(&[b"a.b.c"]), Ok(Some("a.b.c")));
        assert_eq!((from_token_header(&[]), from_authorization(&[])), (Ok(None), Ok(None)));
    }

    #[test]
    fn credentials_of_another_kind_are_not_ours() {
        for value in ["Basic dXNlcg==", r#"Digest username="a", realm="b""#, "a.b.c", "", "BearerX a"] {
            assert_eq!(from_authorization(&[value.as_bytes()]), Ok(None), "{value}");
        }
    }

    #[test]
    fn what_is_not_one_token_is_refused() {
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
