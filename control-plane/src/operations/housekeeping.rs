//! Forget what no living token can depend on, and see whether the database answers.

use super::{Context, Denied};
use crate::store::{StoreError, Write, feed, sessions};
use std::time::Duration;

/// Beyond the longest life of a token, for clocks that run apart.
const MARGIN: Duration = Duration::from_mins(5);

/// Raises the floor past changes that are older than every living token, and forgets dead logins.
pub async fn housekeep(context: &Context) -> Result<(), Denied> {
    let horizon = context.now().before(context.rules.access_life + MARGIN);
    let work = async |mut tx: Write| {
        feed::raise_floor(tx.conn(), horizon).await?;
        sessions::forget_before(tx.conn(), horizon).await?;
        Ok::<_, Denied>(tx.commit(()).await?)
    };
    context.store.write("housekeep", work).await
}

/// Asks the database for something that is always there.
pub async fn probe_database(context: &Context) -> Result<(), StoreError> {
    feed::position(context.store.read().await?.conn()).await.map(drop)
}
