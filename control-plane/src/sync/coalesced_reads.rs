//! Combines reads of the database that many streams need: the position of the change feed for each ping, and whether the API keys of
//! open streams are still valid.
//!
//! Only one read runs at a time, and all requests that arrive meanwhile share the next one. So reads and connections do not grow with
//! the number of streams. Invariant: a response is read after its request, so it is never older.

use super::context::{database_unavailable, shutting_down};
use crate::{
    domain::change::FeedPosition,
    sidecars::Sidecars,
    store::{Store, StoreError, feed, services},
};
use countersign_identity::ApiKeyId;
use countersign_process::Shutdown;
use std::collections::HashSet;
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

/// Maximum number of waiting requests; further streams wait until there is space.
const MAX_WAITING: usize = 1024;

pub(super) trait Source: Send + Sync + 'static {
    type Request: Send + 'static;
    type Response: Send + 'static;

    /// Reads the responses to these requests, in their order.
    fn read(
        &self,
        requests: Vec<Self::Request>,
    ) -> impl Future<Output = Result<Vec<Self::Response>, StoreError>> + Send;
}

/// A request, and where its response is sent.
type Waiting<S> = (<S as Source>::Request, oneshot::Sender<Result<<S as Source>::Response, Status>>);

pub(super) struct CoalescedReads<S: Source>(mpsc::Sender<Waiting<S>>);

impl<S: Source> CoalescedReads<S> {
    /// Also returns the task that does the reading, until shutdown is requested. The caller must run it.
    pub(super) fn new(source: S, shutdown: Shutdown) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (sender, requests) = mpsc::channel(MAX_WAITING);
        (Self(sender), serve(source, requests, shutdown))
    }

    /// Waits for a read that begins after this call, and returns its response.
    pub(super) async fn read(&self, request: S::Request) -> Result<S::Response, Status> {
        let (reply, response) = oneshot::channel();
        self.0.send((request, reply)).await.map_err(|_| shutting_down())?;
        response.await.map_err(|_| shutting_down())?
    }
}

async fn serve<S: Source>(source: S, mut requests: mpsc::Receiver<Waiting<S>>, shutdown: Shutdown) {
    loop {
        let mut waiting = Vec::new();
        tokio::select! {
            () = shutdown.requested() => return,
            count = requests.recv_many(&mut waiting, MAX_WAITING) => if count == 0 { return },
        }
        let (requests, replies): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
        // Sending fails if the stream has ended. Then nobody needs the response.
        match source.read(requests).await {
            Ok(responses) => {
                for (reply, response) in replies.into_iter().zip(responses) {
                    let _ignored = reply.send(Ok(response));
                }
            }
            Err(error) => {
                let status = database_unavailable(&error);
                for reply in replies {
                    let _ignored = reply.send(Err(status.clone()));
                }
            }
        }
    }
}

/// Reads the position of the change feed. The response is `None` if pings must not be answered now.
pub(super) type PositionReader = CoalescedReads<PositionSource>;

/// Reads the position, but only while other control planes see this one alive. Otherwise they no longer count its sidecars.
pub(super) struct PositionSource {
    pub(super) store: Store,
    pub(super) sidecars: Sidecars,
}

impl Source for PositionSource {
    type Request = ();
    type Response = Option<FeedPosition>;

    async fn read(&self, requests: Vec<()>) -> Result<Vec<Option<FeedPosition>>, StoreError> {
        let mut read = self.store.read().await?;
        let is_registered = self.sidecars.is_registered(&mut read).await?;
        let position = feed::position(read.conn()).await?;
        Ok(vec![is_registered.then_some(position); requests.len()])
    }
}

/// Requests checks. The response is whether the API key is valid.
pub(super) type KeyChecks = CoalescedReads<KeySource>;

pub(super) struct KeySource(pub(super) Store);

impl Source for KeySource {
    type Request = ApiKeyId;
    type Response = bool;

    async fn read(&self, keys: Vec<ApiKeyId>) -> Result<Vec<bool>, StoreError> {
        let distinct: HashSet<_> = keys.iter().copied().collect();
        let valid = services::find_valid_keys(self.0.read().await?.conn(), distinct).await?;
        Ok(keys.iter().map(|key| valid.contains(key)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::task::JoinSet;

    struct FaultySource;

    impl Source for FaultySource {
        type Request = u32;
        type Response = u32;

        async fn read(&self, requests: Vec<u32>) -> Result<Vec<u32>, StoreError> {
            assert!(!requests.contains(&0), "a fault");
            Ok(requests.into_iter().map(|request| request + 1).collect())
        }
    }

    #[tokio::test]
    async fn panic_of_a_read_ends_the_task_and_not_only_the_stream() {
        let (reads, task) = CoalescedReads::new(FaultySource, Shutdown::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(task);
        assert_eq!(reads.read(1).await.unwrap(), 2);
        reads.read(0).await.unwrap_err();
        assert!(tasks.join_next().await.unwrap().unwrap_err().is_panic());
        reads.read(1).await.unwrap_err();
    }
}
