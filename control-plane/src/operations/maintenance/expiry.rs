//! Emits `agent.role_revoked` for assignments that expired.

use crate::{
    domain::webhook::event::RevocationReason,
    operations::{
        Context, OperationError,
        batches::{Batch, run_batch},
        roles::emit_role_revoked_event,
    },
    store::{
        WriteTransaction,
        assignments::{self, ExpiredAssignment, RoleRevocation},
        outbox,
        roles::{self, RoleFate},
    },
};
use countersign_identity::Timestamp;

/// Number of waiting events above which no further events of expired roles are emitted, so that the events of requests do not wait
/// for them.
const MAX_WAITING_EVENTS: i64 = 10_000;

/// Emits an event for each assignment that ended since the last run of this job.
pub async fn emit_role_revoked_events(context: &Context) -> Result<(), OperationError> {
    loop {
        let mut read = context.store.read().await?;
        let has_more = assignments::has_unreported_expiries(read.conn(), context.now()).await?;
        if !has_more || outbox::has_more_events_than(read.conn(), MAX_WAITING_EVENTS).await? {
            break;
        }
        drop(read);
        let batch = async |mut tx: WriteTransaction, limit| {
            let now = tx.now();
            let expired = assignments::take_unreported_expiries(tx.conn(), now, limit).await?;
            let count = expired.len() as u64;
            for ExpiredAssignment { agent, role, service, at } in expired {
                if let Some(fate) = roles::find_fate(tx.conn(), role).await? {
                    let (name, (at, reason)) = (fate.name.clone(), end_of_assignment(&fate, at));
                    emit_role_revoked_event(
                        &mut tx,
                        context,
                        RoleRevocation { agent, service, role, name, at, reason },
                    );
                }
            }
            Ok((tx, count))
        };
        if !has_removed_rows(run_batch(context, "emit_expired_roles", batch).await?) {
            break;
        }
    }
    Ok(())
}

/// Whether the batch has removed rows. If not, another replica does the work.
const fn has_removed_rows(batch: Batch) -> bool {
    matches!(batch, Batch::Removed(1..))
}

/// When and why an assignment with this expiry ended: with the deletion of the role or of the service, if that came first.
fn end_of_assignment(fate: &RoleFate, expires_at: Timestamp) -> (Timestamp, RevocationReason) {
    let deletions =
        [(fate.deleted_at, RevocationReason::RoleDeleted), (fate.service_deleted_at, RevocationReason::ServiceDeleted)];
    let deletions = deletions.into_iter().filter_map(|(at, reason)| Some((at?, reason)));
    let first = deletions.min_by_key(|(at, _)| *at);
    first.filter(|(at, _)| *at < expires_at).unwrap_or((expires_at, RevocationReason::Expired))
}
