//! An agent's session: tokens are refreshed before they expire, and a new login replaces a session that ended.
//!
//! Depends on [`crate::api`]. [`crate::profile`] stores the [`SessionTokens`] between processes.

use crate::{Api, ApiError, Sign, Tokens, clock};
use countersign_identity::Timestamp;
use secrecy::SecretString;
use std::time::Duration;
use tokio::sync::Mutex;

/// A token is refreshed this long before it expires, or after three quarters of a short lifetime.
const REFRESH_MARGIN: Duration = Duration::from_mins(1);

/// A token pair with its times by the clock of this machine.
#[derive(Debug, Clone)]
pub struct SessionTokens {
    /// The access token, a JWT.
    pub access_token: SecretString,
    /// The refresh token, which can be used once.
    pub refresh_token: SecretString,
    /// From this time on the access token is refreshed before it is used.
    pub refresh_at: Timestamp,
    /// The access token expires at this time.
    pub expires_at: Timestamp,
}

impl SessionTokens {
    /// Counts the lifetime from the time of the request, which is before the time of issue.
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

/// The session of one agent. Share it between tasks: concurrent callers cause one refresh.
#[derive(Debug)]
pub struct Session<S> {
    api: Api,
    signer: S,
    agent: String,
    service: Option<String>,
    tokens: Mutex<Option<SessionTokens>>,
}

impl<S: Sign> Session<S> {
    /// Creates a session. `service` is the audience of the tokens; without it, that of the agent's oldest role.
    pub fn new(api: Api, signer: S, agent: String, service: Option<String>) -> Self {
        Self { api, signer, agent, service, tokens: Mutex::new(None) }
    }

    /// Continues with the tokens of an earlier process.
    #[must_use]
    pub fn resume(mut self, tokens: Option<SessionTokens>) -> Self {
        self.tokens = Mutex::new(tokens);
        self
    }

    /// Valid tokens: the current ones, else refreshed ones, else those of a new login.
    ///
    /// If the refresh fails because of an outage or a rate limit, the current token is returned until it expires. After
    /// a response with `Retry-After`, the next refresh waits for that time.
    pub async fn tokens(&self) -> Result<SessionTokens, ApiError> {
        let mut tokens = self.tokens.lock().await;
        let now = clock::now();
        let next = match tokens.as_mut() {
            Some(current) if now < current.refresh_at => return Ok(current.clone()),
            Some(current) => match self.refreshed(current).await {
                Err(error) if error.is_outage() && now < current.expires_at => {
                    if let Some(wait) = error.retry_after() {
                        current.refresh_at = now.saturating_add(wait).min(current.expires_at);
                    }
                    return Ok(current.clone());
                }
                next => next?,
            },
            None => self.new_login().await?,
        };
        Ok(tokens.insert(next).clone())
    }

    /// Refreshes the tokens now, whether they are due or not.
    pub async fn refresh(&self) -> Result<SessionTokens, ApiError> {
        let mut tokens = self.tokens.lock().await;
        let next = match tokens.as_ref() {
            Some(current) => self.refreshed(current).await?,
            None => self.new_login().await?,
        };
        Ok(tokens.insert(next).clone())
    }

    /// Logs in, also if the current tokens are valid.
    pub async fn login(&self) -> Result<SessionTokens, ApiError> {
        let mut tokens = self.tokens.lock().await;
        let next = self.new_login().await?;
        Ok(tokens.insert(next).clone())
    }

    async fn refreshed(&self, current: &SessionTokens) -> Result<SessionTokens, ApiError> {
        let requested_at = clock::now();
        match self.api.refresh_with(&current.refresh_token).await {
            Ok(tokens) => Ok(SessionTokens::from_response(requested_at, tokens)),
            // The key is available, so a new login needs no action of the user.
            Err(error) if error.ends_session() => self.new_login().await,
            Err(error) => Err(error),
        }
    }

    async fn new_login(&self) -> Result<SessionTokens, ApiError> {
        let requested_at = clock::now();
        let tokens = self.api.login(&self.signer, &self.agent, self.service.as_deref()).await?;
        Ok(SessionTokens::from_response(requested_at, tokens))
    }
}
