//! An agent's login over time: tokens replaced before they expire, and a login that died begun anew.
//!
//! Neighbours: [`crate::api`] makes the calls, [`crate::profile`] keeps what is [`Held`] between processes.

use crate::{Api, ApiError, Sign, Tokens, clock};
use countersign_identity::Timestamp;
use secrecy::SecretString;
use std::time::Duration;
use tokio::sync::Mutex;

/// A token is replaced this long before it expires, or at three quarters of a life that is short.
const MARGIN: Duration = Duration::from_mins(1);

/// Tokens, and until when they are good by the clock of this machine.
#[derive(Debug, Clone)]
pub struct Held {
    /// The access token, a JWT.
    pub access_token: SecretString,
    /// Good for one refresh.
    pub refresh_token: SecretString,
    /// From here on it is replaced before it is used.
    pub refresh_at: Timestamp,
    /// From here on it is dead.
    pub expires_at: Timestamp,
}

impl Held {
    /// Tokens that were issued between `asked` and now.
    fn since(asked: Timestamp, tokens: Tokens) -> Self {
        let life = Duration::from_secs(tokens.expires_in);
        Self {
            access_token: tokens.access_token,
            refresh_token: tokens.refresh_token,
            refresh_at: asked.saturating_add(life.saturating_sub(MARGIN.min(life / 4))),
            expires_at: asked.saturating_add(life),
        }
    }
}

/// One agent's login, for as long as it is needed. To be shared: callers at once cause one refresh.
#[derive(Debug)]
pub struct Session<S> {
    api: Api,
    signer: S,
    agent: String,
    service: Option<String>,
    held: Mutex<Option<Held>>,
}

impl<S: Sign> Session<S> {
    /// A session of this agent; `service` is whom the tokens are for, left out: that of its oldest role.
    pub fn new(api: Api, signer: S, agent: String, service: Option<String>) -> Self {
        Self { api, signer, agent, service, held: Mutex::new(None) }
    }

    /// Goes on with tokens of an earlier process.
    pub fn resume(mut self, held: Option<Held>) -> Self {
        self.held = Mutex::new(held);
        self
    }

    /// Tokens that are good now: those held, else refreshed, else of a new login.
    ///
    /// While the control plane is out, or says that there were too many calls, a token that still lives is given though
    /// its replacement is due; if it says when to come back, nothing is asked before.
    pub async fn tokens(&self) -> Result<Held, ApiError> {
        let mut held = self.held.lock().await;
        let now = clock::now();
        let next = match held.as_mut() {
            Some(current) if now < current.refresh_at => return Ok(current.clone()),
            Some(current) => match self.replaced(current).await {
                Err(error) if error.is_outage() && now < current.expires_at => {
                    if let Some(wait) = error.retry_after() {
                        current.refresh_at = now.saturating_add(wait).min(current.expires_at);
                    }
                    return Ok(current.clone());
                }
                next => next?,
            },
            None => self.logged_in().await?,
        };
        Ok(held.insert(next).clone())
    }

    /// Replaces the tokens now, due or not.
    pub async fn refresh(&self) -> Result<Held, ApiError> {
        let mut held = self.held.lock().await;
        let next = match held.as_ref() {
            Some(current) => self.replaced(current).await?,
            None => self.logged_in().await?,
        };
        Ok(held.insert(next).clone())
    }

    /// Logs in, whatever is held.
    pub async fn login(&self) -> Result<Held, ApiError> {
        let mut held = self.held.lock().await;
        let next = self.logged_in().await?;
        Ok(held.insert(next).clone())
    }

    async fn replaced(&self, current: &Held) -> Result<Held, ApiError> {
        let asked = clock::now();
        match self.api.refresh_with(&current.refresh_token).await {
            Ok(tokens) => Ok(Held::since(asked, tokens)),
            // The key is here, so a dead refresh token is no reason to trouble anybody.
            Err(error) if error.ends_login() => self.logged_in().await,
            Err(error) => Err(error),
        }
    }

    async fn logged_in(&self) -> Result<Held, ApiError> {
        let asked = clock::now();
        let tokens = self.api.login(&self.signer, &self.agent, self.service.as_deref()).await?;
        Ok(Held::since(asked, tokens))
    }
}
