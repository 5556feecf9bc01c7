//! The session of an agent: refreshes tokens before they expire, and logs in again if the session has ended.
//!
//! Depends on [`crate::api`]. [`crate::profile`] stores the [`SessionTokens`] between processes.

use crate::{Api, ApiError, Sign, Tokens, clock};
use countersign_identity::Timestamp;
use secrecy::SecretString;
use std::time::Duration;
use tokio::sync::Mutex;

/// How long before its expiry a token is refreshed. A token with a short lifetime is refreshed after three quarters of
/// its lifetime.
const REFRESH_MARGIN: Duration = Duration::from_mins(1);

/// A token pair with its refresh and expiry times, according to the clock of this machine.
#[derive(Debug, Clone)]
pub struct SessionTokens {
    /// The access token, a JWT.
    pub access_token: SecretString,
    /// The refresh token, which can be used once.
    pub refresh_token: SecretString,
    /// The time from which the access token is refreshed before it is used.
    pub refresh_at: Timestamp,
    /// The time at which the access token expires.
    pub expires_at: Timestamp,
}

impl SessionTokens {
    /// Computes the refresh and expiry times from the time of the request, because the token was issued after the time
    /// of the request.
    fn from_response(requested_at: Timestamp, tokens: Tokens) -> Self {
        let lifetime = Duration::from_secs(tokens.expires_in);
        Self {
            access_token: tokens.access_token,
            refresh_token: tokens.refresh_token,
            refresh_at: requested_at.saturating_add(lifetime.saturating_sub(REFRESH_MARGIN.min(lifetime / 4))),
            expires_at: requested_at.saturating_add(lifetime),
        }
    }
}

/// The session of an agent. Tasks can share a session, so that concurrent calls cause only one refresh.
#[derive(Debug)]
pub struct Session<S> {
    api: Api,
    signer: S,
    agent: String,
    service: Option<String>,
    tokens: Mutex<Option<SessionTokens>>,
}

impl<S: Sign> Session<S> {
    /// Creates a session. `service` is the audience of the tokens. If `service` is `None`, the control plane chooses the
    /// audience: the service of the agent's last login if the agent holds a role there, else the only service at which
    /// the agent holds a role, else none.
    pub fn new(api: Api, signer: S, agent: String, service: Option<String>) -> Self {
        Self { api, signer, agent, service, tokens: Mutex::new(None) }
    }

    /// Uses the tokens of an earlier process.
    #[must_use]
    pub fn resume(mut self, tokens: Option<SessionTokens>) -> Self {
        self.tokens = Mutex::new(tokens);
        self
    }

    /// Returns valid tokens: the current tokens, or refreshed tokens, or the tokens of a new login.
    ///
    /// If a refresh fails because of an outage or a rate limit, returns the current tokens until they expire. If the
    /// response has a `Retry-After`, the next refresh waits for the time in `Retry-After`.
    pub async fn tokens(&self) -> Result<SessionTokens, ApiError> {
        let mut tokens = self.tokens.lock().await;
        let now = clock::now();
        let next = match tokens.as_mut() {
            Some(current) if now < current.refresh_at => return Ok(current.clone()),
            Some(current) => match self.refresh_or_login(current).await {
                Err(error) if error.is_outage() && now < current.expires_at => {
                    if let Some(delay) = error.retry_after() {
                        current.refresh_at = now.saturating_add(delay).min(current.expires_at);
                    }
                    return Ok(current.clone());
                }
                next => next?,
            },
            None => self.request_login().await?,
        };
        Ok(tokens.insert(next).clone())
    }

    /// Refreshes the tokens now, even if they are still valid.
    pub async fn refresh(&self) -> Result<SessionTokens, ApiError> {
        let mut tokens = self.tokens.lock().await;
        let next = match tokens.as_ref() {
            Some(current) => self.refresh_or_login(current).await?,
            None => self.request_login().await?,
        };
        Ok(tokens.insert(next).clone())
    }

    /// Logs in, even if the current tokens are still valid.
    pub async fn login(&self) -> Result<SessionTokens, ApiError> {
        let mut tokens = self.tokens.lock().await;
        let next = self.request_login().await?;
        Ok(tokens.insert(next).clone())
    }

    async fn refresh_or_login(&self, current: &SessionTokens) -> Result<SessionTokens, ApiError> {
        let requested_at = clock::now();
        match self.api.refresh_with(&current.refresh_token).await {
            Ok(tokens) => Ok(SessionTokens::from_response(requested_at, tokens)),
            // The session has the signer of the agent, so a new login needs no action of the user.
            Err(error) if error.ends_session() => self.request_login().await,
            Err(error) => Err(error),
        }
    }

    async fn request_login(&self) -> Result<SessionTokens, ApiError> {
        let requested_at = clock::now();
        let tokens = self.api.login(&self.signer, &self.agent, self.service.as_deref()).await?;
        Ok(SessionTokens::from_response(requested_at, tokens))
    }
}
