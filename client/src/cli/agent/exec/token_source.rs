//! The tokens of the endpoint: a session of the agent for each scope that the program requests.
//!
//! The sessions are not the stored session of the profile: its refresh token can be used once, and other commands use it
//! while the program runs. Invariant: the number of sessions is limited.

use super::token_request::Limits;
use crate::cli::login::TokenTarget;
use countersign_client::{Api, ApiError, LoginMethod, Scope, Session, SessionTokens, Signer, TokenRequest};
use std::sync::Arc;
use tokio::sync::Mutex;

/// The number of sessions that are kept. A program requests few different scopes.
const MAX_SESSIONS: usize = 16;

/// Obtains tokens of an agent.
pub struct TokenSource {
    api: Api,
    signer: Arc<Signer>,
    agent: String,
    /// The login without a narrower scope.
    method: LoginMethod,
    limits: Limits,
    sessions: Mutex<Vec<ScopedSession>>,
}

/// A session with a narrower scope than that of the command, or with the scope of the command (`None`).
struct ScopedSession {
    scope: Option<Scope>,
    session: Arc<Session<Arc<Signer>>>,
}

impl TokenSource {
    /// Creates a source of tokens that are at most for this target.
    pub fn new(api: Api, signer: Signer, agent: String, target: &TokenTarget) -> Self {
        let limits = Limits { resource: target.resource().map(str::to_owned), scope: target.scope().cloned() };
        let (method, signer) = (target.method(), Arc::new(signer));
        Self { api, signer, agent, method, limits, sessions: Mutex::default() }
    }

    /// What all tokens are limited to.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns tokens that are not about to expire, with a narrower scope if one is given.
    pub async fn tokens(&self, scope: Option<Scope>) -> Result<SessionTokens, ApiError> {
        let session = self.session(scope).await;
        session.tokens().await
    }

    async fn session(&self, scope: Option<Scope>) -> Arc<Session<Arc<Signer>>> {
        let mut sessions = self.sessions.lock().await;
        if let Some(existing) = sessions.iter().find(|existing| existing.scope == scope) {
            return existing.session.clone();
        }
        if sessions.len() == MAX_SESSIONS {
            sessions.remove(0);
        }
        let method = match &scope {
            None => self.method.clone(),
            Some(scope) => {
                LoginMethod::OAuth(TokenRequest { resource: self.limits.resource.clone(), scope: Some(scope.clone()) })
            }
        };
        let session = Session::with_method(self.api.clone(), self.signer.clone(), self.agent.clone(), method);
        let session = Arc::new(session);
        sessions.push(ScopedSession { scope, session: session.clone() });
        session
    }
}
