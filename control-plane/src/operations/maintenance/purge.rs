//! Removes the rows that depend on deleted services, agents and roles, in batches, so that other writers do not wait.

use super::housekeeping::MAX_TRANSACTION_TIME;
use crate::{
    domain::webhook::event::RevocationReason,
    operations::{Context, OperationError, roles::emit_role_revoked_event},
    store::{
        WriteTransaction,
        assignments::RoleRevocation,
        outbox,
        purge::{self, Deleted, DeletedKind, TakenAssignment},
    },
};
pub(super) use purge::oldest_due;

/// Of this number of services, agents or roles that were deleted first, any can be next: one that has very many rows does not stop the
/// others.
const MAX_CANDIDATES: i64 = 100;

/// Number of waiting events above which nothing is removed. It is half of the number above which the events of expired roles
/// wait, so that deletions do not hold them back.
const MAX_WAITING_EVENTS: i64 = 5_000;

/// Removes up to `limit` rows that depend on one deleted service, agent or role: assignments, and roles, revoked API keys,
/// departures and contacts. Returns their number; if none are left, completes the deletion and returns 1. Does nothing while too
/// many events wait for their fan-out.
pub(super) async fn purge(
    context: &Context,
    kind: DeletedKind,
    tx: &mut WriteTransaction,
    limit: i64,
) -> Result<u64, OperationError> {
    if outbox::has_more_events_than(tx.conn(), MAX_WAITING_EVENTS).await? {
        return Ok(0);
    }
    let now = tx.now();
    let due = purge::list_due(tx.conn(), kind, now, MAX_CANDIDATES).await?;
    let Some(deleted) = choose(context, &due) else { return Ok(0) };
    let taken = purge::take_assignments(tx.conn(), deleted, limit).await?;
    if !taken.is_empty() {
        let removed = taken.len() as u64;
        for assignment in taken {
            emit_event(tx, context, deleted, assignment);
        }
        return Ok(removed);
    }
    let removed = purge::delete_dependants(tx.conn(), deleted, limit).await?;
    if removed == 0 {
        purge::finish(tx.conn(), deleted, now, MAX_TRANSACTION_TIME).await?;
        return Ok(1);
    }
    Ok(removed)
}

/// Chooses one of these at random.
fn choose(context: &Context, candidates: &[Deleted]) -> Option<Deleted> {
    let mut random = [0; 2];
    context.rng.fill(&mut random);
    let index = usize::from(u16::from_le_bytes(random)).checked_rem(candidates.len())?;
    candidates.get(index).copied()
}

/// Emits the event of an assignment that ended with the deletion, or that had ended before without an event.
fn emit_event(tx: &mut WriteTransaction, context: &Context, deleted: Deleted, assignment: TakenAssignment) {
    let TakenAssignment { agent, service, role, name, role_deleted_at, expires_at, expiry_reported } = assignment;
    if expiry_reported {
        return;
    }
    let reason_of_deletion = match deleted {
        Deleted::Service(_) => RevocationReason::ServiceDeleted,
        Deleted::Agent(_) => RevocationReason::AgentDeleted,
        Deleted::Role(_) => RevocationReason::RoleDeleted,
    };
    let (at, reason) = role_deleted_at.map_or((tx.now(), reason_of_deletion), |at| (at, RevocationReason::RoleDeleted));
    let (at, reason) = match expires_at {
        Some(end) if end <= at => (end, RevocationReason::Expired),
        Some(_) | None => (at, reason),
    };
    emit_role_revoked_event(tx, context, RoleRevocation { agent, service, role, name, at, reason });
}
