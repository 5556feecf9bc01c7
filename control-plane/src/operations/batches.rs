//! Runs background work in batches: small transactions with pauses, so that requests are served between them.

use crate::{
    operations::{Context, OperationError},
    store::WriteTransaction,
};
use std::time::Duration;

/// Maximum number of rows that one transaction removes. It is small, because on SQLite a request may wait for this transaction.
const MAX_ROWS: i64 = 200;

/// The pause after a transaction.
pub const PAUSE: Duration = Duration::from_millis(10);

/// Runs one transaction of a job, then pauses. Only one job of this process runs a transaction at a time. `work` gets the maximum
/// number of rows to remove, and returns how many it has removed. Returns 0 if another replica is doing the same job.
pub async fn run_batch<F>(
    context: &Context,
    job: &'static str,
    work: impl Fn(WriteTransaction, i64) -> F,
) -> Result<u64, OperationError>
where
    F: Future<Output = Result<(WriteTransaction, u64), OperationError>>,
{
    let _turn = context.background_turn.lock().await;
    let transaction = async |mut tx: WriteTransaction| {
        if !context.store.try_begin_job(&mut tx, job).await? {
            return Ok::<_, OperationError>(tx.commit(0).await?);
        }
        let (tx, removed) = work(tx, MAX_ROWS).await?;
        Ok(tx.commit(removed).await?)
    };
    let result = context.store.write_alone(job, transaction).await;
    tokio::time::sleep(PAUSE).await;
    result
}
