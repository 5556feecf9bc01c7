//! What logins and refreshes have in common: both read the agent and its roles, and issue an access token.

use super::tokens::TokenAudience;
use crate::{
    domain::{
        quota::{AUDIENCES_PER_AGENT, ExceededQuota},
        session::Session,
        unbound_roles::RoleAtService,
    },
    keyring::{KeyringError, TokenSigner},
    operations::{Context, OperationError, signing_keys::published_keys},
    store::{
        Conn, StoreError, WriteTransaction, agents,
        known_agents::{self, CONTACT_PRECISION},
        logins::{self, IssueRecord, LoginAgent, LoginBasis, LoginQuery},
        roles::HeldRole,
        token_audiences::{self, RECORDED_BEYOND_EXPIRY},
        unbound_roles,
    },
};
use countersign_identity::{
    AgentId, Audience, Claims, Grants, KeyedGrant, RoleName, Scope, ServiceId, Timestamp, TokenId,
    names_and_permissions, scope::scope_text,
};
use std::sync::Arc;

/// An id that no service has. Its key makes the padding in the grants of unbound tokens.
const NO_SERVICE: ServiceId = ServiceId::from_bits(0);

/// Locks an agent until the transaction ends, and reads what a login or refresh depends on.
///
/// Every change of the agent locks the agent first, too. A later change finds the audience of our token, so the sidecars of this
/// service receive the change. An earlier change is in what we read, and our token has its revision or a later one.
pub(super) async fn lock_and_read(tx: &mut WriteTransaction, query: &LoginQuery) -> Result<LoginBasis, StoreError> {
    let now = tx.now();
    agents::lock(tx.conn(), query.agent).await?;
    logins::read(tx.conn(), query, now).await
}

/// Reads what a login or refresh depends on now.
pub(super) async fn read_basis(context: &Context, query: &LoginQuery) -> Result<LoginBasis, StoreError> {
    let now = context.store.now();
    context.store.read_one(async |conn: &mut Conn| logins::read(conn, query, now).await).await
}

/// Lists the roles for the grants of an unbound token; none for a token for a service. Read `basis` before: the roles may be of a later
/// revision than the token, and sidecars then replace them by the changes in between.
pub(super) async fn list_unbound_roles(conn: &mut Conn, basis: &LoginBasis) -> Result<Vec<RoleAtService>, StoreError> {
    match &basis.agent {
        Some(agent) if basis.audience.is_none() => unbound_roles::list(conn, agent.id, basis.at).await,
        _ => Ok(Vec::new()),
    }
}

/// Like [`list_unbound_roles`], outside of a transaction.
pub(super) async fn read_unbound_roles(
    context: &Context,
    basis: &LoginBasis,
) -> Result<Vec<RoleAtService>, StoreError> {
    // A token for a service needs no connection.
    if basis.audience.is_some() {
        return Ok(Vec::new());
    }
    context.store.read_one(async |conn: &mut Conn| list_unbound_roles(conn, basis).await).await
}

/// Checks the quota of audiences of an agent whose lock the transaction holds. An audience with live tokens is always allowed.
pub(super) async fn check_audiences(
    tx: &mut WriteTransaction,
    agent: AgentId,
    basis: &LoginBasis,
) -> Result<(), OperationError> {
    if basis.audience_recorded_until.is_none_or(|until| until <= basis.at)
        && token_audiences::has_at_least(tx.conn(), agent, AUDIENCES_PER_AGENT, basis.at).await?
    {
        return Err(OperationError::QuotaExceeded(ExceededQuota::AudiencesPerAgent));
    }
    Ok(())
}

/// Finds the key that signs now. We read the keys after the call begins, so a key that was revoked before the call does not sign.
pub(super) async fn find_signer(context: &Context) -> Result<Arc<TokenSigner>, OperationError> {
    if let Some(signer) = context.keyring.cached_signer(&published_keys(context).await?, context.now()) {
        return Ok(signer);
    }
    let mut read = context.store.read().await?;
    context.keyring.current_signer(read.conn(), context.now()).await.map_err(|error| match error {
        KeyringError::Store(error) => OperationError::from(error),
        error => OperationError::Keyring(Arc::new(error)),
    })
}

