//! Deletes expired rows, in batches.

use super::expired_rows;
use crate::{
    domain::housekeeping::ExpiredData,
    operations::{Context, OperationError, batches::run_batch},
    store::{WriteTransaction, feed},
};
use countersign_identity::Timestamp;
use std::time::Duration;

/// Added to the lifetime of tokens, to allow for clock skew between replicas.
pub(super) const CLOCK_SKEW_MARGIN: Duration = Duration::from_mins(5);

/// No transaction takes longer than this. So one minute after the deletion of a webhook target, no transaction can still insert
/// deliveries to the target. The same is true for rows of a deleted service or agent.
pub(super) const MAX_TRANSACTION_TIME: Duration = Duration::from_mins(1);

/// After this time, we raise the revision floor again and begin a new round, even if rows are left. A pass consists of such rounds,
/// and is complete when no row is left.
const MAX_ROUND_TIME: Duration = Duration::from_secs(30);

/// Whether rows are left to delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Complete,
    RowsRemain,
}

/// Raises the revision floor, which is the oldest revision from which a sidecar can resume, past changes that are older than every
/// live token. Then deletes everything that has expired. Rows of deleted services, agents and roles are left to [`purge_deleted`].
/// If the floor or one kind of rows fails, the others go on.
pub async fn run_housekeeping(context: &Context) -> Result<(), OperationError> {
    loop {
        let raised = raise_floor(context).await;
        let swept = sweep(context, |data| !data.is_dependent()).await;
        raised?;
        if swept? == Progress::Complete {
            context.housekeeping.record_complete_pass(context.since_boot());
            return Ok(());
        }
    }
}

/// Removes what depends on deleted services, agents and roles. The next run continues an interrupted one.
pub async fn purge_deleted(context: &Context) -> Result<(), OperationError> {
    while sweep(context, ExpiredData::is_dependent).await? == Progress::RowsRemain {}
    Ok(())
}

/// Raises the revision floor, in a transaction of its own before many rows are deleted. As long as the floor is low, sidecars that
/// resume get more changes than necessary.
async fn raise_floor(context: &Context) -> Result<(), OperationError> {
    let horizon = expired_rows::token_horizon(context);
    let work = async |mut tx: WriteTransaction| {
        feed::raise_floor(tx.conn(), horizon).await?;
        Ok::<_, OperationError>(tx.commit(()).await?)
    };
    context.store.write("raise_floor", work).await
}

/// Deletes a batch of each included kind in turn, until nothing is left of what could be deleted at the start, or until
/// [`MAX_ROUND_TIME`] is over. If a kind fails, its rows wait for the next sweep.
async fn sweep(context: &Context, includes: fn(ExpiredData) -> bool) -> Result<Progress, OperationError> {
    // Rows that expire after `until` belong to the next round. If they belonged to this round, it might never end.
    let (began_at, until) = (context.since_boot(), context.now());
    let start = Timestamp::from_micros(0);
    // The kinds with rows left, each with the time since when its oldest row can be deleted. The search for the next rows begins there.
    let mut pending: Vec<_> =
        ExpiredData::ALL.iter().filter(|data| includes(**data)).map(|data| (*data, start)).collect();
    let mut failure = None;
    while !pending.is_empty() {
        let mut remaining = Vec::with_capacity(pending.len());
        for (data, from) in pending {
            match delete_batch(context, data, from, until).await {
                Ok(oldest) => remaining.extend(oldest.map(|from| (data, from))),
                Err(error) => {
                    tracing::warn!(
                        data = data.as_str(),
                        %error,
                        "expired rows cannot be deleted; /health reports it if this continues"
                    );
                    failure = Some(error);
                }
            }
        }
        if context.since_boot().saturating_sub(began_at) >= MAX_ROUND_TIME {
            return Ok(Progress::RowsRemain);
        }
        pending = remaining;
    }
    failure.map_or(Ok(Progress::Complete), Err)
}

/// If the oldest row of a kind became deletable at `until` or earlier, deletes a batch. Rows from before `from` are already gone.
/// Returns since when the oldest row was deletable, where the next search begins; `None` if nothing is left.
async fn delete_batch(
    context: &Context,
    data: ExpiredData,
    from: Timestamp,
    until: Timestamp,
) -> Result<Option<Timestamp>, OperationError> {
    let oldest = expired_rows::oldest_due(context, data, from).await?;
    context.housekeeping.set_oldest(data, oldest);
    let Some(from) = oldest.filter(|oldest| *oldest <= until) else { return Ok(None) };
    let batch = async |mut tx: WriteTransaction, limit| {
        let deleted = expired_rows::delete(context, data, &mut tx, from, limit).await?;
        Ok((tx, deleted))
    };
    match run_batch(context, data.as_str(), batch).await? {
        // Another replica deletes the rows, or we cannot delete a row yet. The next run looks again.
        0 => Ok(None),
        rows => {
            context.housekeeping.add_deleted(data, rows);
            Ok(Some(from))
        }
    }
}
