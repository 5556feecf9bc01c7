//! Requests to the OAuth token endpoint of the control plane: login with a client assertion (RFC 7523) and refresh
//! (RFC 6749, section 6).
//!
//! Invariant: tokens with a wider scope than the requested one are never returned.

use super::{Api, ApiError, Result, Tokens, redacted_url, response::line};
use crate::{
    Scope, Sign,
    client_assertion::{self, ASSERTION_TYPE},
    clock,
};
use reqwest::{Method, header};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

/// Which tokens an agent requests: for which service, and with which permissions. The default requests the same tokens as a login
/// with a challenge: with all permissions of the agent, at the service that the control plane chooses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenRequest {
    /// The parameter `resource` (RFC 8707): the id of a service, or one of its resource URIs. If `None`, the control plane
    /// chooses the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// The parameter `scope` (RFC 6749, section 3.3): the permissions that the tokens are limited to. If `None`, the tokens
    /// have all permissions of the agent at the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
}

/// The metadata of the control plane as an authorization server (RFC 8414), as far as this library uses them.
#[derive(Debug, Clone, Deserialize)]
pub struct ServerMetadata {
    /// The issuer of the access tokens, which is also the audience of client assertions.
    #[serde(deserialize_with = "line")]
    pub issuer: String,
    /// The URL of the token endpoint. Metadata without this URL is refused: a control plane always sends it.
    #[serde(deserialize_with = "line")]
    pub token_endpoint: String,
}

/// A successful response of the token endpoint (RFC 6749, section 5.1).
#[derive(Deserialize)]
struct TokenResponse {
    access_token: SecretString,
    token_type: String,
    expires_in: u64,
    refresh_token: SecretString,
    scope: Option<Scope>,
}

impl Api {
    /// Reads the metadata of the authorization server.
    pub async fn server_metadata(&self) -> Result<ServerMetadata> {
        self.call(Method::GET, &[".well-known", "oauth-authorization-server"], None, None).await
    }

    /// Logs an agent in at the token endpoint: signs a client assertion for the issuer of the control plane (RFC 7523), and
    /// exchanges it for tokens. The clock of this machine must be right to about a minute.
    ///
    /// # Errors
    ///
    /// [`ApiError::WiderScope`] if the tokens have a permission that was not requested, and [`ApiError::Refused`] with the code of
    /// RFC 6749, section 5.2 or RFC 8707, section 2: `invalid_client` if the assertion is not valid, `unauthorized_client` if the
    /// agent is suspended or revoked, `invalid_target` for an unknown resource, `invalid_scope` for a scope that cannot be granted.
    pub async fn login_over_oauth(&self, signer: &impl Sign, agent: &str, request: &TokenRequest) -> Result<Tokens> {
        let issuer = self.server_metadata().await?.issuer;
        let assertion = client_assertion::sign(signer, agent, &issuer, clock::now()).await?;
        let grant = [
            ("grant_type", "client_credentials"),
            ("client_assertion_type", ASSERTION_TYPE),
            ("client_assertion", assertion.expose_secret()),
        ];
        self.request_tokens(&grant, request).await
    }

    /// Exchanges a refresh token for new tokens at the token endpoint. `request` limits the tokens, and must not ask for more than
    /// the login did.
    ///
    /// # Errors
    ///
    /// As [`Self::login_over_oauth`]; the code `invalid_grant` means that the session has ended ([`ApiError::ends_session`]).
    pub async fn refresh_over_oauth(&self, refresh_token: &SecretString, request: &TokenRequest) -> Result<Tokens> {
        let grant = [("grant_type", "refresh_token"), ("refresh_token", refresh_token.expose_secret())];
        self.request_tokens(&grant, request).await
    }

    /// Sends a grant to the token endpoint below the URL of this client. We do not use the URL in the metadata: this network may
    /// not reach it, and it may belong to another server, which would receive the credential.
    async fn request_tokens(&self, grant: &[(&str, &str)], request: &TokenRequest) -> Result<Tokens> {
        let TokenRequest { resource, scope } = request;
        let scope_text = scope.as_ref().map(ToString::to_string);
        let limits = [("resource", resource.as_deref()), ("scope", scope_text.as_deref())];
        let limits = limits.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let form = form_urlencoded::Serializer::new(String::new()).extend_pairs(grant).extend_pairs(limits).finish();
        let http_request = self.http.request(Method::POST, self.endpoint(&["oauth", "token"])?);
        let http_request = http_request.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded").body(form);
        let response: TokenResponse = self.send(http_request).await?;
        if !response.token_type.eq_ignore_ascii_case("bearer") {
            return Err(ApiError::Unreadable(redacted_url(self.url.as_str())));
        }
        response.into_tokens(scope.as_ref())
    }
}

impl TokenResponse {
    /// Returns the tokens unless their scope is wider than the requested one. A response without `scope` means that the
    /// scope is the requested one (RFC 6749, section 5.1).
    fn into_tokens(self, requested: Option<&Scope>) -> Result<Tokens> {
        let Self { access_token, token_type: _, expires_in, refresh_token, scope } = self;
        let granted = scope.or_else(|| requested.cloned());
        if let (Some(granted), Some(requested)) = (&granted, requested)
            && !granted.is_within(requested)
        {
            return Err(ApiError::WiderScope(granted.without(requested)));
        }
        Ok(Tokens { access_token, refresh_token, expires_in, scope: granted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn tokens(scope: &Value, requested: Option<&str>) -> Result<Tokens, ApiError> {
        let response = json!({
            "access_token": "a", "token_type": "Bearer", "expires_in": 60, "refresh_token": "r", "scope": scope,
        });
        let response: TokenResponse = serde_json::from_value(response).unwrap();
        response.into_tokens(requested.map(|text| text.parse().unwrap()).as_ref())
    }

    #[test]
    fn tokens_with_a_wider_scope_than_the_requested_one_are_refused() {
        for (granted, requested, expected) in [
            (json!("read"), Some("read write"), Some("read")),
            (json!(""), Some("read"), Some("")),
            (json!("read write"), None, Some("read write")),
            (Value::Null, Some("read"), Some("read")),
            (Value::Null, None, None),
        ] {
            let scope = tokens(&granted, requested).unwrap().scope.map(|scope| scope.to_string());
            assert_eq!(scope.as_deref(), expected, "{granted} {requested:?}");
        }
        let error = tokens(&json!("read write delete"), Some("read")).unwrap_err();
        assert!(error.to_string().contains("`delete write`"), "{error}");
    }

    #[test]
    fn requests_are_stored_without_absent_members() {
        let request = TokenRequest { resource: None, scope: Some("b a".parse().unwrap()) };
        assert_eq!(json!(request), json!({ "scope": "a b" }));
        assert_eq!(serde_json::from_value::<TokenRequest>(json!({})).unwrap(), TokenRequest::default());
    }
}
