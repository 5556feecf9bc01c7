//! The state that all sync streams share, and the gRPC statuses that several modules return.

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
    /// A sidecar refuses all requests if it sent the last answered ping `max_staleness` ago or earlier.
    pub max_staleness: Duration,
}

/// The state that all sync streams share.
pub(super) struct SyncContext {
    pub(super) store: Store,
    pub(super) feed: ChangeFeed,
    pub(super) settings: SidecarSettings,
    pub(super) metrics: Metrics,
    pub(super) shutdown: Shutdown,
    /// Limits concurrent database reads for followers (streams to sidecars) that have just connected.
    pub(super) initial_reads: Semaphore,
}

/// The gRPC status for a follower (the stream to one sidecar) without a valid API key.
pub(super) fn invalid_key() -> Status {
    Status::unauthenticated("service_key_invalid")
}

/// The gRPC status for a failed read of the database. Logs the cause, which is not sent to the sidecar.
pub(super) fn database_unavailable(error: &StoreError) -> Status {
    tracing::error!(%error, "cannot read the database for a sync stream");
    Status::unavailable("the database cannot be read")
}
