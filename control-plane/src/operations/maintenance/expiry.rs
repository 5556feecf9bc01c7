//! Tell webhooks of roles that have ended, or were lost with the role itself.

use crate::{
    domain::webhook::event::{Event, LossReason, News, RoleRevoked},
    operations::{Context, OperationError},
    store::{
        Write,
        assignments::{self, ExpiredAssignment, RoleLoss},
        roles,
    },
};
use countersign_identity::EventId;

/// Losses that one transaction tells of.
const AT_ONCE: i64 = 500;

/// Tells of all roles that have ended or were lost since the last time.
pub async fn tell_ended_roles(context: &Context) -> Result<(), OperationError> {
    while assignments::any_unnotified_expiries(context.store.read().await?.conn(), context.now()).await? {
        let some = async |mut tx: Write| {
            let now = tx.now();
            for ExpiredAssignment { agent, role, service, at } in
                assignments::take_expired(tx.conn(), now, AT_ONCE).await?
            {
                // Without its role it ended before.
                if let Some(found) = roles::find(tx.conn(), service, role).await? {
                    let (name, reason) = (found.definition.name, LossReason::Expired);
                    tell_loss(&mut tx, context, RoleLoss { agent, service, role, name, at, reason });
                }
            }
            Ok::<_, OperationError>(tx.commit(()).await?)
        };
        context.store.write("tell_ended_roles", some).await?;
    }
    while assignments::any_losses(context.store.read().await?.conn()).await? {
        let some = async |mut tx: Write| {
            for loss in assignments::take_losses(tx.conn(), AT_ONCE).await? {
                tell_loss(&mut tx, context, loss);
            }
            Ok::<_, OperationError>(tx.commit(()).await?)
        };
        context.store.write("tell_lost_roles", some).await?;
    }
    Ok(())
}

/// Notes that an agent has a role no more.
pub(in crate::operations) fn tell_loss(tx: &mut Write, context: &Context, loss: RoleLoss) {
    let RoleLoss { agent: agent_id, service: service_id, role: role_id, name: role_name, at, reason } = loss;
    let news = News::RoleRevoked(RoleRevoked { agent_id, service_id, role_id, role_name, reason });
    tx.emit(Event { id: context.new_id(EventId::from_bits), at, news });
}
