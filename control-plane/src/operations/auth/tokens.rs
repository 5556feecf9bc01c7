//! What a token says: read in the transaction that issues it.

use crate::{
    domain::{
        agent::Agent,
        credential::Credential,
        session::{RefreshToken, Session},
    },
    keyring::Signer,
    operations::{Context, OperationError},
    store::{Conn, Write, agents, assignments, roles, sessions},
};
use countersign_identity::{
    Audience, Claims, Permission, RefreshId, Revision, RoleName, RoleTable, ServiceId, Timestamp, TokenId,
};
use secrecy::SecretString;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// What an agent gets for a good answer.
pub struct TokenPair {
    /// The access token, a signed JWT.
    pub access: SecretString,
    /// The refresh token.
    pub refresh: SecretString,
    /// How long the access token lives.
    pub expires_in: Duration,
}

/// What is made before the transaction, so that a rerun makes the same.
pub(in crate::operations) struct Fresh {
    token: TokenId,
    refresh: Credential<RefreshId>,
}

impl Fresh {
    /// New ids and a new secret.
    pub(in crate::operations) fn of(context: &Context) -> Self {
        let refresh = Credential::new(context.fresh(RefreshId::from_bits), context.fresh_secret());
        Self { token: context.fresh(TokenId::from_bits), refresh }
    }

    /// Signs the claims and reveals the refresh token, after the transaction has committed.
    pub(in crate::operations) fn sign(self, context: &Context, issued: &Issued) -> Result<TokenPair, OperationError> {
        let access = issued.signer.sign(&issued.claims)?.into();
        Ok(TokenPair { access, refresh: self.refresh.reveal(), expires_in: context.rules.access_life })
    }
}

/// What an access token says, and the key that signs it.
pub(in crate::operations) struct Issued {
    claims: Claims,
    signer: Arc<Signer>,
}

/// Whom a token is for, if nobody said: the service of the agent's oldest live role, or nobody.
pub(in crate::operations) async fn resolve_service(
    conn: &mut Conn,
    agent: &Agent,
    now: Timestamp,
) -> Result<Option<ServiceId>, OperationError> {
    Ok(assignments::service_of_oldest_role(conn, agent.id, now).await?)
}

/// Issues the next refresh token of a session and states the claims of an access token beside it.
/// `rev` was read before everything that is stated here, the key that signs it among the rest.
pub(in crate::operations) async fn issue(
    tx: &mut Write,
    context: &Context,
    fresh: &Fresh,
    rev: Revision,
    (agent, session, service): (&Agent, &Session, Option<ServiceId>),
) -> Result<Issued, OperationError> {
    let now = tx.now();
    let refresh = RefreshToken {
        id: fresh.refresh.id(),
        session: session.id,
        secret: fresh.refresh.hash(),
        issued_at: now,
        used_at: None,
    };
    sessions::insert_token(tx.conn(), &refresh).await?;
    agents::set_last_seen(tx.conn(), agent.id, now).await?;
    let expires = now.saturating_add(context.rules.access_life);
    let held = match service {
        Some(service) => held_at(tx.conn(), service, agent, now, expires).await?,
        None => Held::default(),
    };
    let claims = Claims {
        iss: context.rules.issuer.clone(),
        sub: agent.id,
        aud: service.map_or(Audience::Unbound, Audience::Service).claim(&context.rules.issuer),
        iat: now.seconds(),
        nbf: now.seconds(),
        exp: expires.seconds(),
        jti: fresh.token,
        sid: session.id,
        rev,
        name: agent.registration.name.to_string(),
        roles: held.roles,
        permissions: held.permissions,
        trust_score: agent.trust,
        until: held.until,
    };
    // Last, so that a key that is revoked meanwhile is seen to be.
    let signer = context.keyring.signer(tx.conn(), now).await?;
    Ok(Issued { claims, signer })
}

#[derive(Default)]
struct Held {
    roles: Vec<RoleName>,
    permissions: Vec<Permission>,
    until: BTreeMap<RoleName, i64>,
}

async fn held_at(
    conn: &mut Conn,
    service: ServiceId,
    agent: &Agent,
    now: Timestamp,
    expires: Timestamp,
) -> Result<Held, OperationError> {
    let grants = assignments::active_grants(conn, service, agent.id, now).await?;
    let table: RoleTable = roles::list(conn, service).await?.into_iter().map(|role| role.definition).collect();
    let (roles, permissions) = table.resolve(grants.iter());
    let ends_before_token =
        grants.iter().filter_map(|grant| grant.until.filter(|end| *end < expires).map(|end| (grant, end)));
    let until = ends_before_token.filter_map(|(grant, end)| Some((table.get(grant.role)?.name.clone(), end.seconds())));
    Ok(Held { roles, permissions, until: until.collect() })
}
