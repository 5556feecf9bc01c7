//! Verifies an access token for a service, with the same rules as the Countersign sidecar.

use super::revoke::is_revoked;
use crate::{
    operations::{Context, NotFound, OperationError},
    store::{Conn, agents, assignments, feed, roles, services, signing_keys},
};
use countersign_identity::{
    AgentChanges, Claims, EvaluationContext, Reason, Revision, RoleTable, ServiceId, StatusWithCutoff, Timestamp,
    UnverifiedToken, VerifiedIdentity, Versioned,
};

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
    let service = services::find(read.conn(), service).await?.ok_or(OperationError::NotFound(NotFound::Service))?;
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
        revoked: is_revoked(read.conn(), claims).await?,
    };
    let identity = VerifiedIdentity::evaluate(claims, &evaluation, now)?;
    // The signature is valid but the agent is unknown: another database issued the token.
    changes.map(|_| identity).ok_or_else(|| Reason::TokenClaimsInvalid.into())
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
    let Some(agent) = agents::find(conn, claims.sub).await? else { return Ok(None) };
    let grants = assignments::list_active_grants(conn, service, agent.id, now).await?;
    Ok(Some(AgentChanges {
        roles: Some(Versioned { revision, value: grants }),
        trust: Some(Versioned { revision, value: agent.trust }),
        status: Some(Versioned { revision, value: StatusWithCutoff { status: agent.status, cutoff: agent.cutoff } }),
    }))
}
