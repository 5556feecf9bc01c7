//! Issues tokens. All claims are read in the transaction that issues the tokens.

use crate::{
    domain::{
        agent::Agent,
        credential::Credential,
        quota::ExceededQuota,
        session::{RefreshToken, Session},
    },
    keyring::TokenSigner,
    operations::{Context, OperationError},
    store::{Conn, WriteTransaction, assignments, known_agents, roles, sessions, token_audiences, unused_agents},
};
use countersign_identity::{
    AgentId, Audience, Claims, Permission, RefreshId, Revision, RoleName, ServiceId, Timestamp, TokenId,
    names_and_permissions,
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
}

/// Ids and secret of the tokens, generated before the transaction, so that a rerun of the transaction issues the same
/// tokens.
pub(in crate::operations) struct PreparedTokens {
    token: TokenId,
    refresh: Credential<RefreshId>,
}

impl PreparedTokens {
    /// Generates the ids and the secret.
    pub(in crate::operations) fn new(context: &Context) -> Self {
        let refresh = Credential::new(context.new_id(RefreshId::from_bits), context.new_secret());
        Self { token: context.new_id(TokenId::from_bits), refresh }
    }

    /// Signs the claims and returns the token pair. Must be called after the transaction has committed.
    pub(in crate::operations) fn sign(
        self,
        context: &Context,
        unsigned_token: &UnsignedToken,
    ) -> Result<TokenPair, OperationError> {
        let access = unsigned_token.signer.sign(&unsigned_token.claims)?.into();
        Ok(TokenPair { access, refresh: self.refresh.reveal(), expires_in: context.config.access_token_lifetime })
    }
}

/// The claims of an access token, and the key that signs the token.
pub(in crate::operations) struct UnsignedToken {
    claims: Claims,
    signer: Arc<TokenSigner>,
}

/// The service that a token is bound to, and who chose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::operations) enum TokenAudience {
    /// The agent named the service, in this request or when it began the session.
    Named(ServiceId),
    /// The agent named no service, and this is its default service.
    Default(ServiceId),
    /// The agent named no service, and has no default service.
    Unbound,
}

impl TokenAudience {
    /// The service that the agent named; else the default service of the agent: the service of its last login that was for a
    /// service, if the agent still holds a role there, or else the only service at which the agent holds a role.
    pub(in crate::operations) async fn choose(
        conn: &mut Conn,
        named: Option<ServiceId>,
        agent: &Agent,
        now: Timestamp,
    ) -> Result<Self, OperationError> {
        if let Some(service) = named {
            return Ok(Self::Named(service));
        }
        if let Some(last) = agent.last_service
            && assignments::holds_role(conn, agent.id, last, now).await?
        {
            return Ok(Self::Default(last));
        }
        let only = assignments::find_only_service_with_role(conn, agent.id, now).await?;
        Ok(only.map_or(Self::Unbound, Self::Default))
    }

    /// The service; `None` for an unbound token.
    pub(in crate::operations) const fn service(self) -> Option<ServiceId> {
        match self {
            Self::Named(service) | Self::Default(service) => Some(service),
            Self::Unbound => None,
        }
    }

    /// The service that becomes the service of the agent's last login. A default service that only a role made replaces no
    /// service of an earlier login: otherwise, a stranger would keep the logins of an agent whose role lapsed for a moment.
    pub(in crate::operations) fn last_service(self, before: Option<ServiceId>) -> Option<ServiceId> {
        match self {
            Self::Named(service) => Some(service),
            Self::Default(service) => before.or(Some(service)),
            Self::Unbound => before,
        }
    }
}

/// Inserts the next refresh token of a session and builds the claims of an access token. The caller must lock the agent first,
/// and must then read the revision `rev` before all values of the claims and before the signing key.
pub(in crate::operations) async fn issue_tokens(
    tx: &mut WriteTransaction,
    context: &Context,
    prepared: &PreparedTokens,
    rev: Revision,
    (agent, session, audience): (&Agent, &Session, TokenAudience),
) -> Result<UnsignedToken, OperationError> {
    let now = tx.now();
    let refresh = RefreshToken {
        id: prepared.refresh.id(),
        session: session.id,
        secret: prepared.refresh.hash(),
        issued_at: now,
        used_at: None,
    };
    let service = audience.service();
    let expires_at = now.saturating_add(context.config.access_token_lifetime);
    sessions::insert_token(tx.conn(), &refresh, (service, expires_at)).await?;
    record_audience(tx, context, agent.id, (service, expires_at)).await?;
    if agent.registration.owner.is_none() && agent.last_seen_at.is_none() {
        unused_agents::remove(tx.conn(), agent.id).await?;
    }
    match audience {
        TokenAudience::Named(service) => {
            known_agents::record_contact(tx.conn(), agent.id, service, now).await?;
        }
        TokenAudience::Default(service) => {
            known_agents::extend_relation(tx.conn(), agent.id, service, now).await?;
        }
        TokenAudience::Unbound => {}
    }
    let effective = match service {
        Some(service) => effective_roles(tx.conn(), service, agent, now, expires_at).await?,
        None => EffectiveRoles::default(),
    };
    let claims = Claims {
        iss: context.config.issuer.clone(),
        sub: agent.id,
        aud: service.map_or(Audience::Unbound, Audience::Service).claim(&context.config.issuer),
        iat: now.seconds(),
        nbf: now.seconds(),
        exp: expires_at.seconds(),
        jti: prepared.token,
        sid: session.id,
        rev,
        name: agent.registration.name.to_string(),
        roles: effective.roles,
        permissions: effective.permissions,
        trust_score: agent.trust,
        until: effective.until,
    };
    // The signing key is read after all claims, so that a concurrent revocation of the signing key is noticed.
    let signer = context.keyring.current_signer(tx.conn(), now).await?;
    Ok(UnsignedToken { claims, signer })
}

/// Records the audience of a token, so that later changes of the agent are sent to its sidecars.
async fn record_audience(
    tx: &mut WriteTransaction,
    context: &Context,
    agent: AgentId,
    (service, expires_at): (Option<ServiceId>, Timestamp),
) -> Result<(), OperationError> {
    let (now, limit) = (tx.now(), context.config.quotas.audiences_per_agent);
    if token_audiences::record(tx.conn(), agent, (service, expires_at), (now, limit)).await? {
        Ok(())
    } else {
        Err(OperationError::QuotaExceeded(ExceededQuota::AudiencesPerAgent(limit)))
    }
}

/// Roles and permissions of an agent at a service, and the expiry of the roles that expire before the token.
#[derive(Default)]
struct EffectiveRoles {
    roles: Vec<RoleName>,
    permissions: Vec<Permission>,
    until: BTreeMap<RoleName, i64>,
}

async fn effective_roles(
    conn: &mut Conn,
    service: ServiceId,
    agent: &Agent,
    now: Timestamp,
    token_expires_at: Timestamp,
) -> Result<EffectiveRoles, OperationError> {
    let held = roles::list_held(conn, service, agent.id, now).await?;
    let expires_before_token = held.iter().filter_map(|(role, until)| {
        until.filter(|end| *end < token_expires_at).map(|end| (role.name.clone(), end.seconds()))
    });
    let until = expires_before_token.collect();
    let (roles, permissions) = names_and_permissions(held.iter().map(|(role, _)| role));
    Ok(EffectiveRoles { roles, permissions, until })
}
