//! Extracts the token from the headers of a request.

use crate::decide::PresentedToken;
use countersign_identity::{
    Reason,
    bearer::{TOKEN_HEADER, from_authorization, from_token_header},
};
use envoy_types::pb::envoy::service::auth::v3::attribute_context::HttpRequest;

const AUTHORIZATION_HEADER: &str = "authorization";

/// The token of a request and the header that contains it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenHeader<'a> {
    /// The token.
    pub token: PresentedToken<'a>,
    /// The name of the header that contains the token, or something that is not one token, as the client spelled it.
    pub name: Option<&'a str>,
    /// The name of an `Authorization` header with a bearer token that was not looked at, because the token is in `X-Agent-Token`.
    pub unchecked: Option<&'a str>,
}

/// A function that extracts the token from the values of a header.
type ExtractToken = for<'a> fn(&[&'a [u8]]) -> Result<Option<&'a str>, Reason>;

/// Returns the names and values of all headers. Envoy sends headers as a map or as a list, depending on its
/// configuration.
pub fn all_headers(http: &HttpRequest) -> Vec<(&str, &[u8])> {
    let from_map = http.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let from_list = http.header_map.iter().flat_map(|map| &map.headers).map(|header| {
        let value = if header.raw_value.is_empty() { header.value.as_bytes() } else { &header.raw_value };
        (header.key.as_str(), value)
    });
    from_map.chain(from_list).collect()
}

/// Extracts the token from `X-Agent-Token` if the request has that header, otherwise from `Authorization`.
pub fn extract<'a>(headers: &[(&'a str, &'a [u8])]) -> TokenHeader<'a> {
    let headers_named = |name: &str| -> Vec<(&'a str, &'a [u8])> {
        headers.iter().filter(|(header, _)| header.eq_ignore_ascii_case(name)).copied().collect()
    };
    let from_values = |headers: &[(&'a str, &'a [u8])], extract_token: ExtractToken| {
        let values: Vec<&'a [u8]> = headers.iter().map(|(_, value)| *value).collect();
        let name = headers.first().map(|(name, _)| *name);
        match extract_token(&values) {
            Ok(Some(token)) => TokenHeader { token: PresentedToken::Unverified(token), name, unchecked: None },
            Ok(None) => TokenHeader { token: PresentedToken::Absent, name: None, unchecked: None },
            Err(reason) => TokenHeader { token: PresentedToken::Invalid(reason), name, unchecked: None },
        }
    };
    let (token_headers, authorization) = (headers_named(TOKEN_HEADER), headers_named(AUTHORIZATION_HEADER));
    let of_authorization = from_values(&authorization, from_authorization);
    if token_headers.is_empty() {
        return of_authorization;
    }
    TokenHeader { unchecked: of_authorization.name, ..from_values(&token_headers, from_token_header) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extract_from<'a>(headers: &[(&'a str, &'a str)]) -> TokenHeader<'a> {
        let headers: Vec<(&str, &[u8])> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        extract(&headers)
    }

    #[test]
    fn prefers_token_header_over_authorization() {
        let from_both = extract_from(&[("authorization", "Bearer a.b.c"), ("X-Agent-Token", "bearer  d.e.f ")]);
        let (token, name) = (PresentedToken::Unverified("d.e.f"), Some("X-Agent-Token"));
        assert_eq!(from_both, TokenHeader { token, name, unchecked: Some("authorization") });
        let with_password = extract_from(&[("authorization", "Basic YTpi"), ("x-agent-token", "d.e.f")]);
        assert_eq!(with_password, TokenHeader { token, name: Some("x-agent-token"), unchecked: None });
        let from_authorization = extract_from(&[("Authorization", "BEARER a.b.c")]);
        assert_eq!(
            from_authorization,
            TokenHeader { token: PresentedToken::Unverified("a.b.c"), name: Some("Authorization"), unchecked: None }
        );
        assert_eq!(extract_from(&[("x_agent_token", "a.b.c")]).token, PresentedToken::Absent);
    }

    #[test]
    fn refuses_header_repeated_in_another_case() {
        let repeated = PresentedToken::Invalid(Reason::TokenRepeated);
        assert_eq!(
            extract_from(&[("x-agent-token", "a"), ("X-Agent-Token", "a")]),
            TokenHeader { token: repeated, name: Some("x-agent-token"), unchecked: None }
        );
    }
}
