//! Take a role from an agent.

use super::{Context, Denied, Missing};
use crate::{
    domain::{
        audit::{Act, Author, Entry, Object},
        change::Change,
    },
    store::{Write, agents, assignments, roles},
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
        if removed.is_some() {
            tx.changed(Change::Roles(agent, service));
        }
        // An expired assignment is absent everywhere: removing its row revokes nothing.
        let was_live = removed.is_some_and(|grant| grant.until.is_none_or(|end| now < end));
        if was_live {
            let act = Entry::at(service, Act::RoleRevoked).to(agent).with(Object::Role(role));
            tx.record(by, &act.saying("name", found.definition.name.as_str())).await?;
        }
        Ok(tx.commit(was_live).await?)
    };
    context.store.write("revoke_role", work).await
}
