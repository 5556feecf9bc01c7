//! Emits `agent.role_revoked` for assignments that expired or whose role was deleted.

use crate::{
    domain::webhook::event::{Event, EventData, RevocationReason, RoleRevoked},
    operations::{Context, OperationError},
    store::{
        Write,
        assignments::{self, ExpiredAssignment, RoleLoss},
        roles,
    },
};
use countersign_identity::EventId;

/// Maximum number of events in one transaction.
const BATCH_SIZE: i64 = 500;

/// Emits an event for each assignment that ended since the last run.
pub async fn emit_ended_roles(context: &Context) -> Result<(), OperationError> {
    while assignments::any_unnotified_expiries(context.store.read().await?.conn(), context.now()).await? {
        let work = async |mut tx: Write| {
            let now = tx.now();
            for ExpiredAssignment { agent, role, service, at } in
                assignments::take_expired(tx.conn(), now, BATCH_SIZE).await?
            {
                // If the role is deleted, the deletion has recorded the end of the assignment.
                if let Some(found_role) = roles::find(tx.conn(), service, role).await? {
                    let (name, reason) = (found_role.definition.name, RevocationReason::Expired);
                    emit_role_revoked(&mut tx, context, RoleLoss { agent, service, role, name, at, reason });
                }
            }
            Ok::<_, OperationError>(tx.commit(()).await?)
        };
        context.store.write("emit_expired_roles", work).await?;
    }
    while assignments::any_losses(context.store.read().await?.conn()).await? {
        let work = async |mut tx: Write| {
            for loss in assignments::take_losses(tx.conn(), BATCH_SIZE).await? {
                emit_role_revoked(&mut tx, context, loss);
            }
            Ok::<_, OperationError>(tx.commit(()).await?)
        };
        context.store.write("emit_deleted_roles", work).await?;
    }
    Ok(())
}

/// Emits `agent.role_revoked`.
pub(in crate::operations) fn emit_role_revoked(tx: &mut Write, context: &Context, loss: RoleLoss) {
    let RoleLoss { agent: agent_id, service: service_id, role: role_id, name: role_name, at, reason } = loss;
    let data = EventData::RoleRevoked(RoleRevoked { agent_id, service_id, role_id, role_name, reason });
    tx.emit(Event { id: context.new_id(EventId::from_bits), at, data });
}
