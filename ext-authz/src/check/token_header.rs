//! Extracts the token from the headers of a request.

use crate::{decide::PresentedToken, response::AUTHORIZATION_HEADER};
use countersign_identity::{
    Reason,
    bearer::{TOKEN_HEADER, from_authorization, from_token_header},
};
use envoy_types::pb::envoy::service::auth::v3::attribute_context::HttpRequest;

/// The token of a request and the header that contains it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenHeader<'a> {
    /// The token.
    pub token: PresentedToken<'a>,
    /// The name of the header that contains the token, or something that is not one token, as the client spelled it.
    pub name: Option<&'a str>,
}

/// A function that extracts the token from the values of a header.
type ExtractToken = for<'a> fn(&[&'a [u8]]) -> Result<Option<&'a str>, Reason>;

/// The names and values of all headers. Envoy sends headers as a map or as a list, depending on its configuration.
pub fn all_headers(http: &HttpRequest) -> impl Iterator<Item = (&str, &[u8])> + Clone {
    let from_map = http.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let from_list = http.header_map.iter().flat_map(|map| &map.headers).map(|header| {
        let value = if header.raw_value.is_empty() { header.value.as_bytes() } else { &header.raw_value };
        (header.key.as_str(), value)
    });
    from_map.chain(from_list)
}

/// Extracts the token from `X-Agent-Token` if the request has that header, otherwise from `Authorization`.
pub fn extract<'a>(headers: impl Iterator<Item = (&'a str, &'a [u8])> + Clone) -> TokenHeader<'a> {
    from_header(headers.clone(), TOKEN_HEADER, from_token_header).unwrap_or_else(|| extract_from_authorization(headers))
}

/// Extracts the bearer token from `Authorization`.
pub fn extract_from_authorization<'a>(headers: impl Iterator<Item = (&'a str, &'a [u8])>) -> TokenHeader<'a> {
    let absent = TokenHeader { token: PresentedToken::Absent, name: None };
    from_header(headers, AUTHORIZATION_HEADER, from_authorization).unwrap_or(absent)
}

/// `None` if the request does not have the header.
fn from_header<'a>(
    headers: impl Iterator<Item = (&'a str, &'a [u8])>,
    name: &str,
    extract_token: ExtractToken,
) -> Option<TokenHeader<'a>> {
    let mut matching = headers.filter(|(header, _)| header.eq_ignore_ascii_case(name));
    let (name, value) = matching.next()?;
    let name = Some(name);
    // More than two values are refused as two are.
    let token = match matching.next() {
        None => extract_token(&[value]),
        Some((_, second)) => extract_token(&[value, second]),
    };
    Some(match token {
        Ok(Some(token)) => TokenHeader { token: PresentedToken::Unverified(token), name },
        Ok(None) => TokenHeader { token: PresentedToken::Absent, name: None },
        Err(reason) => TokenHeader { token: PresentedToken::Invalid(reason), name },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<'a>(headers: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a [u8])> {
        headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect()
    }

    fn extract_from<'a>(headers: &[(&'a str, &'a str)]) -> TokenHeader<'a> {
        extract(bytes(headers).into_iter())
    }

    #[test]
    fn prefers_token_header_over_authorization() {
        let both = [("authorization", "Bearer a.b.c"), ("X-Agent-Token", "bearer  d.e.f ")];
        let (token, name) = (PresentedToken::Unverified("d.e.f"), Some("X-Agent-Token"));
        assert_eq!(extract_from(&both), TokenHeader { token, name });
        assert_eq!(extract_from_authorization(bytes(&both).into_iter()).name, Some("authorization"));
        let with_password = [("authorization", "Basic YTpi"), ("x-agent-token", "d.e.f")];
        assert_eq!(extract_from(&with_password), TokenHeader { token, name: Some("x-agent-token") });
        assert_eq!(extract_from_authorization(bytes(&with_password).into_iter()).name, None);
        let from_authorization = extract_from(&[("Authorization", "BEARER a.b.c")]);
        assert_eq!(
            from_authorization,
            TokenHeader { token: PresentedToken::Unverified("a.b.c"), name: Some("Authorization") }
        );
        assert_eq!(extract_from(&[("x_agent_token", "a.b.c")]).token, PresentedToken::Absent);
    }

    #[test]
    fn refuses_header_repeated_in_another_case() {
        let repeated = PresentedToken::Invalid(Reason::TokenRepeated);
        assert_eq!(
            extract_from(&[("x-agent-token", "a"), ("X-Agent-Token", "a")]),
            TokenHeader { token: repeated, name: Some("x-agent-token") }
        );
    }
}
