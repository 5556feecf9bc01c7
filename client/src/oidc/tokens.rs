//! Tokens of an issuer, and their claims.
//!
//! We do not check the signature of a token: it comes from the issuer's token endpoint over TLS (OpenID Connect Core,
//! section 3.1.3.7), and the control plane checks the signature of every token that it receives.

use super::{IssuerError, LoginSettings};
use crate::{
    api::response::{make_printable, optional_line},
    clock,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use clap::ValueEnum;
use countersign_identity::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Which token of the issuer the control plane receives. The access token must be a JWT as in RFC 9068.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum TokenKind {
    /// The ID token, whose audience is the client id
    #[default]
    IdToken,
    /// The access token, which must be a JWT
    AccessToken,
}

/// The response of the token endpoint.
#[derive(Debug, Deserialize)]
#[expect(clippy::struct_field_names, reason = "the names of RFC 6749 and of OpenID Connect Core")]
pub(super) struct TokenResponse {
    pub access_token: Option<SecretString>,
    pub id_token: Option<SecretString>,
    pub refresh_token: Option<SecretString>,
}

/// The token that the control plane receives, and the refresh token that obtains the next one.
#[derive(Debug, Clone)]
pub struct IssuedTokens {
    /// The ID token or the access token.
    pub token: SecretString,
    /// The refresh token, if the issuer returned one.
    pub refresh_token: Option<SecretString>,
    /// The claims of `token`.
    pub claims: HumanClaims,
}

/// The claims about a human user in a token. The claims are not verified.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HumanClaims {
    /// The issuer.
    #[serde(rename = "iss")]
    pub issuer: String,
    /// The id of the user at the issuer.
    #[serde(rename = "sub")]
    pub subject: String,
    /// The audience, as text or as a list.
    #[serde(rename = "aud", default)]
    pub audience: Value,
    /// The Unix time at which the token expires, in seconds.
    #[serde(rename = "exp")]
    expires: serde_json::Number,
    /// The display name of the user.
    #[serde(default, deserialize_with = "optional_line")]
    pub name: Option<String>,
    /// The e-mail address of the user.
    #[serde(default, deserialize_with = "optional_line")]
    pub email: Option<String>,
}

impl HumanClaims {
    /// Parses the claims of a JWT. `None` if the text is no JWT, lacks a required claim, or has a malformed claim.
    pub fn parse(token: &SecretString) -> Option<Self> {
        let mut parts = token.expose_secret().split('.');
        let (Some(_), Some(payload), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
            return None;
        };
        let mut claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
        // Commands show the claims in a terminal. `make_printable` keeps line breaks, so the fields `name` and `email` refuse them.
        make_printable(&mut claims);
        serde_json::from_value(claims).ok()
    }

    /// The time at which the token expires.
    #[expect(clippy::cast_possible_truncation, reason = "the cast saturates, and fractions of a second are irrelevant")]
    pub fn expires_at(&self) -> Timestamp {
        let seconds = self.expires.as_i64().or_else(|| self.expires.as_f64().map(|seconds| seconds as i64));
        Timestamp::from_seconds(seconds.unwrap_or_default())
    }

    /// Whether the audience is this value, or contains it.
    pub fn is_for(&self, audience: &str) -> bool {
        match &self.audience {
            Value::String(text) => text == audience,
            Value::Array(items) => items.iter().any(|item| item == audience),
            _ => false,
        }
    }
}

impl TokenKind {
    /// The name of the token in the response of the token endpoint.
    pub const fn field(self) -> &'static str {
        match self {
            Self::IdToken => "id_token",
            Self::AccessToken => "access_token",
        }
    }
}

impl TokenResponse {
    /// Selects the token of the requested kind. Checks its issuer and expiry, and the audience of an ID token. At a refresh,
    /// `subject` is the user who logged in, for whom the new token must be, too.
    pub fn into_tokens(self, settings: &LoginSettings, subject: Option<&str>) -> Result<IssuedTokens, IssuerError> {
        let Self { access_token, id_token, refresh_token } = self;
        let token = match settings.token {
            TokenKind::IdToken => id_token,
            TokenKind::AccessToken => access_token,
        };
        let token = token.ok_or(IssuerError::NoToken(settings.token.field()))?;
        let claims = HumanClaims::parse(&token).ok_or(IssuerError::Claim {
            claim: settings.token.field(),
            problem: "it is not a JWT with valid claims, or lacks `iss`, `sub` or `exp`".to_owned(),
        })?;
        let invalid = |claim, problem: String| Err(IssuerError::Claim { claim, problem });
        if claims.issuer != settings.issuer {
            return invalid("iss", format!("it is `{}`", claims.issuer));
        }
        if settings.token == TokenKind::IdToken && !claims.is_for(&settings.client_id) {
            return invalid("aud", format!("it does not contain the client id `{}`", settings.client_id));
        }
        if subject.is_some_and(|subject| claims.subject != subject) {
            return invalid("sub", "it is not the user who logged in".to_owned());
        }
        if claims.expires_at() <= clock::now() {
            return invalid("exp", "the token is expired already; is the clock of this machine right?".to_owned());
        }
        let refresh_token = refresh_token.filter(|text| !text.expose_secret().is_empty());
        Ok(IssuedTokens { token, refresh_token, claims })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn settings(token: TokenKind) -> LoginSettings {
        let issuer = "https://issuer.example".to_owned();
        let client_id = "cli".to_owned();
        LoginSettings { issuer, client_id, scope: None, audience: None, token, ca: None }
    }

    fn jwt(changes: &Value) -> SecretString {
        let mut claims =
            json!({ "iss": "https://issuer.example", "sub": "ann", "aud": "cli", "exp": 4_000_000_000_u64 });
        for (name, value) in changes.as_object().unwrap() {
            claims[name] = value.clone();
        }
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string())).into()
    }

    fn issued(token: SecretString, kind: TokenKind) -> Result<IssuedTokens, IssuerError> {
        let response = TokenResponse { access_token: Some(token.clone()), id_token: Some(token), refresh_token: None };
        response.into_tokens(&settings(kind), Some("ann"))
    }

    #[test]
    fn tokens_are_checked_by_their_claims() {
        for valid in [json!({}), json!({ "aud": ["other", "cli"] }), json!({ "exp": 4e9 })] {
            assert!(issued(jwt(&valid), TokenKind::IdToken).is_ok(), "{valid}");
        }
        for (changes, claim) in [
            (json!({ "iss": "https://issuer.example/" }), "iss"),
            (json!({ "aud": "other" }), "aud"),
            (json!({ "aud": null }), "aud"),
            (json!({ "sub": "eve" }), "sub"),
            (json!({ "exp": 1 }), "exp"),
            (json!({ "exp": "soon" }), "id_token"),
            (json!({ "name": "two\nlines" }), "id_token"),
        ] {
            let error = issued(jwt(&changes), TokenKind::IdToken).unwrap_err();
            assert!(matches!(error, IssuerError::Claim { claim: found, .. } if found == claim), "{changes}: {error}");
        }
        assert!(issued(jwt(&json!({ "aud": "api" })), TokenKind::AccessToken).is_ok());
        assert!(issued("opaque".into(), TokenKind::AccessToken).is_err());
    }

    #[test]
    fn a_missing_token_is_named() {
        let response = TokenResponse { access_token: Some("opaque".into()), id_token: None, refresh_token: None };
        let error = response.into_tokens(&settings(TokenKind::IdToken), None).unwrap_err();
        assert_eq!(error.to_string(), "the issuer returned no `id_token`");
    }
}
