//! Emits `agent.role_revoked` for assignments that expired or whose role was deleted.

use crate::{
    domain::webhook::event::{Event, EventData, RevocationReason, RoleRevokedEvent},
    operations::{Context, OperationError},
    store::{
        WriteTransaction,
        assignments::{self, ExpiredAssignment, RoleRevocation},
        roles,
    },
};
use countersign_identity::EventId;

/// Maximum number of events in one transaction.
const BATCH_SIZE: i64 = 500;

/// Emits an event for each assignment that ended since the last run of this job.
pub async fn emit_role_revoked_events(context: &Context) -> Result<(), OperationError> {
    while assignments::has_unreported_expiries(context.store.read().await?.conn(), context.now()).await? {
        let work = async |mut tx: WriteTransaction| {
            let now = tx.now();
            for ExpiredAssignment { agent, role, service, at } in
                assignments::take_unreported_expiries(tx.conn(), now, BATCH_SIZE).await?
            {
                // If the role was deleted, the transaction that deleted the role has already queued the event
                // `agent.role_revoked`.
                if let Some(existing_role) = roles::find(tx.conn(), service, role).await? {
                    let (name, reason) = (existing_role.definition.name, RevocationReason::Expired);
                    emit_role_revoked_event(
                        &mut tx,
                        context,
                        RoleRevocation { agent, service, role, name, at, reason },
                    );
                }
            }
            Ok::<_, OperationError>(tx.commit(()).await?)
        };
        context.store.write("emit_expired_roles", work).await?;
    }
    while assignments::has_queued_revocations(context.store.read().await?.conn()).await? {
        let work = async |mut tx: WriteTransaction| {
            for revocation in assignments::take_queued_revocations(tx.conn(), BATCH_SIZE).await? {
                emit_role_revoked_event(&mut tx, context, revocation);
            }
            Ok::<_, OperationError>(tx.commit(()).await?)
        };
        context.store.write("emit_deleted_roles", work).await?;
    }
    Ok(())
}

/// Emits the event `agent.role_revoked`.
pub(in crate::operations) fn emit_role_revoked_event(
    tx: &mut WriteTransaction,
    context: &Context,
    revocation: RoleRevocation,
) {
    let RoleRevocation { agent: agent_id, service: service_id, role: role_id, name: role_name, at, reason } =
        revocation;
    let data = EventData::RoleRevoked(RoleRevokedEvent { agent_id, service_id, role_id, role_name, reason });
    tx.emit(Event { id: context.new_id(EventId::from_bits), at, data });
}
