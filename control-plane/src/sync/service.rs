//! The gRPC door: who may follow, and a task for each who does.

use super::{
    feed::Feed,
    follower::{Follower, Terms},
};
use crate::{
    domain::{credential::Credential, service::ServiceKey},
    metrics::Metrics,
    store::{Store, StoreError, services},
};
use countersign_identity::ApiKeyId;
use countersign_process::Shutdown;
use countersign_proto::v1::{FollowRequest, FollowResponse, sync_server::Sync};
use std::{pin::Pin, sync::Arc};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

/// Messages that may wait for a slow follower.
const QUEUE: usize = 64;

/// Followers that are brought to the present at the same time.
const GREETINGS: usize = 2;

/// What all followers share.
pub(super) struct Shared {
    pub(super) store: Store,
    pub(super) feed: Feed,
    pub(super) terms: Terms,
    pub(super) metrics: Metrics,
    pub(super) shutdown: Shutdown,
    pub(super) greetings: Semaphore,
}

/// Answers followers.
pub struct SyncService(Arc<Shared>);

impl SyncService {
    /// Puts the parts together.
    pub fn new(store: Store, feed: Feed, terms: Terms, metrics: Metrics, shutdown: Shutdown) -> Self {
        Self(Arc::new(Shared { store, feed, terms, metrics, shutdown, greetings: Semaphore::new(GREETINGS) }))
    }
}

#[tonic::async_trait]
impl Sync for SyncService {
    type FollowStream = Pin<Box<dyn Stream<Item = Result<FollowResponse, Status>> + Send>>;

    async fn follow(&self, request: Request<Streaming<FollowRequest>>) -> Result<Response<Self::FollowStream>, Status> {
        let key = authenticate(&self.0.store, &request).await?;
        let (sender, receiver) = mpsc::channel(QUEUE);
        tokio::spawn(Follower::new(self.0.clone(), key, sender).run(request.into_inner()));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

/// The service API key in the call's metadata; any scope may follow.
async fn authenticate<T: Send>(store: &Store, request: &Request<T>) -> Result<ServiceKey, Status> {
    let mut values = request.metadata().get_all("authorization").iter();
    let header = values.next().and_then(|value| value.to_str().ok());
    let text = header
        .and_then(|header| header.strip_prefix("Bearer "))
        .ok_or_else(|| Status::unauthenticated("service_key_missing"))?;
    if values.next().is_some() {
        return Err(Status::unauthenticated("credentials_malformed"));
    }
    let credential = Credential::<ApiKeyId>::parse(text).ok_or_else(invalid_key)?;
    let found = async { services::find_presented(store.read().await?.conn(), &credential).await };
    found.await.map_err(|error: StoreError| unavailable(&error))?.ok_or_else(invalid_key)
}

/// What a follower without a good key is told.
pub(super) fn invalid_key() -> Status {
    Status::unauthenticated("service_key_invalid")
}

/// What a follower is told while the database cannot be read; the reason stays here.
pub(super) fn unavailable(error: &StoreError) -> Status {
    tracing::error!(%error, "store failed");
    Status::unavailable("the database cannot be read")
}
