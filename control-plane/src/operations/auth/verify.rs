//! Verifies an access token for a service, with the same rules as the Countersign sidecar.

use super::revoke::is_revoked;
use crate::{
    operations::{Context, NotFound, OperationError},
    store::{
        Conn, WriteTransaction,
        agents::{self, AgentState},
        assignments, feed, known_agents, roles, services, signing_keys,
    },
};
use countersign_identity::{
    AgentChanges, AgentId, Audience, Claims, EvaluationContext, Reason, Revision, RoleTable, ServiceId, Timestamp,
    UnverifiedToken, VerifiedIdentity, Versioned,
};
use std::time::Duration;

/// A verification records a contact only if the recorded contact is older, so most verifications write nothing.
const CONTACT_PRECISION: Duration = Duration::from_hours(1);

/// Verifies an access token. Returns the identity of the agent, or the reason for the refusal.
pub async fn verify_token(
    context: &Context,
    service: ServiceId,
    token: &str,
) -> Result<VerifiedIdentity, OperationError> {
    let unverified = UnverifiedToken::parse(token)?;
    let mut read = context.store.read().await?;
    let signed = unverified.verify(&signing_keys::load_ring(read.conn()).await?.key_set())?;
    let claims = signed.claims();
    let now = context.now();
    let position = feed::position(read.conn()).await?;
    let service =
        services::find_live(read.conn(), service).await?.ok_or(OperationError::NotFound(NotFound::Service))?;
    let table = roles::list(read.conn(), service.id).await?;
    let table: RoleTable = table.into_iter().map(|role| role.definition).collect();
    let changes = agent_state(read.conn(), service.id, claims, position.revision, now).await?;
    let evaluation = EvaluationContext {
        service: service.id,
        issuer: &context.config.issuer,
        accepts_unbound: service.accepts_unbound,
        revision: position.revision,
        floor: position.floor,
        roles: &table,
        agent: changes.as_ref(),
        // The token of an unknown agent is refused below for that reason: its session is unknown as well.
        revoked: changes.is_some() && is_revoked(read.conn(), claims).await?,
    };
    let identity = VerifiedIdentity::evaluate(claims, &evaluation, now)?;
    // The signature is valid but the agent is unknown: another database issued the token.
    changes.ok_or(Reason::TokenClaimsInvalid)?;
    if claims.audience() == Some(Audience::Service(service.id)) {
        let contact = known_agents::find_contact(read.conn(), claims.sub, service.id).await?;
        drop(read);
        if contact.is_none_or(|contacted_at| contacted_at <= now.saturating_sub(CONTACT_PRECISION)) {
            record_contact(context, claims.sub, service.id).await;
        }
    }
    Ok(identity)
}

/// Records that the agent is known to the service. If the write fails, the token is valid nevertheless, and the next
/// verification tries again.
async fn record_contact(context: &Context, agent: AgentId, service: ServiceId) {
    if !context.store.is_writable() {
        return;
    }
    let work = async |mut tx: WriteTransaction| {
        let now = tx.now();
        known_agents::record_contact(tx.conn(), agent, service, now).await?;
        Ok::<_, OperationError>(tx.commit(()).await?)
    };
    if let Err(error) = context.store.write("record_contact", work).await {
        tracing::warn!(%error, "cannot record that an agent is known to a service");
    }
}

/// The current state of the agent, equal to the state in an up-to-date view of a sidecar (its copy of the data); `None` if the
/// agent is not registered.
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
    // An unbound token states no roles. Like a sidecar, the API adds the roles only if they changed after the token was issued.
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
