//! Tell webhooks that roles have ended. What has ended is absent everywhere; here it is also forgotten.

use super::{Context, Denied};
use crate::{
    domain::webhook::event::{Event, LossReason, News, RoleRevoked},
    store::{
        Write,
        assignments::{self, Ended},
        roles,
    },
};
use countersign_identity::{AgentId, EventId, RoleId, RoleName, ServiceId, Timestamp};

/// Ends that one transaction tells of.
const AT_ONCE: i64 = 500;

/// Tells of all roles that have ended since the last time.
pub async fn tell_ended_roles(context: &Context) -> Result<(), Denied> {
    while assignments::any_ended(context.store.read().await?.conn(), context.now()).await? {
        let work = async |mut tx: Write| {
            settle_ends(&mut tx, context, None).await?;
            Ok::<_, Denied>(tx.commit(()).await?)
        };
        context.store.write("tell_ended_roles", work).await?;
    }
    Ok(())
}

/// Tells of what has ended before something else happens to it: at one service, or at all.
pub(super) async fn settle_ends(tx: &mut Write, context: &Context, only: Option<ServiceId>) -> Result<(), Denied> {
    let now = tx.now();
    for Ended { agent, role, service, at } in assignments::take_ended(tx.conn(), only, now, AT_ONCE).await? {
        // Without its role it ended before.
        if let Some(found) = roles::find(tx.conn(), service, role).await? {
            tell_loss(tx, context, (agent, service), (role, &found.definition.name), (at, LossReason::Expired));
        }
    }
    Ok(())
}

/// Notes that an agent has a role no more.
pub(super) fn tell_loss(
    tx: &mut Write,
    context: &Context,
    (agent_id, service_id): (AgentId, ServiceId),
    (role_id, name): (RoleId, &RoleName),
    (at, reason): (Timestamp, LossReason),
) {
    let news = RoleRevoked { agent_id, service_id, role_id, role_name: name.clone(), reason };
    tx.tell(Event { id: context.fresh(EventId::from_bits), at, news: News::RoleRevoked(news) });
}
