//! Runs background work in batches: small transactions with pauses, so that requests are served between them.
//!
//! The number of rows of a batch follows the time that the last ones took. The batches of all background jobs of a process take
//! turns, and each is followed by a pause. So background work uses at most a third of the time of SQLite's only writer.

use crate::{
    domain::housekeeping::BatchSize,
    operations::{Context, OperationError},
    store::{WriteTransaction, purge::DeletedKind},
};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// The turn of background jobs, and the sizes of their batches.
#[derive(Default)]
pub struct BatchTurns {
    /// Whoever waits for the turn gets it in the order of arrival.
    turn: tokio::sync::Mutex<()>,
    sizes: Mutex<HashMap<&'static str, BatchSize>>,
    /// The turn in which rows of each kind were removed last.
    purge_turns: Mutex<HashMap<DeletedKind, String>>,
}

/// The result of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batch {
    /// The number of removed rows.
    Removed(u64),
    /// Another replica is doing the same work.
    BusyElsewhere,
}

impl BatchTurns {
    fn size(&self, job: &'static str) -> BatchSize {
        let sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        sizes.get(job).copied().unwrap_or_default()
    }

    /// The turn in which rows were removed last; empty before the first one.
    pub(super) fn last_purge_turn(&self, kind: DeletedKind) -> String {
        let turns = self.purge_turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.get(&kind).cloned().unwrap_or_default()
    }

    pub(super) fn set_last_purge_turn(&self, kind: DeletedKind, turn: String) {
        self.purge_turns.lock().unwrap_or_else(PoisonError::into_inner).insert(kind, turn);
    }

    fn set_size(&self, job: &'static str, size: BatchSize) {
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner).insert(job, size);
    }
}

/// Waits for the turn, runs one transaction of a job, and pauses. `work` gets the maximum number of rows to remove, and returns
/// the number of rows that it has removed.
pub async fn run_batch<F>(
    context: &Context,
    job: &'static str,
    work: impl Fn(WriteTransaction, i64) -> F,
) -> Result<Batch, OperationError>
where
    F: Future<Output = Result<(WriteTransaction, u64), OperationError>>,
{
    let turns = &context.batches;
    let _turn = turns.turn.lock().await;
    let size = turns.size(job);
    let waiting_since = context.since_boot();
    let transaction = async |mut tx: WriteTransaction| {
        // The time of waiting for the lock of the writer does not count.
        let began_at = context.since_boot();
        if !context.store.try_begin_job(&mut tx, job).await? {
            return Ok::<_, OperationError>(tx.commit((Batch::BusyElsewhere, size, began_at)).await?);
        }
        let (tx, removed) = work(tx, size.rows()).await?;
        // Fewer rows would not make a slow disk faster, so the time of the commit does not count.
        let next = size.after(removed, elapsed(context, began_at), context.store.pace());
        Ok(tx.commit((Batch::Removed(removed), next, began_at)).await?)
    };
    let result = context.store.write_alone(job, transaction).await;
    let (next, began_at) = match result {
        Ok((_, next, began_at)) => (next, began_at),
        Err(_) => (size.halved(), waiting_since),
    };
    turns.set_size(job, next);
    tokio::time::sleep(context.store.pace().pause_after(elapsed(context, began_at))).await;
    Ok(result?.0)
}

fn elapsed(context: &Context, since: Duration) -> Duration {
    context.since_boot().saturating_sub(since)
}
