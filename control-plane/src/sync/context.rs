//! What all streams share, and the gRPC statuses that more than one module returns.

use super::feed::ChangeFeed;
use crate::{
    metrics::Metrics,
    store::{Store, StoreError},
};
use countersign_process::Shutdown;
use std::time::Duration;
use tokio::sync::Semaphore;
use tonic::Status;

/// Settings of the control plane that each sidecar receives when it connects.
#[derive(Debug, Clone)]
pub struct SidecarSettings {
    /// The `iss` that tokens must have.
    pub issuer: String,
    /// A sidecar refuses all requests when its last confirmation is older than this.
    pub max_staleness: Duration,
}

/// What all streams share.
pub(super) struct SyncContext {
    pub(super) store: Store,
    pub(super) feed: ChangeFeed,
    pub(super) settings: SidecarSettings,
    pub(super) metrics: Metrics,
    pub(super) shutdown: Shutdown,
    /// Limits concurrent reads for followers that have just connected.
    pub(super) initial_reads: Semaphore,
}

/// The follower has no valid service API key.
pub(super) fn invalid_key() -> Status {
    Status::unauthenticated("service_key_invalid")
}

/// The database cannot be read. The cause is logged here and not sent.
pub(super) fn database_unavailable(error: &StoreError) -> Status {
    tracing::error!(%error, "cannot read the database for a sync stream");
    Status::unavailable("the database cannot be read")
}
