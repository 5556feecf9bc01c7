//! Parses the header and the `iss` of a human user's token, before its signature is verified.

use super::jwk_set::ACCEPTED_ALGORITHMS;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, Header};
use serde::Deserialize;

/// Maximum length of a token in bytes.
const MAX_TOKEN_LENGTH: usize = 16 * 1024;

/// Accepted values of the header `typ`: ID tokens and access tokens (RFC 9068). `typ` may be absent. We refuse other types, because
/// issuers sign tokens for other purposes, such as logout tokens, with the same keys.
const ACCEPTED_TYPES: [&str; 2] = ["jwt", "at+jwt"];

/// A well-formed token whose signature is not verified.
pub struct UnverifiedToken<'a> {
    pub text: &'a str,
    /// The claimed `iss`.
    pub issuer: String,
    /// The claimed `alg`.
    pub algorithm: Algorithm,
    /// The claimed `kid`.
    pub kid: Option<String>,
}

/// The claim `iss`. A duplicate `iss` is an error, because another parser could use the other value.
#[derive(Deserialize)]
struct IssuerClaim {
    iss: String,
}

impl<'a> UnverifiedToken<'a> {
    /// Parses the header and the issuer; `None` if the token cannot be valid.
    pub fn parse(text: &'a str) -> Option<Self> {
        if text.len() > MAX_TOKEN_LENGTH {
            return None;
        }
        let mut parts = text.split('.');
        let (Some(_), Some(payload), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
            return None;
        };
        let header = jsonwebtoken::decode_header(text).ok()?;
        let IssuerClaim { iss } = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
        let is_accepted = ACCEPTED_ALGORITHMS.contains(&header.alg) && has_accepted_type(&header);
        if !is_accepted || !has_plain_payload(&header) {
            return None;
        }
        Some(Self { text, issuer: iss, algorithm: header.alg, kid: header.kid })
    }
}

fn has_accepted_type(header: &Header) -> bool {
    let Some(typ) = &header.typ else { return true };
    let typ = typ.to_ascii_lowercase();
    ACCEPTED_TYPES.contains(&typ.strip_prefix("application/").unwrap_or(&typ))
}

/// False if a header member changes how the payload must be read. Ignores members that name a key (`jku`, `jwk`, `x5c`, ...): some
/// issuers send them, but we only use keys from the issuer's JWK set.
fn has_plain_payload(header: &Header) -> bool {
    let encoded = header.enc.is_some() || header.zip.is_some() || header.extras.inner().contains_key("b64");
    !encoded && header.crit.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn token(header: &Value, payload: &str) -> String {
        let [header, payload] = [header.to_string(), payload.to_owned()].map(|part| URL_SAFE_NO_PAD.encode(part));
        format!("{header}.{payload}.c2ln")
    }

    #[test]
    fn rejects_other_types_algorithms_and_critical_headers() {
        let accepts = |header: Value| UnverifiedToken::parse(&token(&header, r#"{"iss":"https://i"}"#)).is_some();
        for typ in ["JWT", "jwt", "at+jwt", "application/at+jwt"] {
            assert!(accepts(json!({ "alg": "RS256", "typ": typ })), "{typ}");
        }
        for typ in ["logout+jwt", "secevent+jwt", "dpop+jwt", ""] {
            assert!(!accepts(json!({ "alg": "RS256", "typ": typ })), "{typ}");
        }
        for alg in ["ES256", "EdDSA"] {
            assert!(accepts(json!({ "alg": alg, "x5t": "YQ", "jku": "https://evil.example" })), "{alg}");
        }
        for alg in ["none", "None", "HS256", "RS512", "PS256", "ES384", ""] {
            assert!(!accepts(json!({ "alg": alg })), "{alg}");
        }
        for member in ["crit", "b64", "zip", "enc"] {
            let mut header = json!({ "alg": "RS256" });
            header[member] = if member == "crit" { json!(["exp"]) } else { json!("DEF") };
            assert!(!accepts(header), "{member}");
        }
    }

    #[test]
    fn requires_three_parts_one_issuer_and_bounded_length() {
        let header = json!({ "alg": "ES256" });
        let parse = |payload: &str| UnverifiedToken::parse(&token(&header, payload)).map(|token| token.issuer.clone());
        assert_eq!(parse(r#"{"iss":"a","sub":"b"}"#).as_deref(), Some("a"));
        for payload in [r#"{"iss":"a","iss":"b"}"#, r#"{"sub":"b"}"#, r#"{"iss":1}"#, r#"{"iss":["a"]}"#, "[]", "", "{"]
        {
            assert_eq!(parse(payload), None, "{payload}");
        }
        assert_eq!(parse(&format!(r#"{{"iss":"a","x":"{}"}}"#, "x".repeat(MAX_TOKEN_LENGTH))), None);
        let valid = token(&header, r#"{"iss":"a"}"#);
        for malformed in
            [format!("{valid}.x"), valid.replacen('.', "", 1), format!(".{valid}"), format!("{valid}=")[1..].to_owned()]
        {
            assert!(UnverifiedToken::parse(&malformed).is_none(), "{malformed}");
        }
    }
}
