//! Verifies an access token for a service, with the same rules as the Countersign sidecar.

use super::revoke::is_revoked;
use crate::{
    domain::change::Change,
    operations::{
        Context, CurrentState, OperationError,
        find::find_service,
        memory::{Basis, ReadAt, Verification},
    },
    store::{
        Conn, WriteTransaction,
        agents::{self, AgentState},
        assignments, feed, known_agents, roles, signing_keys,
    },
};
use countersign_identity::{
    AgentChanges, AgentId, Audience, Claims, EvaluationContext, Reason, Revision, RoleTable, ServiceId, Timestamp,
    UnverifiedToken, VerifiedIdentity, Versioned,
};
use std::sync::{Arc, OnceLock};

pub struct Verified {
    pub verification: Arc<Verification>,
    /// True if this is an earlier verification of the same token, from memory, which still applies.
    pub is_from_memory: bool,
}

/// The subjects that a verification of this token at this service depends on: if one of them changes, the result may change. The
/// contact that makes the agent known to the service is not among them, because it does not affect the result.
const fn subjects_of(service: ServiceId, claims: &Claims, audience: Option<ServiceId>) -> [Change; 8] {
    [
        Change::Keys,
        Change::ServiceSettings(service),
        Change::Definitions(service),
        Change::Roles(claims.sub, service),
        Change::Trust(claims.sub),
        Change::Status(claims.sub),
        Change::Session(claims.sid),
        Change::Token(claims.jti, audience),
    ]
}

/// Verifies an access token. Returns the identity of the agent, or the reason for the refusal. The caller must read `current` after
/// the request arrived.
pub async fn verify_token(
    context: &Context,
    current: &CurrentState,
    service: ServiceId,
    token: &str,
) -> Result<Verified, OperationError> {
    let memory = &context.verifications;
    if let Some(verification) = memory.get(service, token) {
        if verification.applies(&context.recent_changes, current, context.now()) {
            return Ok(Verified { verification, is_from_memory: true });
        }
        memory.remove(service, token);
    }
    let verification = Arc::new(read_verification(context, service, token).await?);
    // If the token's revision is later than the database's, the database has lost commits, so we do not remember the result.
    if verification.basis.token_revision <= verification.basis.read_at.revision {
        memory.insert(service, token, Arc::clone(&verification));
    }
    Ok(Verified { verification, is_from_memory: false })
}

/// Verifies a token with what the database contains now.
async fn read_verification(context: &Context, service: ServiceId, token: &str) -> Result<Verification, OperationError> {
    let unverified = UnverifiedToken::parse(token)?;
    let history = context.recent_changes.history();
    let mut read = context.store.read().await?;
    let signed = unverified.verify(&signing_keys::load_ring(read.conn()).await?.key_set())?;
    let claims = signed.claims();
    let now = context.now();
    let position = feed::position(read.conn()).await?;
    let service = find_service(read.conn(), service).await?;
    let definitions = roles::list(read.conn(), service.id).await?;
    let table: RoleTable = definitions.into_iter().map(|role| role.definition).collect();
    let agent_hash_key = context.agent_hash_secret.key_of(service.id);
    let changes = agent_state(read.conn(), service.id, claims, position.revision, now).await?;
    let evaluation = EvaluationContext {
        service: service.id,
        issuer: &context.config.issuer,
        accepts_unbound: service.accepts_unbound,
        revision: position.revision,
        floor: position.floor,
        roles: &table,
        agent_hash_key: &agent_hash_key,
        agent: changes.as_ref(),
        // An unknown agent has no session, so `is_revoked` would be true. We refuse its token below, with a better reason.
        revoked: changes.is_some() && is_revoked(read.conn(), claims).await?,
    };
    let identity = VerifiedIdentity::evaluate(claims, &evaluation, now)?;
    // The signature is valid but the agent is unknown: another database issued the token.
    changes.ok_or(Reason::TokenClaimsInvalid)?;
    let (audience, contact_due) = match claims.audience() {
        Some(Audience::Service(bound)) => {
            let contact = known_agents::find_contact(read.conn(), claims.sub, bound).await?;
            drop(read);
            (Some(bound), renew_contact(context, claims.sub, bound, contact, now).await)
        }
        Some(Audience::Unbound) | None => (None, identity.valid_until),
    };
    let basis = Basis {
        read_at: ReadAt { history, revision: position.revision },
        verified_at: now,
        contact_due,
        token_revision: claims.rev,
        subjects: subjects_of(service.id, claims, audience),
    };
    let (issued_at, expires_at) = (Timestamp::from_seconds(claims.iat), claims.expires_at());
    Ok(Verification { identity, audience, issued_at, expires_at, basis, response: OnceLock::new() })
}

/// Records a contact between the agent and the service, unless the last one is still recent. Returns when the next one is due. If the
/// contact cannot be recorded, it is due at once.
async fn renew_contact(
    context: &Context,
    agent: AgentId,
    service: ServiceId,
    last: Option<Timestamp>,
    now: Timestamp,
) -> Timestamp {
    let next_contact = |contacted_at: Timestamp| contacted_at.saturating_add(known_agents::CONTACT_PRECISION);
    match last.map(next_contact).filter(|due| now < *due) {
        Some(due) => due,
        None => record_contact(context, agent, service).await.map_or(now, next_contact),
    }
}

/// Records that the agent has just used its token at the service, and returns the time. Returns `None` if that is not possible: the
/// token is valid all the same.
async fn record_contact(context: &Context, agent: AgentId, service: ServiceId) -> Option<Timestamp> {
    if !context.store.is_writable() {
        return None;
    }
    let work = async |mut tx: WriteTransaction| {
        let now = tx.now();
        known_agents::record_contact(tx.conn(), agent, service, now).await?;
        Ok::<_, OperationError>(tx.commit(now).await?)
    };
    let recorded = context.store.write("record_contact", work).await;
    recorded.inspect_err(|error| tracing::warn!(%error, "cannot record that an agent is known to a service")).ok()
}

/// The current state of the agent, as an up-to-date view of a sidecar has it. `None` if the agent is not registered.
async fn agent_state(
    conn: &mut Conn,
    service: ServiceId,
    claims: &Claims,
    revision: Revision,
    now: Timestamp,
) -> Result<Option<AgentChanges>, OperationError> {
    let Some(AgentState { agent, trust, status }) = agents::find_state(conn, claims.sub).await? else {
        return Ok(None);
    };
    // An unbound token contains the roles that the agent had. Like a sidecar, we replace them only if they changed after the token was
    // issued.
    let has_roles = claims.audience() != Some(Audience::Unbound)
        || feed::roles_changed_since(conn, agent, service, claims.rev).await?;
    let roles = if has_roles {
        let value = assignments::list_active_grants(conn, service, agent, now).await?;
        Some(Versioned { revision, value })
    } else {
        None
    };
    Ok(Some(AgentChanges {
        roles,
        trust: Some(Versioned { revision, value: trust }),
        status: Some(Versioned { revision, value: status }),
    }))
}
