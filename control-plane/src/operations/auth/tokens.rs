//! Access tokens: what a request may ask for, which service the token is for, and its signature.

use crate::{
    domain::session::RefreshToken,
    keyring::TokenSigner,
    operations::{Context, OperationError},
    store::{logins::LoginBasis, sessions},
};
use countersign_identity::{AgentId, Claims, Scope, ServiceId};
use secrecy::SecretString;
use std::time::Duration;

pub struct TokenPair {
    /// The access token, a signed JWT.
    pub access: SecretString,
    pub refresh: SecretString,
    /// Lifetime of the access token.
    pub expires_in: Duration,
    /// The permissions that the access token grants now, as a scope.
    pub scope: Option<String>,
}

/// What a request asks of its access token.
#[derive(Debug, Clone, Default)]
pub struct RequestedToken {
    /// The service that the token is for, if the request names one.
    pub service: Option<ServiceId>,
    /// The only permissions that the token may grant, if the request limits them.
    pub scope: Option<Scope>,
    /// Whether the token has the claim `scope` even if no scope limits it, as OAuth libraries of services expect (RFC 9068).
    pub always_has_scope_claim: bool,
}

impl TokenPair {
    /// Signs an access token, and returns it with the refresh token. Call this after the commit, so that no token exists without its
    /// record in the database.
    pub(super) fn sign(
        context: &Context,
        signer: &TokenSigner,
        claims: &Claims,
        refresh: &RefreshToken,
    ) -> Result<Self, OperationError> {
        Ok(Self {
            access: signer.sign(claims)?.into(),
            refresh: refresh.reveal(),
            expires_in: context.config.access_token_lifetime,
            scope: claims.scope.clone(),
        })
    }
}

/// The service that a token is bound to, and who chose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenAudience {
    /// The agent named the service, in this request or when it began the session.
    Named(ServiceId),
    /// The agent named no service, and this is its default service.
    Default(ServiceId),
    /// The agent named no service, and has no default service.
    Unbound,
}

impl TokenAudience {
    /// The audience in `basis`. `is_named`: this request names the service. A refresh that names no service gets a token for the service
    /// of its session. That may be the default service of the login, so it counts as a default here.
    pub(super) fn of(basis: &LoginBasis, is_named: bool) -> Self {
        match basis.audience {
            Some(service) if is_named => Self::Named(service),
            Some(service) => Self::Default(service),
            None => Self::Unbound,
        }
    }

    /// The service; `None` for an unbound token.
    pub(super) const fn service(self) -> Option<ServiceId> {
        match self {
            Self::Named(service) | Self::Default(service) => Some(service),
            Self::Unbound => None,
        }
    }

    /// The service to store as the service of the agent's last login. A default service does not replace `before`: if the agent
    /// loses its role at `before` for a moment, a stranger's service may become the default, but must not remain the default.
    pub(super) fn last_service(self, before: Option<ServiceId>) -> Option<ServiceId> {
        match self {
            Self::Named(service) => Some(service),
            Self::Default(service) => before.or(Some(service)),
            Self::Unbound => before,
        }
    }
}

/// Finds the agent of the session that a refresh token names. Does not verify the secret, so use the result only to count requests.
pub async fn find_refresh_token_agent(context: &Context, token: &str) -> Result<Option<AgentId>, OperationError> {
    let Some(token) = RefreshToken::parse(token) else { return Ok(None) };
    let session = context.store.read_one(async |conn| sessions::find(conn, token.session()).await).await?;
    Ok(session.map(|session| session.agent))
}
