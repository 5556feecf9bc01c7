//! A person's token before anybody looked at its signature: its form, and whom it names as its issuer.

use super::key_set::Algorithm;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::Header;
use serde::Deserialize;

/// The longest token that is looked at, in bytes.
const LONGEST: usize = 16 * 1024;

/// What `typ` may be, if it is there: an ID token, or an access token (RFC 9068). Others, such as logout tokens,
/// are signed with the same keys and mean something else.
const TYPES: [&str; 2] = ["jwt", "at+jwt"];

/// A token of the right form.
pub struct UnverifiedToken<'a> {
    text: &'a str,
    issuer: String,
    algorithm: Algorithm,
    kid: Option<String>,
}

/// A second `iss` is an error, so that no other reader can see another issuer.
#[derive(Deserialize)]
struct Issued {
    iss: String,
}

impl<'a> UnverifiedToken<'a> {
    /// Reads the header and the issuer; `None` if it is no token that may be good.
    pub fn parse(text: &'a str) -> Option<Self> {
        if text.len() > LONGEST {
            return None;
        }
        let mut parts = text.split('.');
        let (Some(_), Some(payload), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
            return None;
        };
        let header = jsonwebtoken::decode_header(text).ok()?;
        let Issued { iss } = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
        let algorithm = Algorithm::of(header.alg)?;
        if !is_of_a_person(&header) || !is_plain(&header) {
            return None;
        }
        Some(Self { text, issuer: iss, algorithm, kid: header.kid })
    }

    /// The token.
    pub const fn text(&self) -> &str {
        self.text
    }

    /// The `iss` that it claims.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// What it claims to be signed with.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The key that it claims to be signed with.
    pub fn kid(&self) -> Option<&str> {
        self.kid.as_deref()
    }
}

fn is_of_a_person(header: &Header) -> bool {
    let Some(typ) = &header.typ else { return true };
    let typ = typ.to_ascii_lowercase();
    TYPES.contains(&typ.strip_prefix("application/").unwrap_or(&typ))
}

/// True without any member by which the payload would have to be read otherwise. Members that name a key
/// (`jku`, `jwk`, `x5c`, ...) are ignored: some issuers send them, and the key comes from the issuer's set only.
fn is_plain(header: &Header) -> bool {
    let another_payload = header.enc.is_some() || header.zip.is_some() || header.extras.inner().contains_key("b64");
    !another_payload && header.crit.is_none()
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
    fn the_form_decides_before_any_key_is_asked_for() {
        let good = |header: Value| UnverifiedToken::parse(&token(&header, r#"{"iss":"https://i"}"#)).is_some();
        for typ in ["JWT", "jwt", "at+jwt", "application/at+jwt"] {
            assert!(good(json!({ "alg": "RS256", "typ": typ })), "{typ}");
        }
        for typ in ["logout+jwt", "secevent+jwt", "dpop+jwt", ""] {
            assert!(!good(json!({ "alg": "RS256", "typ": typ })), "{typ}");
        }
        for alg in ["ES256", "EdDSA"] {
            assert!(good(json!({ "alg": alg, "x5t": "YQ", "jku": "https://evil.example" })), "{alg}");
        }
        for alg in ["none", "None", "HS256", "RS512", "PS256", "ES384", ""] {
            assert!(!good(json!({ "alg": alg })), "{alg}");
        }
        for member in ["crit", "b64", "zip", "enc"] {
            let mut header = json!({ "alg": "RS256" });
            header[member] = if member == "crit" { json!(["exp"]) } else { json!("DEF") };
            assert!(!good(header), "{member}");
        }
    }

    #[test]
    fn there_is_one_issuer_in_three_parts_of_bounded_size() {
        let header = json!({ "alg": "ES256" });
        let parse = |payload: &str| UnverifiedToken::parse(&token(&header, payload)).map(|token| token.issuer.clone());
        assert_eq!(parse(r#"{"iss":"a","sub":"b"}"#).as_deref(), Some("a"));
        for payload in [r#"{"iss":"a","iss":"b"}"#, r#"{"sub":"b"}"#, r#"{"iss":1}"#, r#"{"iss":["a"]}"#, "[]", "", "{"]
        {
            assert_eq!(parse(payload), None, "{payload}");
        }
        assert_eq!(parse(&format!(r#"{{"iss":"a","x":"{}"}}"#, "x".repeat(LONGEST))), None);
        let good = token(&header, r#"{"iss":"a"}"#);
        for bad in
            [format!("{good}.x"), good.replacen('.', "", 1), format!(".{good}"), format!("{good}=")[1..].to_owned()]
        {
            assert!(UnverifiedToken::parse(&bad).is_none(), "{bad}");
        }
    }
}
