//! Extracts the token from the headers of a request.

use super::request::{Header, first_two};
use crate::{decide::PresentedToken, response::AUTHORIZATION_HEADER};
use countersign_identity::{
    Reason,
    bearer::{TOKEN_HEADER, from_authorization, from_token_header},
};
use std::str::from_utf8;

/// The token of a request and the header that contains it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenHeader<'a> {
    pub token: PresentedToken<'a>,
    /// The name of the header that was read, as the client spelled it, even if the token is invalid. `None` if there is no token.
    pub name: Option<&'a str>,
}

/// A function that extracts the token from the values of a header.
type ExtractToken = for<'a> fn(&[&'a [u8]]) -> Result<Option<&'a str>, Reason>;

/// Extracts the token from `X-Agent-Token` if the request has that header, otherwise from `Authorization`.
pub fn extract<'a>(headers: impl Iterator<Item = Header<'a>> + Clone) -> TokenHeader<'a> {
    from_header(headers.clone(), TOKEN_HEADER, from_token_header).unwrap_or_else(|| extract_from_authorization(headers))
}

pub fn extract_from_authorization<'a>(headers: impl Iterator<Item = Header<'a>>) -> TokenHeader<'a> {
    let absent = TokenHeader { token: PresentedToken::Absent, name: None };
    from_header(headers, AUTHORIZATION_HEADER, from_authorization).unwrap_or(absent)
}

/// Extracts the token from the header with this name. `None` if the request does not have the header.
fn from_header<'a>(
    headers: impl Iterator<Item = Header<'a>>,
    name: &str,
    extract_token: ExtractToken,
) -> Option<TokenHeader<'a>> {
    // Two values are refused, so further ones need not be read.
    let [first, second] = first_two(headers, name);
    let first = first?;
    let name = from_utf8(first.name).ok();
    let token = match second {
        None => extract_token(&[first.value]),
        Some(second) => extract_token(&[first.value, second.value]),
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

    fn bytes<'a>(headers: &[(&'a str, &'a str)]) -> Vec<Header<'a>> {
        let header = |(name, value): &(&'a str, &'a str)| Header {
            name: name.as_bytes(),
            value: value.as_bytes(),
            is_in_map: true,
        };
        headers.iter().map(header).collect()
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
    fn later_entry_of_the_map_replaces_an_earlier_one() {
        let entries = bytes(&[("authorization", "Bearer a.b.c"), ("authorization", "Bearer d.e.f")]);
        assert_eq!(extract(entries.iter().copied()).token, PresentedToken::Unverified("d.e.f"));
        let in_list = entries.iter().map(|header| Header { is_in_map: false, ..*header });
        assert_eq!(extract(in_list).token, PresentedToken::Invalid(Reason::TokenRepeated));
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
