//! The one token of a request, out of all its headers.

use crate::decide::Presented;
use countersign_identity::{
    Reason,
    bearer::{TOKEN_HEADER, from_authorization, from_token_header},
};
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

/// Reads the token among a header's values.
type Read = for<'a> fn(&[&'a [u8]]) -> Result<Option<&'a str>, Reason>;

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
    let (sent, read): (_, Read) =
        if own.is_empty() { (named(AUTHORIZATION), from_authorization) } else { (own, from_token_header) };
    let values: Vec<&'a [u8]> = sent.iter().map(|(_, value)| *value).collect();
    match read(&values) {
        Ok(Some(token)) => Found { presented: Presented::Token(token), carrier: sent.first().map(|(name, _)| *name) },
        Ok(None) => Found { presented: Presented::Nothing, carrier: None },
        Err(reason) => Found { presented: Presented::Unreadable(reason), carrier: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<'a>(headers: &[(&'a str, &'a str)]) -> Found<'a> {
        let headers: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        find(&headers)
    }

    #[test]
    fn the_own_header_goes_before_authorization() {
        let both = found(&[("authorization", "Bearer a.b.c"), ("X-Agent-Token", "bearer  d.e.f ")]);
        assert_eq!(both, Found { presented: Presented::Token("d.e.f"), carrier: Some("X-Agent-Token") });
        let one = found(&[("Authorization", "BEARER a.b.c")]);
        assert_eq!(one, Found { presented: Presented::Token("a.b.c"), carrier: Some("Authorization") });
        assert_eq!(found(&[("x_agent_token", "a.b.c")]).presented, Presented::Nothing);
    }

    #[test]
    fn names_that_differ_in_case_only_are_one_header() {
        let repeated = Presented::Unreadable(Reason::TokenRepeated);
        assert_eq!(
            found(&[("x-agent-token", "a"), ("X-Agent-Token", "a")]),
            Found { presented: repeated, carrier: None }
        );
    }
}
