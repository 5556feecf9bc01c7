//! The one token of a request, out of all its headers.
//!
//! What is not clearly one token is refused rather than guessed at: a proxy in between and a service
//! behind might guess differently.

use crate::{answer::TOKEN_HEADER, decide::Presented};
use countersign_identity::Reason;
use envoy_types::pb::envoy::service::auth::v3::attribute_context::HttpRequest;

const AUTHORIZATION: &str = "authorization";

/// What was found, and the name of the header that it stood in, as spelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<'a> {
    /// The token, or what stands in its place.
    pub presented: Presented<'a>,
    /// The header that carried the token.
    pub carrier: Option<&'a str>,
}

/// All headers, in whichever form Envoy was told to send them.
pub fn headers(http: &HttpRequest) -> Vec<(&str, &[u8])> {
    let plain = http.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let listed = http.header_map.iter().flat_map(|map| &map.headers).map(|header| {
        let value = if header.raw_value.is_empty() { header.value.as_bytes() } else { &header.raw_value };
        (header.key.as_str(), value)
    });
    plain.chain(listed).collect()
}

/// Finds the token: in its own header if that was sent, else in `Authorization`.
pub fn find<'a>(headers: &[(&'a str, &'a [u8])]) -> Found<'a> {
    let named = |name: &str| -> Vec<(&'a str, &'a [u8])> {
        headers.iter().filter(|(sent, _)| sent.eq_ignore_ascii_case(name)).copied().collect()
    };
    let own = named(TOKEN_HEADER);
    let (sent, read): (_, fn(&str) -> Presented<'_>) =
        if own.is_empty() { (named(AUTHORIZATION), shared_header) } else { (own, own_header) };
    match sent.as_slice() {
        [] => Found { presented: Presented::Nothing, carrier: None },
        [(name, value)] => {
            let text = std::str::from_utf8(value).ok().filter(|text| text.is_ascii());
            let presented = text.map_or(Presented::Unreadable(Reason::TokenMalformed), |text| read(text.trim()));
            Found { presented, carrier: matches!(presented, Presented::Token(_)).then_some(*name) }
        }
        _ => Found { presented: Presented::Unreadable(Reason::TokenRepeated), carrier: None },
    }
}

/// `X-Agent-Token`: `Bearer <token>`, or the token alone.
fn own_header(value: &str) -> Presented<'_> {
    one_token(bearer(value).unwrap_or(value))
}

/// `Authorization`, which may carry something that is not for us. Proxies join repeated headers by
/// commas, so a token of ours may stand behind one.
fn shared_header(value: &str) -> Presented<'_> {
    match bearer(value) {
        Some(token) => one_token(token),
        None if value.split(',').any(|part| bearer(part.trim()).is_some()) => {
            Presented::Unreadable(Reason::TokenRepeated)
        }
        None => Presented::Nothing,
    }
}

/// What follows the scheme, if the scheme is Bearer.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, rest) = value.split_at(value.find([' ', '\t']).unwrap_or(value.len()));
    scheme.eq_ignore_ascii_case("bearer").then(|| rest.trim())
}

fn one_token(text: &str) -> Presented<'_> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'=');
    if text.contains(',') {
        Presented::Unreadable(Reason::TokenRepeated)
    } else if !text.is_empty() && text.bytes().all(plain) {
        Presented::Token(text)
    } else {
        Presented::Unreadable(Reason::TokenMalformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPEATED: Presented<'_> = Presented::Unreadable(Reason::TokenRepeated);
    const MALFORMED: Presented<'_> = Presented::Unreadable(Reason::TokenMalformed);

    fn found<'a>(headers: &[(&'a str, &'a str)]) -> Found<'a> {
        let headers: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        find(&headers)
    }

    #[test]
    fn the_own_header_goes_before_authorization() {
        let both = found(&[("authorization", "Bearer a.b.c"), ("X-Agent-Token", "bearer  d.e.f ")]);
        assert_eq!(both, Found { presented: Presented::Token("d.e.f"), carrier: Some("X-Agent-Token") });
        assert_eq!(found(&[("x-agent-token", "d.e.f")]).presented, Presented::Token("d.e.f"));
        let one = found(&[("Authorization", "BEARER a.b.c")]);
        assert_eq!(one, Found { presented: Presented::Token("a.b.c"), carrier: Some("Authorization") });
    }

    #[test]
    fn credentials_of_another_kind_are_not_ours() {
        for value in ["Basic dXNlcg==", r#"Digest username="a", realm="b""#, "a.b.c", "", "BearerX a"] {
            assert_eq!(found(&[("authorization", value)]).presented, Presented::Nothing, "{value}");
        }
        assert_eq!(found(&[("x_agent_token", "a.b.c")]).presented, Presented::Nothing);
    }

    #[test]
    fn what_is_not_one_token_is_refused() {
        for (name, value, expected) in [
            ("authorization", "Bearer a,Bearer b", REPEATED),
            ("authorization", "Basic a,Bearer b", REPEATED),
            ("authorization", "Bearer a b", MALFORMED),
            ("authorization", "Bearer", MALFORMED),
            ("authorization", "Bearer ", MALFORMED),
            ("authorization", "Bearer a!", MALFORMED),
            ("authorization", "Bearer é", MALFORMED),
            ("x-agent-token", "", MALFORMED),
            ("x-agent-token", "Basic dXNlcg==", MALFORMED),
            ("x-agent-token", "a,b", REPEATED),
        ] {
            assert_eq!(found(&[(name, value)]), Found { presented: expected, carrier: None }, "{name}: {value}");
        }
        assert_eq!(found(&[("x-agent-token", "a"), ("X-Agent-Token", "a")]).presented, REPEATED);
        assert_eq!(find(&[("authorization", b"Bearer \xff")]).presented, MALFORMED);
    }
}
