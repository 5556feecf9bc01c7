//! The state that all sync streams share, and the gRPC statuses that several modules return.

use super::{feed::ChangeFeed, page_cache::PageCache, stream_limits::StreamLimits};
use crate::{
    domain::{agent::OwnerHash, agent_hash_secret::AgentHashSecret, change::FeedPosition},
    ephemeral::Failures,
    metrics::Metrics,
    sidecars::Sidecars,
    store::{SharedRead, Store, StoreError, changed_data::ReadLimit, feed, services},
};
use countersign_identity::ApiKeyId;
use countersign_process::{Clock, Places, Shutdown, server::Network};
use std::{collections::HashSet, convert::Infallible, sync::Arc, time::Duration};
use tonic::Status;

/// Settings of the control plane that each sidecar receives when it connects.
#[derive(Debug, Clone)]
pub struct SidecarSettings {
    /// The `iss` that tokens must have.
    pub issuer: String,
    /// A sidecar refuses all requests when it sent its last answered ping this long ago.
    pub max_staleness: Duration,
}

/// Default interval at which a stream checks that its API key is valid and its sidecar not silent. The revocation of a key also counts
/// as a change of the service's settings, which causes a check at once.
pub const KEY_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// How many reads for streams that catch up may run at the same time. If many sidecars connect at once, these must not use all
/// database connections.
const MAX_READS: usize = 2;

/// The reads of the database for streams that catch up: one at a time for each owner, who may have hundreds of services.
#[derive(Clone)]
pub(super) struct OwnerReads(Places<OwnerHash>);

impl OwnerReads {
    pub(super) fn new() -> Self {
        Self(Places::new(MAX_READS, 1))
    }

    /// Waits until no other read of this owner runs, and fewer than [`MAX_READS`] in all; then reads.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        owner: OwnerHash,
        read: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, Status> {
        self.0.run(owner, read).await.map_err(|error| database_unavailable(&error))
    }
}

pub struct SyncParts {
    pub store: Store,
    pub sidecars: Sidecars,
    /// Limits how many API keys of new streams are read at the same time, in all and for each network of clients.
    pub key_lookups: Places<Network>,
    /// Counts the invalid API keys that a client sends to this port or to the API port.
    pub failures: Arc<Failures>,
    pub clock: Arc<dyn Clock>,
    pub feed: ChangeFeed,
    pub settings: SidecarSettings,
    pub agent_hash_secret: AgentHashSecret,
    /// How many connections the sync port accepts. It determines how many streams may be open.
    pub connections: usize,
    /// How many changes one read of the database returns.
    pub read_limit: ReadLimit,
    /// See [`KEY_CHECK_INTERVAL`].
    pub key_check_interval: Duration,
    pub metrics: Metrics,
    /// Ends the streams.
    pub shutdown: Shutdown,
}

pub(super) struct SyncContext {
    pub(super) parts: SyncParts,
    /// Reads the position of the change feed once for all pings that wait for it.
    pub(super) positions: SharedRead<Result<Option<FeedPosition>, Status>>,
    /// Checks the API keys of several open streams in one read, which returns the valid keys.
    pub(super) open_stream_key_checks: SharedRead<Result<Arc<HashSet<ApiKeyId>>, Status>, ApiKeyId>,
    /// The pages of snapshots and missed changes.
    pub(super) pages: PageCache,
    pub(super) reads: OwnerReads,
    pub(super) limits: StreamLimits,
}

impl SyncContext {
    /// The position of the change feed, read after this call. `None` if other control planes consider this one killed, so that it
    /// must not confirm sidecars.
    pub(super) async fn position(&self) -> Result<Option<FeedPosition>, Status> {
        let read = async {
            let mut read = self.parts.store.read().await?;
            let is_registered = self.parts.sidecars.is_registered(&mut read).await?;
            let position = feed::position(read.conn()).await?;
            Ok(is_registered.then_some(position))
        };
        // The future is in a box, so that streams do not keep its memory between pings.
        Box::pin(self.until_shutdown(self.positions.run(shared_with_failure(read)))).await
    }

    /// Whether an API key is valid, read after this call.
    pub(super) async fn is_valid_key(&self, key: ApiKeyId) -> Result<bool, Status> {
        let read = async |keys: Vec<ApiKeyId>| {
            let mut read = self.parts.store.read().await?;
            services::find_valid_keys(read.conn(), keys.into_iter().collect::<HashSet<_>>()).await.map(Arc::new)
        };
        let answer = self.open_stream_key_checks.ask(key, |keys| shared_with_failure(read(keys)));
        let valid = Box::pin(self.until_shutdown(answer)).await?;
        Ok(valid.contains(&key))
    }

    /// The result of a shared read, which a stream does not wait for at shutdown.
    async fn until_shutdown<T>(
        &self,
        read: impl Future<Output = Result<Result<T, Status>, Infallible>>,
    ) -> Result<T, Status> {
        let Ok(result) = self.parts.shutdown.run_until_requested(read).await.ok_or_else(shutting_down)?;
        result
    }
}

/// Makes an error the result of a read, because a [`SharedRead`] shares no errors. So all streams that wait for the read end at once.
async fn shared_with_failure<T>(
    read: impl Future<Output = Result<T, StoreError>>,
) -> Result<Result<T, Status>, Infallible> {
    Ok(read.await.map_err(|error| database_unavailable(&error)))
}

/// The gRPC status for a follower (the stream to one sidecar) without a valid API key.
pub(super) fn invalid_key() -> Status {
    Status::unauthenticated("service_key_invalid")
}

/// The gRPC status for a stream that ends because the control plane stops.
pub(super) fn shutting_down() -> Status {
    Status::unavailable("the server is shutting down")
}

/// The gRPC status for a stream that was too slow: its changes were deleted before it sent them. The sidecar reconnects, and may
/// get a snapshot.
pub(super) fn changes_deleted() -> Status {
    Status::unavailable("changes were deleted before they were sent; reconnect to resume")
}

/// The gRPC status for a failed read of the database. Logs the cause, which is not sent to the sidecar.
pub(super) fn database_unavailable(error: &StoreError) -> Status {
    tracing::error!(%error, "cannot read the database for a sync stream");
    Status::unavailable("the database cannot be read")
}
