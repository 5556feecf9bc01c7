//! The session of an agent: refreshes tokens before they expire, and logs in again if the session has ended.
//!
//! [`crate::profile`] stores the [`SessionTokens`] between processes. Invariant: a session asks only for the resource and the scope
//! that its creator chose. If the creator chose no resource, [`Session::tokens_after_refusal`] may choose a service.

use crate::{Api, ApiError, Scope, Sign, TokenRequest, Tokens, clock};
use countersign_identity::{Reason, Timestamp};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
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
    /// After this time, the access token is refreshed before its next use.
    pub refresh_at: Timestamp,
    /// The time at which the access token expires.
    pub expires_at: Timestamp,
    /// The permissions that the tokens are limited to; `None` if the control plane did not return them.
    pub scope: Option<Scope>,
}

/// How a session logs in and refreshes, and what its tokens are for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoginMethod {
    /// Signs a challenge. The tokens have all permissions of the agent.
    Challenge {
        /// The id of the service that is the audience of the tokens. If `None`, the control plane chooses the audience.
        service: Option<String>,
    },
    /// Signs a client assertion for the OAuth token endpoint (RFC 7523).
    OAuth(TokenRequest),
}

impl LoginMethod {
    /// The service or resource that the tokens are for; `None` if the control plane chooses it.
    fn target(&self) -> Option<&str> {
        match self {
            Self::Challenge { service } => service.as_deref(),
            Self::OAuth(request) => request.resource.as_deref(),
        }
    }
}

impl SessionTokens {
    /// Counts the refresh and expiry times from the request. The token is issued later, so these times are never too late.
    fn from_response(requested_at: Timestamp, tokens: Tokens) -> Self {
        let lifetime = Duration::from_secs(tokens.expires_in);
        Self {
            access_token: tokens.access_token,
            refresh_token: tokens.refresh_token,
            refresh_at: requested_at.saturating_add(lifetime.saturating_sub(REFRESH_MARGIN.min(lifetime / 4))),
            expires_at: requested_at.saturating_add(lifetime),
            scope: tokens.scope,
        }
    }
}

/// The session of an agent. Tasks can share a session, so that concurrent calls cause only one refresh.
#[derive(Debug)]
pub struct Session<S> {
    api: Api,
    signer: S,
    agent: String,
    method: LoginMethod,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tokens: Option<SessionTokens>,
    /// The service for which [`Session::tokens_after_refusal`] requested the tokens; `None` for other tokens.
    requested_service: Option<String>,
}

impl<S: Sign> Session<S> {
    /// Creates a session that logs in with a challenge. `service` is the audience of the tokens. If it is `None`, the control plane
    /// chooses the audience: the service of the agent's last login if the agent holds a role there, else the only service at which the
    /// agent holds a role, else none.
    pub fn new(api: Api, signer: S, agent: String, service: Option<String>) -> Self {
        Self::with_method(api, signer, agent, LoginMethod::Challenge { service })
    }

    /// Creates a session that logs in and refreshes with this method.
    pub fn with_method(api: Api, signer: S, agent: String, method: LoginMethod) -> Self {
        Self { api, signer, agent, method, state: Mutex::default() }
    }

    /// Uses the tokens that an earlier process has stored, if there are any.
    #[must_use]
    pub fn resume(mut self, tokens: Option<SessionTokens>) -> Self {
        self.state = Mutex::new(State { tokens, requested_service: None });
        self
    }

    /// Returns valid tokens: the current tokens, or refreshed tokens, or the tokens of a new login.
    ///
    /// If a refresh fails because of an outage or a rate limit, returns the current tokens until they expire. The next refresh
    /// waits as long as the header `Retry-After` in the refusal asks.
    pub async fn tokens(&self) -> Result<SessionTokens, ApiError> {
        let mut state = self.state.lock().await;
        let now = clock::now();
        match state.tokens.clone() {
            Some(current) if now < current.refresh_at => Ok(current),
            Some(mut current) => match self.refresh_or_login(&mut state, &current).await {
                Err(error) if error.is_outage() && now < current.expires_at => {
                    if let Some(delay) = error.retry_after() {
                        current.refresh_at = now.saturating_add(delay).min(current.expires_at);
                        state.tokens = Some(current.clone());
                    }
                    Ok(current)
                }
                result => result,
            },
            None => self.log_in_for(&mut state, None).await,
        }
    }

    /// Refreshes the tokens now, even if they are still valid.
    pub async fn refresh(&self) -> Result<SessionTokens, ApiError> {
        let mut state = self.state.lock().await;
        match state.tokens.clone() {
            Some(current) => self.refresh_or_login(&mut state, &current).await,
            None => self.log_in_for(&mut state, None).await,
        }
    }

