//! Reads the position of the change feed for the pings of all streams.
//!
//! Each ping needs a position that is read after the ping arrived. Pings that arrive while a read runs share the next read, so
//! the number of reads does not grow with the number of streams.

use super::context::database_unavailable;
use crate::{
    domain::change::FeedPosition,
    store::{Store, StoreError, feed},
};
use countersign_process::Shutdown;
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

/// Maximum number of waiting requests; further streams wait until there is space.
const MAX_WAITING: usize = 1024;

type Reply = oneshot::Sender<Result<FeedPosition, Status>>;

/// Requests reads of the position.
#[derive(Clone)]
pub(super) struct PositionReader(mpsc::Sender<Reply>);

impl PositionReader {
    /// Starts the task that reads positions until shutdown is requested.
    pub(super) fn start(store: Store, shutdown: Shutdown) -> Self {
        let (sender, requests) = mpsc::channel(MAX_WAITING);
        tokio::spawn(serve(store, requests, shutdown));
        Self(sender)
    }

    /// Returns a position that is read after this call.
    pub(super) async fn read(&self) -> Result<FeedPosition, Status> {
        let stopped = || Status::unavailable("the server is shutting down");
        let (reply, position) = oneshot::channel();
        self.0.send(reply).await.map_err(|_| stopped())?;
        position.await.map_err(|_| stopped())?
    }
}

async fn serve(store: Store, mut requests: mpsc::Receiver<Reply>, shutdown: Shutdown) {
    let mut waiting = Vec::new();
    loop {
        tokio::select! {
            () = shutdown.requested() => return,
            count = requests.recv_many(&mut waiting, MAX_WAITING) => if count == 0 { return },
        }
        let position = read_position(&store).await.map_err(|error| database_unavailable(&error));
        for reply in waiting.drain(..) {
            // Sending fails if the stream has ended, which is no problem.
            let _ignored = reply.send(position.clone());
        }
    }
}

async fn read_position(store: &Store) -> Result<FeedPosition, StoreError> {
    feed::position(store.read().await?.conn()).await
}
