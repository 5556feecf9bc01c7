//! Forget what no living token can depend on, and see whether the database answers.

use super::{Context, Denied};
use crate::store::{Write, feed, idempotency, sessions};
use std::time::Duration;

/// Beyond the longest life of a token, for clocks that run apart.
const MARGIN: Duration = Duration::from_mins(5);

/// Raises the floor past changes that are older than every living token, and forgets dead logins and requests that will not
/// come again.
pub async fn housekeep(context: &Context) -> Result<(), Denied> {
    let horizon = context.now().before(context.rules.access_life + MARGIN);
    let work = async |mut tx: Write| {
        feed::raise_floor(tx.conn(), horizon).await?;
        sessions::forget_before(tx.conn(), horizon).await?;
        let now = tx.now();
        idempotency::forget(tx.conn(), now).await?;
        Ok::<_, Denied>(tx.commit(()).await?)
    };
    context.store.write("housekeep", work).await
}

/// How the database is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseHealth {
    /// It answers, and the last write succeeded.
    Up,
    /// It answers, and the last write failed.
    ReadOnly,
    /// It does not answer in time.
    Down,
}

/// Asks the database for something that is always there.
pub async fn probe_database(context: &Context, patience: Duration) -> DatabaseHealth {
    let probe = async { feed::position(context.store.read().await?.conn()).await };
    match tokio::time::timeout(patience, probe).await {
        Ok(Ok(_)) if context.store.is_writable() => DatabaseHealth::Up,
        Ok(Ok(_)) => DatabaseHealth::ReadOnly,
        Ok(Err(_)) | Err(_) => DatabaseHealth::Down,
    }
}
