//! Lists the sidecars of a service, and reads receipts: at which sidecars a revision is in force. A sidecar *may decide* while its
//! data is fresh enough. Otherwise, it refuses all requests by itself.

use crate::{
    domain::{
        agent::OwnerHash,
        page::{ListPage, Page},
        sidecar::{Enforcement, Sidecar, SidecarInstance},
    },
    operations::{Context, OperationError, find::find_service},
    store::feed,
};
use countersign_identity::{Revision, ServiceId};
use std::time::Duration;
use tokio::time::sleep;

/// The shortest interval at which we look at the sidecars of this control plane while a request waits.
const LOCAL_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Each sidecar adds this time to [`LOCAL_POLL_INTERVAL`], so that waiting requests need little CPU time even with many sidecars.
const POLL_INTERVAL_PER_SIDECAR: Duration = Duration::from_micros(10);

/// The interval at which we read the sidecars of other control planes from the database while a request waits.
const DATABASE_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The longest time for which a request waits for sidecars.
const MAX_WAIT: Duration = Duration::from_secs(3);

/// The error for a revision above the newest one.
pub const UNKNOWN_REVISION: &str =
    "`revision` is above the newest change: it must be the `revision` of the answer to a change";

/// Lists the sidecars of a service that may decide.
pub async fn list_sidecars(
    context: &Context,
    service: ServiceId,
    page: Page<SidecarInstance>,
) -> Result<ListPage<Sidecar, SidecarInstance>, OperationError> {
    Ok(context.sidecars.list(service, page).await?)
}

/// Reads the receipt of a revision (by default, of the newest one) at the sidecars of a service. Waits until the revision is in
/// force at all of them, but at most for `wait` and [`MAX_WAIT`].
pub async fn read_enforcement(
    context: &Context,
    service: ServiceId,
    revision: Option<Revision>,
    wait: Duration,
) -> Result<Enforcement, OperationError> {
    let (newest, owner) = {
        let mut read = context.store.read().await?;
        let owner = OwnerHash::of(&find_service(read.conn(), service).await?.owner);
        (feed::position(read.conn()).await?.revision, owner)
    };
    let revision = revision.unwrap_or(newest);
    if revision > newest {
        return Err(OperationError::Conflict(UNKNOWN_REVISION.to_owned()));
    }
    let deadline = context.since_boot() + wait.min(MAX_WAIT);
    let interval = LOCAL_POLL_INTERVAL + POLL_INTERVAL_PER_SIDECAR * context.sidecars.count_here(service);
    loop {
        // First we wait for the sidecars of this control plane, which needs no database.
        while !context.sidecars.is_in_force_here(service, revision) && context.since_boot() < deadline {
            sleep(interval).await;
        }
        let receipt = context.sidecars.enforcement(Some(owner), Some(service), revision).await?;
        if receipt.is_complete() || context.since_boot() >= deadline {
            return Ok(receipt);
        }
        sleep(DATABASE_POLL_INTERVAL.min(deadline.saturating_sub(context.since_boot()))).await;
    }
}
