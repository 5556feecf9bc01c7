//! Take a role from an agent.

use super::{Context, Denied, Missing, tell_ended_roles::emit_role_revoked};
use crate::{
    domain::{
        audit::{Act, Author, Entry, Object},
        change::Change,
        webhook::event::RevocationReason,
    },
    store::{
        Write, agents,
        assignments::{self, Loss, Removed},
        roles,
    },
};
use countersign_identity::{AgentId, RoleId, ServiceId};

/// Revokes a role; false if the agent did not hold it.
pub async fn revoke_role(
    context: &Context,
    by: &Author,
    service: ServiceId,
    agent: AgentId,
    role: RoleId,
) -> Result<bool, Denied> {
    let work = async |mut tx: Write| {
        let now = tx.now();
        agents::find(tx.conn(), agent).await?.ok_or(Denied::Missing(Missing::Agent))?;
        let found = roles::find(tx.conn(), service, role).await?.ok_or(Denied::Missing(Missing::Role))?;
        let removed = assignments::remove(tx.conn(), service, agent, role).await?;
        let name = found.definition.name;
        if removed.is_some() {
            tx.changed(Change::Roles(agent, service));
        }
        // An expired assignment is absent everywhere: removing its row revokes nothing, and only says what is not told yet.
        let was_live = removed.is_some_and(|removed| removed.until.is_none_or(|end| now < end));
        if was_live {
            let act = Entry::at(service, Act::RoleRevoked).to(agent).with(Object::Role(role));
            tx.record(by, &act.saying("name", name.as_str())).await?;
        }
        if let Some(Removed { until, end_is_told: false }) = removed {
            let (at, reason) = match until {
                Some(end) if !was_live => (end, RevocationReason::Expired),
                Some(_) | None => (now, RevocationReason::Revoked),
            };
            emit_role_revoked(&mut tx, context, Loss { agent, service, role, name, at, reason });
        }
        Ok(tx.commit(was_live).await?)
    };
    context.store.write("revoke_role", work).await
}
