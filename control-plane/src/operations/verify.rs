//! Verify an agent's token for a service: the same question, by the same library, as at a sidecar.

use super::{Context, Denied, Missing};
use crate::store::{agents, assignments, feed, roles, services, sessions};
use countersign_identity::{
    AgentRecord, Claims, Facts, Reason, Revision, RoleTable, ServiceId, Stamped, Standing, StatusRecord, Timestamp,
    UnverifiedToken,
};
use sqlx::AnyConnection;

/// Says who stands behind the token, or why it is refused.
pub async fn verify(context: &Context, service: ServiceId, token: &str) -> Result<Standing, Denied> {
    let signed = UnverifiedToken::parse(token)?.verify(context.keyring.set())?;
    let claims = signed.claims();
    let mut read = context.store.read().await?;
    let now = context.now();
    let position = feed::position(read.conn()).await?;
    let service = services::find(read.conn(), service).await?.ok_or(Denied::Missing(Missing::Service))?;
    let table = roles::of_service(read.conn(), service.id).await?;
    let table: RoleTable = table.into_iter().map(|role| role.definition).collect();
    let record = record(read.conn(), service.id, claims, position.revision, now).await?;
    let session = sessions::find(read.conn(), claims.sid).await?;
    let facts = Facts {
        service: service.id,
        issuer: &context.rules.issuer,
        accepts_unbound: service.accepts_unbound,
        revision: position.revision,
        floor: position.floor,
        roles: &table,
        agent: Some(&record),
        revoked: session.is_none_or(|session| session.ended_at.is_some()),
    };
    Ok(Standing::of(claims, &facts, now)?)
}

/// The present state of the token's agent, as a sidecar that knows everything would hold it.
async fn record(
    conn: &mut AnyConnection,
    service: ServiceId,
    claims: &Claims,
    revision: Revision,
    now: Timestamp,
) -> Result<AgentRecord, Denied> {
    let agent = agents::find(conn, claims.sub).await?.ok_or(Reason::TokenClaimsInvalid)?;
    let grants = assignments::held(conn, service, agent.id, now).await?;
    Ok(AgentRecord {
        roles: Some(Stamped { revision, value: grants }),
        trust: Some(Stamped { revision, value: agent.trust }),
        status: Some(Stamped { revision, value: StatusRecord { status: agent.status, cutoff: agent.cutoff } }),
    })
}
