//! Finds the token among all headers of a request.

use crate::decide::PresentedToken;
use countersign_identity::{
    Reason,
    bearer::{TOKEN_HEADER, from_authorization, from_token_header},
};
use envoy_types::pb::envoy::service::auth::v3::attribute_context::HttpRequest;

const AUTHORIZATION: &str = "authorization";

/// The token of a request, and the header that contains it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenHeader<'a> {
    /// The token.
    pub token: PresentedToken<'a>,
    /// The name of the header that contains the token, as sent.
    pub name: Option<&'a str>,
}

/// Extracts the token from the values of a header.
type ExtractToken = for<'a> fn(&[&'a [u8]]) -> Result<Option<&'a str>, Reason>;

/// All headers. Envoy sends them as a map or as a list, depending on its configuration.
pub fn all_headers(http: &HttpRequest) -> Vec<(&str, &[u8])> {
    let from_map = http.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let from_list = http.header_map.iter().flat_map(|map| &map.headers).map(|header| {
        let value = if header.raw_value.is_empty() { header.value.as_bytes() } else { &header.raw_value };
        (header.key.as_str(), value)
    });
    from_map.chain(from_list).collect()
}

/// Finds the token: in `X-Agent-Token` if that header was sent, else in `Authorization`.
pub fn find<'a>(headers: &[(&'a str, &'a [u8])]) -> TokenHeader<'a> {
    let with_name = |name: &str| -> Vec<(&'a str, &'a [u8])> {
        headers.iter().filter(|(header, _)| header.eq_ignore_ascii_case(name)).copied().collect()
    };
    let token_headers = with_name(TOKEN_HEADER);
    let (headers, extract): (_, ExtractToken) = if token_headers.is_empty() {
        (with_name(AUTHORIZATION), from_authorization)
    } else {
        (token_headers, from_token_header)
    };
    let values: Vec<&'a [u8]> = headers.iter().map(|(_, value)| *value).collect();
    match extract(&values) {
        Ok(Some(token)) => {
            TokenHeader { token: PresentedToken::Unverified(token), name: headers.first().map(|(name, _)| *name) }
        }
        Ok(None) => TokenHeader { token: PresentedToken::Absent, name: None },
        Err(reason) => TokenHeader { token: PresentedToken::Invalid(reason), name: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_in<'a>(headers: &[(&'a str, &'a str)]) -> TokenHeader<'a> {
        let headers: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        find(&headers)
    }

    #[test]
    fn prefers_token_header_over_authorization() {
        let both = find_in(&[("authorization", "Bearer a.b.c"), ("X-Agent-Token", "bearer  d.e.f ")]);
        assert_eq!(both, TokenHeader { token: PresentedToken::Unverified("d.e.f"), name: Some("X-Agent-Token") });
        let one = find_in(&[("Authorization", "BEARER a.b.c")]);
        assert_eq!(one, TokenHeader { token: PresentedToken::Unverified("a.b.c"), name: Some("Authorization") });
        assert_eq!(find_in(&[("x_agent_token", "a.b.c")]).token, PresentedToken::Absent);
    }

    #[test]
    fn treats_names_that_differ_in_case_as_one_header() {
        let repeated = PresentedToken::Invalid(Reason::TokenRepeated);
        assert_eq!(
            find_in(&[("x-agent-token", "a"), ("X-Agent-Token", "a")]),
            TokenHeader { token: repeated, name: None }
        );
    }
}
