//! Refreshes and revokes tokens of an issuer.

use super::{Endpoints, IssuedTokens, IssuerError, OidcClient, device::success, read_json, tokens::TokenResponse};
use secrecy::{ExposeSecret, SecretString};

/// The result of a refresh. The refresh token is separate, because the caller must save it even if the issuer returned no valid token:
/// the old refresh token may be used up.
#[derive(Debug)]
pub struct Refreshed {
    /// The refresh token for the next refresh: a new one if the issuer returned one, otherwise the used one.
    pub refresh_token: SecretString,
    /// The new tokens.
    pub tokens: Result<IssuedTokens, IssuerError>,
}

impl OidcClient {
    /// Exchanges a refresh token for new tokens (RFC 6749, section 6). `subject` is the user who logged in.
    pub async fn refresh(
        &self,
        endpoints: &Endpoints,
        refresh_token: &SecretString,
        subject: &str,
    ) -> Result<Refreshed, IssuerError> {
        let fields = [("grant_type", "refresh_token"), ("refresh_token", refresh_token.expose_secret())];
        let response = self.post(&endpoints.token, &fields).await?;
        let response = success(&endpoints.token, response, refresh_token).await?;
        let response: TokenResponse = read_json(&endpoints.token, response).await?;
        let rotated = response.refresh_token.clone().filter(|text| !text.expose_secret().is_empty());
        let refresh_token = rotated.unwrap_or_else(|| refresh_token.clone());
        let tokens = response.into_tokens(&self.settings, Some(subject));
        let tokens = tokens.map(|tokens| IssuedTokens { refresh_token: Some(refresh_token.clone()), ..tokens });
        Ok(Refreshed { refresh_token, tokens })
    }

    /// Revokes a refresh token (RFC 7009). Returns `false` if the issuer has no revocation endpoint.
    pub async fn revoke(&self, endpoints: &Endpoints, refresh_token: &SecretString) -> Result<bool, IssuerError> {
        let Some(url) = &endpoints.revocation else { return Ok(false) };
        let fields = [("token", refresh_token.expose_secret()), ("token_type_hint", "refresh_token")];
        let response = self.post(url, &fields).await?;
        success(url, response, refresh_token).await.map(|_| true)
    }
}
