//! The OAuth 2.0 Device Authorization Grant (RFC 8628): the user confirms the login in a browser, which may run on
//! another device, while the client polls the token endpoint.

use super::{
    Endpoints, IssuedTokens, IssuerError, OidcClient, error::ErrorBody, is_secure, read_json, tokens::TokenResponse,
};
use crate::{
    api::{
        redacted_url_with_port,
        response::{line, optional_line},
    },
    clock,
};
use reqwest::{Response, Url};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use std::time::Duration;

/// The `grant_type` of the device authorization grant.
const GRANT_TYPE: &str = "urn:ietf:params:oauth:grant-type:device_code";

/// The seconds between two requests if the issuer sends no `interval` (RFC 8628, section 3.2).
const DEFAULT_INTERVAL: u64 = 5;

/// How much the error `slow_down` increases the interval (RFC 8628, section 3.5).
const SLOW_DOWN: Duration = Duration::from_secs(5);

/// The maximum interval, even if the issuer asks for a longer one.
const MAX_INTERVAL: Duration = Duration::from_mins(5);

/// The response to a device authorization request.
#[derive(Debug, Deserialize)]
pub struct DeviceAuthorization {
    device_code: SecretString,
    /// The code that the user enters at `verification_uri`.
    #[serde(deserialize_with = "line")]
    pub user_code: String,
    /// The page at which the user confirms the login.
    // Some issuers implement a draft of RFC 8628, in which the member is called `verification_url`.
    #[serde(alias = "verification_url", deserialize_with = "line")]
    pub verification_uri: String,
    /// The URL `verification_uri` with the user code in it, so that the user need not enter the code.
    #[serde(default, alias = "verification_url_complete", deserialize_with = "optional_line")]
    pub verification_uri_complete: Option<String>,
    /// The lifetime of the codes, in seconds.
    pub expires_in: u64,
    interval: Option<u64>,
}

impl OidcClient {
    /// Requests a device code and a user code.
    pub async fn authorize_device(&self, endpoints: &Endpoints) -> Result<DeviceAuthorization, IssuerError> {
        let missing = IssuerError::Missing("device_authorization_endpoint");
        let url = endpoints.device_authorization.as_ref().ok_or(missing)?;
        let scope = self.settings.scope.clone().unwrap_or_else(|| endpoints.default_scope());
        let mut fields = vec![("scope", scope.as_str())];
        fields.extend(self.settings.audience.as_deref().map(|audience| ("audience", audience)));
        let response = self.post(url, &fields).await?;
        let response = success(url, response, &SecretString::default()).await?;
        let device: DeviceAuthorization = read_json(url, response).await?;
        // The user opens these pages in a browser, so we refuse other URLs than `https`, or `http` to this machine if the issuer is
        // on it. We only drop an invalid `verification_uri_complete`: without it, the user enters the code.
        let allow_loopback = url.scheme() == "http";
        let is_page = |page: &String| Url::parse(page).is_ok_and(|page| is_secure(&page, allow_loopback));
        if !is_page(&device.verification_uri) {
            return Err(IssuerError::Endpoint("verification_uri"));
        }
        let verification_uri_complete = device.verification_uri_complete.clone().filter(is_page);
        Ok(DeviceAuthorization { verification_uri_complete, ..device })
    }

    /// Polls the token endpoint until the user has confirmed or denied the login, or the codes expire.
    ///
    /// If the issuer is unreachable or cannot answer now, the interval is doubled (RFC 8628, section 3.5).
    pub async fn wait_for_tokens(
        &self,
        endpoints: &Endpoints,
        device: &DeviceAuthorization,
    ) -> Result<IssuedTokens, IssuerError> {
        let deadline = clock::now().saturating_add(Duration::from_secs(device.expires_in));
        let mut interval = Duration::from_secs(device.interval.unwrap_or(DEFAULT_INTERVAL)).min(MAX_INTERVAL);
        loop {
            tokio::time::sleep(interval).await;
            if clock::now() >= deadline {
                return Err(IssuerError::CodeExpired);
            }
            let error = match self.request_tokens(endpoints, &device.device_code).await {
                Ok(response) => return response.into_tokens(&self.settings, None),
                Err(error) => error,
            };
            interval = next_interval(interval, &error).ok_or(error)?;
        }
    }

    async fn request_tokens(&self, endpoints: &Endpoints, code: &SecretString) -> Result<TokenResponse, IssuerError> {
        let fields = [("grant_type", GRANT_TYPE), ("device_code", code.expose_secret())];
        let response = self.post(&endpoints.token, &fields).await?;
        read_json(&endpoints.token, success(&endpoints.token, response, code).await?).await
    }
}

/// The interval between requests after this error; `None` if the error ends the grant.
fn next_interval(interval: Duration, error: &IssuerError) -> Option<Duration> {
    let next = match error.code() {
        Some("authorization_pending") => interval,
        Some("slow_down") => interval + SLOW_DOWN,
        None if error.is_outage() => interval.max(Duration::from_secs(1)) * 2,
        _ => return None,
    };
    Some(next.min(MAX_INTERVAL))
}

/// Returns the response if its status is 2xx, otherwise its OAuth error, without the `secret` that the issuer may repeat.
pub(super) async fn success(url: &Url, response: Response, secret: &SecretString) -> Result<Response, IssuerError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let status_error = || IssuerError::Status { url: redacted_url_with_port(url), status: status.as_u16() };
    if status.is_server_error() {
        return Err(status_error());
    }
    let body: ErrorBody = read_json(url, response).await.map_err(|_| status_error())?;
    Err(match IssuerError::refused(body, secret) {
        IssuerError::Refused { code, .. } if code == "expired_token" => IssuerError::CodeExpired,
        error => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_grows_as_the_issuer_demands() {
        let refused = |code: &str| IssuerError::Refused { code: code.to_owned(), description: None };
        let status = |status| IssuerError::Status { url: String::new(), status };
        let seconds = |error: IssuerError| next_interval(Duration::from_secs(3), &error).map(|next| next.as_secs());
        for (error, expected) in [
            (refused("authorization_pending"), Some(3)),
            (refused("slow_down"), Some(8)),
            (status(503), Some(6)),
            (status(404), None),
            (refused("access_denied"), None),
            (refused("invalid_client"), None),
            (IssuerError::CodeExpired, None),
            (IssuerError::Redirect(String::new()), None),
        ] {
            let text = error.to_string();
            assert_eq!(seconds(error), expected, "{text}");
        }
    }
}
