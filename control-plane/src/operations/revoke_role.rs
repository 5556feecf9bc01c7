//! Take a role from an agent.

use super::{Context, Denied, Missing, tell_ended_roles::tell_loss};
use crate::{
    domain::{
        audit::{Act, Author, Entry, Object},
        change::Change,
        webhook::event::LossReason,
    },
    store::{
        Write, agents,
        assignments::{self, Loss},
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
        // What has ended is absent everywhere: removing its row revokes nothing, and only says what is not told yet.
        let ended_at = removed.as_ref().and_then(|grant| grant.until).filter(|end| *end <= now);
        let was_live = removed.is_some() && ended_at.is_none();
        let name = found.definition.name;
        if was_live {
            tx.changed(Change::Roles(agent, service));
            let act = Entry::at(service, Act::RoleRevoked).to(agent).with(Object::Role(role));
            tx.record(by, &act.saying("name", name.as_str())).await?;
        }
        if removed.is_some() {
            let reason = if was_live { LossReason::Revoked } else { LossReason::Expired };
            let at = ended_at.unwrap_or(now);
            tell_loss(&mut tx, context, Loss { agent, service, role, name, at, reason });
        }
        Ok(tx.commit(was_live).await?)
    };
    context.store.write("revoke_role", work).await
}
