//! The gRPC service: authenticates sidecars, and spawns a task for each stream.

use super::{
    context::{OwnerReads, SyncContext, SyncParts, database_unavailable, invalid_key},
    follower::AcceptedStream,
    page_cache::{PageCache, PageSource},
    stream_limits::StreamLimits,
};
use crate::{
    domain::{credential::Credential, service::ServiceKey},
    store::{SharedRead, Store, StoreError, services},
};
use axum::extract::ConnectInfo;
use countersign_identity::ApiKeyId;
use countersign_process::server::{ConnectionAddresses, Network};
use countersign_proto::{
    encoded::{EncodedResponse, service::Sync as SyncRpc},
    v1::FollowRequest,
};
use std::{net::SocketAddr, pin::Pin, sync::Arc, time::Duration};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

/// How long the lookup of an API key may take. It may have to wait for other lookups from the same network.
const KEY_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of queued messages to a slow sidecar. A message has about 32 KiB.
const MAX_QUEUED_MESSAGES: usize = 3;

/// How many changes one read of the database returns. With more, each read takes longer; with fewer, a snapshot needs more reads.
pub const CHANGES_PER_READ: u32 = 4000;

/// The gRPC service `countersign.sync.v1.Sync`.
pub struct SyncService(Arc<SyncContext>);

impl SyncService {
    /// Creates a service that streams the changes of the change feed.
    pub fn new(parts: SyncParts) -> Self {
        let SyncParts { store, clock, settings, agent_hash_secret, metrics, .. } = &parts;
        let reads = OwnerReads::new();
        let pages = PageCache::new(Arc::new(PageSource {
            store: store.clone(),
            settings: settings.clone(),
            agent_hash_secret: agent_hash_secret.clone(),
            limit: parts.read_limit,
            reads: reads.clone(),
            read_count: metrics.sync.page_reads.clone(),
        }));
        let limits = StreamLimits::new(parts.connections, clock.clone(), metrics.sync.streams_refused.clone());
        let (positions, open_stream_key_checks) = (SharedRead::default(), SharedRead::default());
        Self(Arc::new(SyncContext { parts, positions, open_stream_key_checks, pages, reads, limits }))
    }
}

#[tonic::async_trait]
impl SyncRpc for SyncService {
    type FollowStream = Pin<Box<dyn Stream<Item = Result<EncodedResponse, Status>> + Send>>;

    async fn follow(&self, request: Request<Streaming<FollowRequest>>) -> Result<Response<Self::FollowStream>, Status> {
        let addresses = request.extensions().get::<ConnectInfo<ConnectionAddresses>>();
        let peer = addresses.ok_or_else(no_peer)?.0.peer;
        let key = authenticate(&self.0, &request, peer).await?;
        let place = self.0.limits.open(&key).await?;
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_MESSAGES);
        let stream = AcceptedStream { context: self.0.clone(), key, place, peer, sender };
        tokio::spawn(stream.run(request.into_inner()));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

/// Authenticates a request by the API key in its metadata. The key may have any scope, and may be a key of a deleted service, because
/// the stream must tell its sidecars to refuse all tokens.
async fn authenticate<T: Send>(
    context: &SyncContext,
    request: &Request<T>,
    peer: SocketAddr,
) -> Result<ServiceKey, Status> {
    let mut values = request.metadata().get_all("authorization").iter();
    let bearer = values.next().and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let text = bearer.ok_or_else(|| Status::unauthenticated("service_key_missing"))?;
    if values.next().is_some() {
        return Err(Status::unauthenticated("credentials_malformed"));
    }
    let credential = Credential::<ApiKeyId>::parse(text).ok_or_else(invalid_key)?;
    let client = peer.ip().to_canonical();
    let find = find_key(context.parts.store.clone(), credential);
    let lookup = context.parts.key_lookups.run(Network::of_client(client), find);
    let too_late = |_| Status::unavailable("the API key could not be checked in time");
    let found = timeout(KEY_TIMEOUT, lookup).await.map_err(too_late)?;
    let key = found.map_err(|error| database_unavailable(&error))?;
    if key.is_none() {
        // After too many failures, only the API port refuses the client. The sync port only limits concurrent lookups.
        context.parts.failures.count(client).await;
    }
    key.ok_or_else(invalid_key)
}

async fn find_key(store: Store, credential: Credential<ApiKeyId>) -> Result<Option<ServiceKey>, StoreError> {
    let mut read = store.read().await?;
    match services::find_key_by_credential(read.conn(), &credential).await? {
        Some(key) => Ok(Some(key)),
        None => services::find_key_of_deleted_service(read.conn(), &credential).await,
    }
}

/// Should not happen: the server adds the address of the peer to each request.
fn no_peer() -> Status {
    Status::internal("the address of the client is unknown")
}