    /// Logs in, even if the current tokens are still valid.
    pub async fn login(&self) -> Result<SessionTokens, ApiError> {
        self.log_in_for(&mut *self.state.lock().await, None).await
    }

    /// Ends the session at the control plane, which refuses its tokens from then on. Forgets the tokens even after an error.
    pub async fn revoke(&self) -> Result<(), ApiError> {
        let Some(tokens) = self.state.lock().await.tokens.take() else { return Ok(()) };
        self.api.revoke_token(&tokens.refresh_token).await.map(drop)
    }

    /// After `service` has refused a request because of the audience of its token, returns tokens with which the caller can send
    /// the request again, or `None` if no other tokens would help.
    ///
    /// A session without a service lets the control plane choose the audience, which can be another service than the agent calls.
    /// `refusal` is the JSON body of the refusal: its reason is `token_audience_mismatch` or `token_unbound`, and
    /// `details.required.serviceId` names the service. A refusal that names another service is ignored: a hostile service could
    /// make the agent request a token for that service, and use it there.
    ///
    /// The session logs in for the service once. If the service refuses the tokens of that login too, the result is `None`. An
    /// agent that calls several services needs a session for each of them.
    pub async fn tokens_after_refusal(
        &self,
        refused_token: &SecretString,
        refusal: &Value,
        service: &str,
    ) -> Result<Option<SessionTokens>, ApiError> {
        if self.method.target().is_some() || required_service(refusal) != Some(service) {
            return Ok(None);
        }
        let mut state = self.state.lock().await;
        let is_requested = state.requested_service.as_deref() == Some(service);
        match &state.tokens {
            // Another task has logged in for the service, after the caller sent its request.
            Some(current) if is_requested && current.access_token.expose_secret() != refused_token.expose_secret() => {
                Ok(Some(current.clone()))
            }
            Some(_) if is_requested => Ok(None),
            _ => self.log_in_for(&mut state, Some(service)).await.map(Some),
        }
    }

    async fn refresh_or_login(&self, state: &mut State, current: &SessionTokens) -> Result<SessionTokens, ApiError> {
        let requested_at = clock::now();
        let refreshed = match &self.method {
            LoginMethod::Challenge { .. } => self.api.refresh(&current.refresh_token).await,
            LoginMethod::OAuth(request) => {
                let request = for_service(request, state.requested_service.as_deref());
                self.api.refresh_over_oauth(&current.refresh_token, &request).await
            }
        };
        match refreshed {
            Ok(tokens) => Ok(state.tokens.insert(SessionTokens::from_response(requested_at, tokens)).clone()),
            // The session logs in without the user, and forgets `requested_service`: the control plane chooses the audience again.
            Err(error) if error.ends_session() || is_scope_refused(&error) => self.log_in_for(state, None).await,
            Err(error) => Err(error),
        }
    }

    /// Logs in for `service`; if it is `None`, for the service or resource of the session, if there is one.
    async fn log_in_for(&self, state: &mut State, service: Option<&str>) -> Result<SessionTokens, ApiError> {
        let requested_at = clock::now();
        let tokens = match &self.method {
            LoginMethod::Challenge { service: default } => {
                let audience = service.or(default.as_deref());
                self.api.login(&self.signer, &self.agent, audience).await?
            }
            LoginMethod::OAuth(request) => {
                self.api.login_over_oauth(&self.signer, &self.agent, &for_service(request, service)).await?
            }
        };
        state.requested_service = service.map(str::to_owned);
        Ok(state.tokens.insert(SessionTokens::from_response(requested_at, tokens)).clone())
    }
}

/// The request for this service, or the unchanged request if `service` is `None`.
fn for_service(request: &TokenRequest, service: Option<&str>) -> TokenRequest {
    let resource = service.map(str::to_owned).or_else(|| request.resource.clone());
    TokenRequest { resource, scope: request.scope.clone() }
}

/// Whether a refresh was refused because it requests more than the login granted (RFC 6749, section 6). A login grants less than requested
/// if the agent has fewer permissions at that time.
fn is_scope_refused(error: &ApiError) -> bool {
    matches!(error, ApiError::Refused { code, .. } if code == "invalid_scope")
}

/// The service that a refusal requires as the audience; `None` if the token was refused for another reason.
fn required_service(refusal: &Value) -> Option<&str> {
    // An MCP service returns the details in an error of JSON-RPC.
    let details = refusal.pointer("/error/details").or_else(|| refusal.pointer("/error/data"))?;
    let reason = details.get("reason")?.as_str()?;
    let service = details.pointer("/required/serviceId")?.as_str()?;
    let is_wrong_audience = |known: &Reason| known.is_wrong_audience() && known.as_str() == reason;
    Reason::ALL.iter().any(is_wrong_audience).then_some(service)
}
