//! Tokens: their ids and secrets, their audience, their claims and their signature.

use crate::{
    domain::{
        agent::Agent,
        credential::{Credential, SecretHash},
        session::Session,
    },
    keyring::TokenSigner,
    operations::{Context, OperationError},
    store::roles::HeldRole,
};
use countersign_identity::{
    Audience, Claims, RefreshId, Revision, RoleName, Scope, ServiceId, Timestamp, TokenId, names_and_permissions,
    scope::scope_text,
};
use secrecy::SecretString;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// An access token and a refresh token.
pub struct TokenPair {
    /// The access token, a signed JWT.
    pub access: SecretString,
    /// The refresh token.
    pub refresh: SecretString,
    /// Lifetime of the access token.
    pub expires_in: Duration,
    /// The permissions that the access token grants now, as a scope.
    pub scope: String,
}

/// Ids and secret of the tokens, generated before the transaction, so that a rerun of the transaction issues the same
/// tokens.
pub(super) struct PreparedTokens {
    token: TokenId,
    refresh: Credential<RefreshId>,
}

impl PreparedTokens {
    /// Generates the ids and the secret.
    pub(super) fn new(context: &Context) -> Self {
        let refresh = Credential::new(context.new_id(RefreshId::from_bits), context.new_secret());
        Self { token: context.new_id(TokenId::from_bits), refresh }
    }

    /// The ids and the hash, without the secret.
    pub(super) fn ids(&self) -> TokenIds {
        TokenIds { token: self.token, refresh: self.refresh.id(), refresh_hash: self.refresh.hash() }
    }

    /// Signs the claims and returns the token pair. Must be called after the transaction has committed.
    pub(super) fn sign(self, context: &Context, unsigned_token: &UnsignedToken) -> Result<TokenPair, OperationError> {
        let access = unsigned_token.signer.sign(&unsigned_token.claims)?.into();
        let (refresh, scope) = (self.refresh.reveal(), scope_text(&unsigned_token.claims.permissions));
        Ok(TokenPair { access, refresh, expires_in: context.config.access_token_lifetime, scope })
    }
}

/// What the transaction needs of [`PreparedTokens`].
pub(super) struct TokenIds {
    /// The id of the access token.
    pub token: TokenId,
    /// The id of the refresh token.
    pub refresh: RefreshId,
    /// The hash of the secret of the refresh token.
    pub refresh_hash: SecretHash,
}

/// What a request asks of its access token.
#[derive(Debug, Clone, Default)]
pub struct RequestedToken {
    /// The service that the token is for, if the request names one.
    pub service: Option<ServiceId>,
    /// The permissions beyond which the token grants nothing, if the request limits them.
    pub scope: Option<Scope>,
    /// Whether the token has the claim `scope` even if no scope limits it, as OAuth libraries of services expect (RFC 9068).
    pub states_scope: bool,
}

/// The claims of an access token, and the key that signs the token.
pub(in crate::operations) struct UnsignedToken {
    pub(super) claims: Claims,
    pub(super) signer: Arc<TokenSigner>,
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
    /// The service; `None` for an unbound token.
    pub(super) const fn service(self) -> Option<ServiceId> {
        match self {
            Self::Named(service) | Self::Default(service) => Some(service),
            Self::Unbound => None,
        }
    }

    /// The service that becomes the service of the agent's last login. A default service that only a role made replaces no
    /// service of an earlier login: otherwise, a stranger would keep the logins of an agent whose role lapsed for a moment.
    pub(super) fn last_service(self, before: Option<ServiceId>) -> Option<ServiceId> {
        match self {
            Self::Named(service) => Some(service),
            Self::Default(service) => before.or(Some(service)),
            Self::Unbound => before,
        }
    }
}

/// Builds the claims of an access token, with the roles that the agent holds at the service of the token, and with those of their
/// permissions that are in the scope.
pub(super) fn build_claims(
    context: &Context,
    (token, rev): (TokenId, Revision),
    (agent, session, audience): (&Agent, &Session, TokenAudience),
    (held, scope, states_scope): (&[HeldRole], Option<&Scope>, bool),
    (now, expires_at): (Timestamp, Timestamp),
) -> Claims {
    let expires_before_token = |(role, until): &HeldRole| -> Option<(RoleName, i64)> {
        until.filter(|end| *end < expires_at).map(|end| (role.name.clone(), end.seconds()))
    };
    let until: BTreeMap<_, _> = held.iter().filter_map(expires_before_token).collect();
    let (roles, mut permissions) = names_and_permissions(held.iter().map(|(role, _)| role));
    let issuer = &context.config.issuer;
    let aud = audience.service().map_or(Audience::Unbound, Audience::Service).claim(issuer);
    permissions.retain(|permission| scope.is_none_or(|scope| scope.contains(permission)));
    Claims {
        iss: issuer.clone(),
        sub: agent.id,
        client_id: Some(agent.id),
        aud: aud.into(),
        iat: now.seconds(),
        nbf: now.seconds(),
        exp: expires_at.seconds(),
        jti: token,
        sid: session.id,
        rev,
        name: agent.registration.name.to_string(),
        roles,
        scope: (states_scope || scope.is_some()).then(|| scope_text(&permissions)),
        permissions,
        trust_score: agent.trust,
        until,
        requested_scope: scope.cloned(),
    }
}
