//! Removes the rows that depend on deleted services and agents, in batches, so that other writers do not wait.

use super::{expiry::emit_role_revoked_event, housekeeping::MAX_TRANSACTION_TIME};
use crate::{
    domain::webhook::event::RevocationReason,
    operations::{Context, OperationError},
    store::{
        WriteTransaction,
        assignments::{self, RemovedAssignment, RoleRevocation},
        purge::{self, Deleted, RemainingAssignment},
    },
};

/// Maximum number of deleted services, and of deleted agents, of one run.
const MAX_DELETED_PER_RUN: i64 = 100;

/// Maximum number of assignments, each with an event, that one transaction removes.
const ASSIGNMENT_BATCH_SIZE: i64 = 200;

/// Maximum number of rows of a table that one transaction removes.
const BATCH_SIZE: i64 = 1000;

/// Removes what depends on deleted services and agents: assignments, with an event for each, and roles, revoked API keys,
/// departures and contacts. A run that is interrupted is continued by the next run.
pub async fn purge_deleted(context: &Context) -> Result<(), OperationError> {
    let due = purge::list_due(context.store.read().await?.conn(), context.now(), MAX_DELETED_PER_RUN).await?;
    for deleted in due {
        while remove_assignments(context, deleted).await? {}
        let remove = async |mut tx: WriteTransaction| {
            let removed = purge::delete_dependants(tx.conn(), deleted, BATCH_SIZE).await?;
            Ok::<_, OperationError>(tx.commit(removed > 0).await?)
        };
        while context.store.write("purge_deleted", remove).await? {}
        let finish = async |mut tx: WriteTransaction| {
            let now = tx.now();
            purge::finish(tx.conn(), deleted, now, MAX_TRANSACTION_TIME).await?;
            Ok::<_, OperationError>(tx.commit(()).await?)
        };
        context.store.write("finish_purge", finish).await?;
    }
    Ok(())
}

/// Removes a batch of assignments. Returns whether there was any.
async fn remove_assignments(context: &Context, deleted: Deleted) -> Result<bool, OperationError> {
    let mut read = context.store.read().await?;
    let remaining = purge::list_assignments(read.conn(), deleted, ASSIGNMENT_BATCH_SIZE).await?;
    drop(read);
    if remaining.is_empty() {
        return Ok(false);
    }
    let work = async |mut tx: WriteTransaction| {
        for assignment in &remaining {
            let RemainingAssignment { agent, service, role, name: _ } = assignment;
            // Another replica may have removed the assignment.
            if let Some(removed) = assignments::remove(tx.conn(), *service, *agent, *role).await? {
                emit_event(&mut tx, context, deleted, assignment, removed);
            }
        }
        Ok::<_, OperationError>(tx.commit(()).await?)
    };
    context.store.write("remove_assignments", work).await?;
    Ok(true)
}

/// Emits the event of an assignment that ended with the deletion, or that expired before without an event.
fn emit_event(
    tx: &mut WriteTransaction,
    context: &Context,
    deleted: Deleted,
    assignment: &RemainingAssignment,
    removed: RemovedAssignment,
) {
    let RemovedAssignment { expires_at, expiry_reported } = removed;
    if expiry_reported {
        return;
    }
    let reason_of_deletion = match deleted {
        Deleted::Service(_) => RevocationReason::ServiceDeleted,
        Deleted::Agent(_) => RevocationReason::AgentDeleted,
    };
    let (at, reason) = match expires_at {
        Some(end) if end <= tx.now() => (end, RevocationReason::Expired),
        Some(_) | None => (tx.now(), reason_of_deletion),
    };
    let RemainingAssignment { agent, service, role, name } = assignment.clone();
    emit_role_revoked_event(tx, context, RoleRevocation { agent, service, role, name, at, reason });
}
