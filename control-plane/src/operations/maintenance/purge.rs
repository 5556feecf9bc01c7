//! Removes the rows that depend on deleted services, agents and roles. It works in batches, so that other writers do not wait. Emits
//! `agent.role_revoked` for assignments that end with such a deletion, or that expire.

use super::housekeeping::MAX_TRANSACTION_TIME;
use crate::{
    domain::webhook::event::{RevocationReason, RoleRevokedEvent},
    operations::{Context, OperationError, batches::run_batch, roles::emit_role_revoked},
    store::{
        WriteTransaction,
        assignments::{self, ExpiredAssignment},
        outbox,
        purge::{self, Deleted, DeletedKind, TakenAssignment},
        roles::{self, RoleFate},
    },
};
use countersign_identity::Timestamp;
pub(super) use purge::oldest_due;

/// We choose at random among the services, agents or roles that were deleted first, at most this many. So a deletion with very many
/// rows does not hold up the others.
const MAX_CANDIDATES: i64 = 100;

/// If more events than this wait, we emit no further events of expired roles, so that the events of requests do not wait for them.
const MAX_WAITING_BEFORE_EXPIRY: i64 = 10_000;

/// If more events than this wait, we remove nothing. This is lower, so that deletions do not hold back events of expired roles.
const MAX_WAITING_BEFORE_PURGE: i64 = MAX_WAITING_BEFORE_EXPIRY / 2;

/// Removes up to `limit` rows that depend on one deleted service, agent or role: first assignments, then roles, revoked API keys,
/// and the records that agents left or used the service. Returns their number. If no row is left, completes the deletion and
/// returns 1. Does nothing while too many events wait for their fan-out.
pub(super) async fn purge(
    context: &Context,
    kind: DeletedKind,
    tx: &mut WriteTransaction,
    limit: i64,
) -> Result<u64, OperationError> {
    if outbox::has_more_events_than(tx.conn(), MAX_WAITING_BEFORE_PURGE).await? {
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

/// Chooses one of the candidates at random; `None` if there are none.
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
    // If the role itself was deleted, this is the reason. But if the assignment had expired by then, its expiry is.
    let (at, reason) = role_deleted_at.map_or((tx.now(), reason_of_deletion), |at| (at, RevocationReason::RoleDeleted));
    let (at, reason) = match expires_at {
        Some(end) if end <= at => (end, RevocationReason::Expired),
        Some(_) | None => (at, reason),
    };
    let ended = RoleRevokedEvent { agent_id: agent, service_id: service, role_id: role, role_name: name, reason };
    emit_role_revoked(tx, context, at, ended);
}

/// Emits an event for each assignment that has expired without an event so far. Stops while too many events wait for their fan-out.
pub async fn emit_role_revoked_events(context: &Context) -> Result<(), OperationError> {
    loop {
        let mut read = context.store.read().await?;
        let has_more = assignments::has_unreported_expiries(read.conn(), context.now()).await?;
        if !has_more || outbox::has_more_events_than(read.conn(), MAX_WAITING_BEFORE_EXPIRY).await? {
            break;
        }
        drop(read);
        let batch = async |mut tx: WriteTransaction, limit| {
            let now = tx.now();
            let expired = assignments::take_unreported_expiries(tx.conn(), now, limit).await?;
            let count = expired.len() as u64;
            for ExpiredAssignment { agent, role, service, at: expired_at } in expired {
                // The row of a role stays as long as it has assignments, so `find_fate` finds it.
                let Some(fate) = roles::find_fate(tx.conn(), role).await? else { continue };
                let (at, reason) = end_of_assignment(&fate, expired_at);
                let (agent_id, service_id, role_id, role_name) = (agent, service, role, fate.name);
                let ended = RoleRevokedEvent { agent_id, service_id, role_id, role_name, reason };
                emit_role_revoked(&mut tx, context, at, ended);
            }
            Ok((tx, count))
        };
        if run_batch(context, "emit_expired_roles", batch).await? == 0 {
            // Another replica emits the events.
            break;
        }
    }
    Ok(())
}

/// When and why an assignment ended: at its expiry, or earlier with the deletion of its role or service.
fn end_of_assignment(fate: &RoleFate, expires_at: Timestamp) -> (Timestamp, RevocationReason) {
    let deletions =
        [(fate.deleted_at, RevocationReason::RoleDeleted), (fate.service_deleted_at, RevocationReason::ServiceDeleted)];
    let deletions = deletions.into_iter().filter_map(|(at, reason)| Some((at?, reason)));
    let first = deletions.min_by_key(|(at, _)| *at);
    first.filter(|(at, _)| *at < expires_at).unwrap_or((expires_at, RevocationReason::Expired))
}