/// What an access token is issued for: its agent, its session, its service and its scope.
pub(super) struct Grant<'a> {
    /// The agent of `basis`.
    pub agent: &'a LoginAgent,
    pub session: &'a Session,
    /// The service of the token, and who chose it.
    pub audience: TokenAudience,
    /// If set, the token grants only these permissions of the agent's roles. It is the scope of the session, or a narrower one that a
    /// refresh requests. The refresh does not change the scope of the session.
    pub scope: Option<&'a Scope>,
    /// Whether the token has the claim `scope` even if no scope limits it.
    pub always_has_scope_claim: bool,
    pub basis: &'a LoginBasis,
    /// The roles for the grants of an unbound token.
    pub unbound_roles: &'a [RoleAtService],
    /// The service of the agent's last login, which may be this login.
    pub last_service: Option<ServiceId>,
}

impl Grant<'_> {
    /// Returns the claims of the token, and what the caller must write to the database about it. With this record, the sidecars of the
    /// service receive later changes of the agent.
    pub(super) fn issue(&self, context: &Context, id: TokenId) -> (Claims, IssueRecord) {
        let (issued_at, audience) = (self.basis.at, self.audience.service());
        let expires_at = issued_at.saturating_add(context.config.access_token_lifetime);
        let is_recorded = self.basis.audience_recorded_until.is_some_and(|until| until >= expires_at);
        let recorded_until = (!is_recorded).then(|| expires_at.saturating_add(RECORDED_BEYOND_EXPIRY));
        let contact = audience.filter(|_| self.is_new_contact());
        let record = IssueRecord { issued_at, last_service: self.last_service, audience, recorded_until, contact };
        let claims = self.claims(context, id, expires_at);
        let claims = if audience.is_some() { claims } else { self.add_grants(context, claims) };
        (claims, record)
    }

    /// Whether we record a contact, which makes the agent known to the service. If the agent did not name the service, we only
    /// renew an existing contact: a stranger may have made its service the default one, by giving the agent a role.
    fn is_new_contact(&self) -> bool {
        let (last, now) = (self.basis.contacted_at, self.basis.at);
        let is_known = last.is_some_and(|at| at > known_agents::forgotten_until(now));
        let counts = match self.audience {
            TokenAudience::Named(_) => true,
            TokenAudience::Default(_) => is_known,
            TokenAudience::Unbound => false,
        };
        counts && last.is_none_or(|at| at.saturating_add(CONTACT_PRECISION) <= now)
    }

    /// Adds the grants to the claims of an unbound token.
    fn add_grants(&self, context: &Context, claims: Claims) -> Claims {
        let secret = &context.agent_hash_secret;
        let keyed = |role: &RoleAtService| KeyedGrant { key: secret.key_of(role.service), grant: role.grant };
        claims.with_grants(self.unbound_roles.iter().map(keyed), &secret.key_of(NO_SERVICE))
    }

    /// The claims of the token, with the agent's roles at the service, and the permissions of these roles as far as the scope has them.
    fn claims(&self, context: &Context, id: TokenId, expires_at: Timestamp) -> Claims {
        let Self { agent, session, audience, scope, always_has_scope_claim, basis, .. } = *self;
        let expires_before_token = |role: &HeldRole| -> Option<(RoleName, i64)> {
            role.until.filter(|end| *end < expires_at).map(|end| (role.definition.name.clone(), end.seconds()))
        };
        let until = basis.roles.iter().filter_map(expires_before_token).collect();
        let (roles, mut permissions) = names_and_permissions(basis.roles.iter().map(|role| &role.definition));
        permissions.retain(|permission| scope.is_none_or(|scope| scope.contains(permission)));
        let scope_claim = match audience {
            // The permissions of an unbound token are not known here, only their limit.
            TokenAudience::Unbound => scope.map(ToString::to_string),
            TokenAudience::Named(_) | TokenAudience::Default(_) => {
                (always_has_scope_claim || scope.is_some()).then(|| scope_text(&permissions))
            }
        };
        let issuer = &context.config.issuer;
        Claims {
            iss: issuer.clone(),
            sub: agent.id,
            client_id: Some(agent.id),
            aud: audience.service().map_or(Audience::Unbound, Audience::Service).claim(issuer).into(),
            iat: basis.at.seconds(),
            nbf: basis.at.seconds(),
            exp: expires_at.seconds(),
            jti: id,
            sid: session.id,
            rev: basis.position.revision,
            name: agent.name.to_string(),
            roles,
            scope: scope_claim,
            permissions,
            trust_score: agent.trust,
            until,
            grants: Grants::default(),
            requested_scope: scope.cloned(),
        }
    }
}
