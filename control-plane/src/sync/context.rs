//! The state that all sync streams share, and the gRPC statuses that several modules return.

use super::{
    feed::ChangeFeed, key_checks::KeyChecks, page_cache::PageCache, position_reader::PositionReader,
    stream_limits::StreamLimits,
};
use crate::{
    domain::agent::OwnerHash,
    ephemeral::Failures,
    metrics::Metrics,
    sidecars::Sidecars,
    store::{Store, StoreError},
};
use countersign_identity::{AgentHashKey, ServiceId, agent_hash::HASH_KEY_LEN};
use countersign_process::{Places, Shutdown, server::Network};
use std::{sync::Arc, time::Duration};
use tonic::Status;
use zeroize::Zeroizing;

/// Settings of the control plane that each sidecar receives when it connects.
#[derive(Debug, Clone)]
pub struct SidecarSettings {
    /// The `iss` that tokens must have.
    pub issuer: String,
    /// A sidecar refuses all requests if it sent the last answered ping `max_staleness` ago or earlier.
    pub max_staleness: Duration,
}

/// The intervals of the sync streams. Tests replace them.
#[derive(Debug, Clone, Copy)]
pub struct SyncIntervals {
    /// Interval at which the API key of a sidecar is checked again, and whether the sidecar is silent. The revocation of a key is a
    /// change of the settings of the service, which causes a check at once, so the interval matters for the key only if a previous
    /// version revoked it.
    pub key_check: Duration,
}

impl Default for SyncIntervals {
    fn default() -> Self {
        Self { key_check: Duration::from_secs(30) }
    }
}

/// The secret of the deployment from which the key of each service for agent hashes is derived.
#[derive(Clone)]
pub struct AgentHashSecret(Zeroizing<[u8; HASH_KEY_LEN]>);

impl AgentHashSecret {
    /// Wraps the bytes of the secret.
    pub fn new(bytes: [u8; HASH_KEY_LEN]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The key of a service.
    pub(super) fn key_of(&self, service: ServiceId) -> AgentHashKey {
        AgentHashKey::derive(&self.0, service)
    }
}

/// Maximum number of reads of the database for streams that catch up, at the same time. When many sidecars connect at once, their reads
/// must not use all connections.
const MAX_READS: usize = 2;

/// The reads of the database for streams that catch up: one at a time for each owner, who may have hundreds of services.
#[derive(Clone)]
pub(super) struct OwnerReads(Places<OwnerHash>);

impl OwnerReads {
    pub(super) fn new() -> Self {
        Self(Places::new(MAX_READS, 1))
    }

    /// Waits until data may be read for an owner, and reads it.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        owner: OwnerHash,
        read: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, Status> {
        self.0.run(owner, read).await.map_err(|error| database_unavailable(&error))
    }
}

/// The state that all sync streams share.
pub(super) struct SyncContext {
    pub(super) store: Store,
    pub(super) sidecars: Sidecars,
    pub(super) feed: ChangeFeed,
    pub(super) positions: PositionReader,
    /// Checks the API keys of open streams.
    pub(super) key_checks: KeyChecks,
    pub(super) settings: SidecarSettings,
    /// The secret from which the keys of agent hashes are derived.
    pub(super) agent_hash_secret: AgentHashSecret,
    pub(super) metrics: Metrics,
    pub(super) shutdown: Shutdown,
    /// The pages of snapshots and missed changes.
    pub(super) pages: PageCache,
    pub(super) reads: OwnerReads,
    pub(super) limits: StreamLimits,
    pub(super) intervals: SyncIntervals,
    /// Places of clients for reads of API keys.
    pub(super) key_lookups: Places<Network>,
    /// Counts invalid API keys.
    pub(super) failures: Arc<Failures>,
}

/// The gRPC status for a follower (the stream to one sidecar) without a valid API key.
pub(super) fn invalid_key() -> Status {
    Status::unauthenticated("service_key_invalid")
}

/// The gRPC status for a stream that ends because the control plane stops.
pub(super) fn shutting_down() -> Status {
    Status::unavailable("the server is shutting down")
}

/// The gRPC status for a stream whose changes were deleted before they were sent. The sidecar reconnects, and receives a snapshot
/// if it cannot resume.
pub(super) fn changes_deleted() -> Status {
    Status::unavailable("changes were deleted before they were sent; reconnect to resume")
}

/// The gRPC status for a failed read of the database. Logs the cause, which is not sent to the sidecar.
pub(super) fn database_unavailable(error: &StoreError) -> Status {
    tracing::error!(%error, "cannot read the database for a sync stream");
    Status::unavailable("the database cannot be read")
}
