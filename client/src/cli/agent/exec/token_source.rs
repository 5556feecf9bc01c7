//! Obtains the tokens that the local token endpoint returns: one session of the agent for each scope that the program requests.
//!
//! We do not use the session that the profile stores: other commands may use its refresh token while the program runs, and a
//! refresh token works only once. Invariants: the number of sessions is limited, and the sessions end when the program ends.

use crate::cli::login::TokenTarget;
use countersign_client::{Api, ApiError, LoginMethod, Scope, Session, SessionTokens, Signer, TokenRequest};
use std::{sync::Arc, time::Duration};
use tokio::{sync::Mutex, time::timeout};

/// The maximum number of sessions. A program requests few different scopes.
const MAX_SESSIONS: usize = 16;

/// How long the command tries to end its sessions after the program has ended.
const REVOCATION_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum NoTokens {
    #[error(
        "a program can request at most {MAX_SESSIONS} different scopes: request those that belong together as one scope"
    )]
    TooManyScopes,
    /// The control plane returned no tokens.
    #[error(transparent)]
    Api(#[from] ApiError),
}

pub struct TokenSource {
    api: Api,
    signer: Arc<Signer>,
    agent: String,
    /// How a session logs in if the program requests no scope.
    method: LoginMethod,
    /// The scope and the resource that limit all tokens.
    pub limits: TokenRequest,
    sessions: Mutex<Vec<ScopedSession>>,
}

/// A session of the agent, with the scope that the program requested; `None` for the scope of the command.
struct ScopedSession {
    scope: Option<Scope>,
    session: Arc<Session<Arc<Signer>>>,
}

impl TokenSource {
    /// Creates a source of tokens for this target.
    pub fn new(api: Api, signer: Signer, agent: String, target: &TokenTarget) -> Self {
        let limits = TokenRequest { resource: target.resource().map(str::to_owned), scope: target.scope().cloned() };
        Self { api, signer: Arc::new(signer), agent, method: target.method(), limits, sessions: Mutex::default() }
    }

    /// Returns tokens that do not expire soon. They have the scope `scope`; if it is `None`, the scope of the command.
    pub async fn tokens(&self, scope: Option<Scope>) -> Result<SessionTokens, NoTokens> {
        let session = self.session(scope).await.ok_or(NoTokens::TooManyScopes)?;
        Ok(session.tokens().await?)
    }

    /// Ends all sessions. Sessions that cannot be ended in time expire by themselves.
    pub async fn revoke_all(&self) {
        let sessions = std::mem::take(&mut *self.sessions.lock().await);
        let revoke = async {
            for ScopedSession { session, .. } in sessions {
                let _ignored = session.revoke().await;
            }
        };
        let _ignored = timeout(REVOCATION_TIMEOUT, revoke).await;
    }

    /// Finds or creates the session for a scope; `None` if there are too many sessions already.
    async fn session(&self, scope: Option<Scope>) -> Option<Arc<Session<Arc<Signer>>>> {
        let mut sessions = self.sessions.lock().await;
        if let Some(existing) = sessions.iter().find(|existing| existing.scope == scope) {
            return Some(existing.session.clone());
        }
        if sessions.len() == MAX_SESSIONS {
            return None;
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
        Some(session)
    }
}
