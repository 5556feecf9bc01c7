//! Give a role to an agent.

use super::{Context, Denied, Missing, tell_ended_roles::emit_role_revoked};
use crate::{
    domain::{
        audit::{Act, Author, Entry, Object},
        change::Change,
        role::{Assignment, fits_agent},
        webhook::event::{Event, EventData, RevocationReason, RoleAssigned},
    },
    store::{
        Write, agents,
        assignments::{self, Loss},
        roles, services,
    },
};
use countersign_identity::{AgentId, EventId, RoleId, ServiceId, Timestamp};

/// Who gets what, and until when.
#[derive(Debug, Clone, Copy)]
pub struct AssignmentRequest {
    /// Where.
    pub service: ServiceId,
    /// Who.
    pub agent: AgentId,
    /// What.
    pub role: RoleId,
    /// Until when; `None` for no end.
    pub expires_at: Option<Timestamp>,
}

/// Assigns a role; assigning again replaces its end. Ends fall on whole seconds, since tokens count in
/// these.
pub async fn assign_role(context: &Context, by: &Author, request: AssignmentRequest) -> Result<(), Denied> {
    let AssignmentRequest { service, agent, role, expires_at } = request;
    let expires_at = expires_at.map(Timestamp::whole_second);
    let event = context.fresh(EventId::from_bits);
    let work = async |mut tx: Write| {
        let now = tx.now();
        if expires_at.is_some_and(|end| end <= now) {
            return Err(Denied::Invalid { field: "expiresAt", message: "must lie in the future, in whole seconds" });
        }
        services::lock(tx.conn(), service).await?;
        agents::find(tx.conn(), agent).await?.ok_or(Denied::Missing(Missing::Agent))?;
        let existing = roles::of_service(tx.conn(), service).await?;
        let held = assignments::held(tx.conn(), service, agent, now).await?;
        let after = existing
            .iter()
            .filter(|other| other.definition.id == role || held.iter().any(|grant| grant.role == other.definition.id));
        let given = existing.iter().find(|other| other.definition.id == role).ok_or(Denied::Missing(Missing::Role))?;
        fits_agent(after.map(|role| &role.definition.name)).map_err(|error| Denied::Conflict(error.to_string()))?;
        let name = given.definition.name.clone();
        // What has ended, and nobody was told of yet, ended before.
        if let Some(at) = assignments::take_one_end(tx.conn(), agent, role, now).await? {
            let (name, reason) = (name.clone(), RevocationReason::Expired);
            emit_role_revoked(&mut tx, context, Loss { agent, service, role, name, at, reason });
        }
        assignments::put(tx.conn(), &Assignment { agent, role, service, assigned_at: now, expires_at }).await?;
        let before = held.iter().find(|grant| grant.role == role).map(|grant| grant.until);
        if before != Some(expires_at) {
            let act = Entry::at(service, Act::RoleAssigned).to(agent).with(Object::Role(role));
            let act = act.saying("name", given.definition.name.as_str()).saying("until", seconds(expires_at));
            let act = before.into_iter().fold(act, |act, end| act.saying("untilBefore", seconds(end)));
            tx.record(by, &act).await?;
            let (agent_id, service_id, role_id) = (agent, service, role);
            let data = RoleAssigned { agent_id, service_id, role_id, role_name: name, expires_at };
            tx.tell(Event { id: event, at: now, data: EventData::RoleAssigned(data) });
        }
        tx.changed(Change::Roles(agent, service));
        Ok(tx.commit(()).await?)
    };
    context.store.write("assign_role", work).await
}

/// An end, as an audit keeps it: the second, or null.
fn seconds(end: Option<Timestamp>) -> Option<i64> {
    end.map(Timestamp::seconds)
}
