//! A follower (the stream to one sidecar) sends a snapshot or the missed changes first, then every change after its commit.
//!
//! Invariant: a pong (the reply to a ping of the sidecar) confirms a revision, and is sent only after all changes up to that
//! revision.

use super::{
    change_batch::{self, ChangeBatch, ReadScope},
    context::{SyncContext, database_unavailable, invalid_key},
    encode,
};
use crate::{
    domain::service::ServiceKey,
    store::{StoreError, feed, services},
};
use countersign_identity::Revision;
use countersign_proto::v1::{
    self, FollowRequest, FollowResponse, follow_request::Message as RequestMessage,
    follow_response::Message as ResponseMessage,
};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::{
    sync::{broadcast, mpsc},
    time::{interval, timeout},
};
use tonic::{Status, Streaming};

/// Timeout for the `Hello` message of a sidecar, and for space in the queue of messages to a slow sidecar.
const FOLLOWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval at which the API key of a sidecar is checked again. Each ping of the sidecar also checks the API key.
const KEY_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of unanswered pings. A sidecar with more unanswered pings is disconnected.
const MAX_PENDING_PINGS: usize = 64;

/// The server side of the stream to one sidecar.
pub(super) struct Follower {
    context: Arc<SyncContext>,
    key: ServiceKey,
    sender: mpsc::Sender<Result<FollowResponse, Status>>,
    /// All changes up to `sent_revision` have been sent.
    sent_revision: Revision,
    /// Pongs that wait until all changes up to their revisions are sent.
    pending_pongs: VecDeque<v1::Pong>,
}

impl Follower {
    pub(super) fn new(
        context: Arc<SyncContext>,
        key: ServiceKey,
        sender: mpsc::Sender<Result<FollowResponse, Status>>,
    ) -> Self {
        Self { context, key, sender, sent_revision: Revision::default(), pending_pongs: VecDeque::new() }
    }

    /// Serves the stream until it ends.
    pub(super) async fn run(mut self, requests: Streaming<FollowRequest>) {
        let streams = self.context.metrics.sync_streams.clone();
        streams.inc();
        if let Err(status) = self.serve(requests).await {
            tracing::info!(service = %self.key.service, code = ?status.code(), message = status.message(), "sync stream closed");
            // Sending fails if the sidecar has disconnected, which is no problem.
            let _ignored = self.sender.send_timeout(Err(status), FOLLOWER_TIMEOUT).await;
        }
        streams.dec();
    }

    async fn serve(&mut self, mut requests: Streaming<FollowRequest>) -> Result<(), Status> {
        // Subscribe to the change feed before the first read, so that no change between the subscription and the read is
        // missed.
        let mut batches = self.context.feed.subscribe();
        let shutdown = self.context.shutdown.clone();
        let revision = tokio::select! {
            () = shutdown.requested() => return Err(shutting_down()),
            hello = timeout(FOLLOWER_TIMEOUT, receive_hello(&mut requests)) => hello.map_err(|_| Status::deadline_exceeded("timed out waiting for Hello"))??,
        };
        self.send_initial(revision).await?;
        let mut key_check = interval(KEY_CHECK_INTERVAL);
        loop {
            tokio::select! {
                () = shutdown.requested() => return Err(shutting_down()),
                request = requests.message() => match request? {
                    Some(FollowRequest { message: Some(RequestMessage::Ping(ping)) }) => self.record_ping(ping.number).await?,
                    Some(_) => return Err(Status::invalid_argument("only Ping may follow Hello")),
                    None => return Ok(()),
                },
                batch = batches.recv() => match batch {
                    Ok(batch) => self.forward(&batch).await?,
                    Err(broadcast::error::RecvError::Lagged(_)) => return Err(too_slow()),
                    Err(broadcast::error::RecvError::Closed) => return Err(shutting_down()),
                },
                _ = key_check.tick() => self.check_key().await?,
            }
            self.send_pongs().await?;
        }
    }

    /// Sends the changes since the revision of the sidecar, or a snapshot if the change feed does not contain this revision.
    async fn send_initial(&mut self, revision: Revision) -> Result<(), Status> {
        let service = self.key.service;
        let settings = &self.context.settings;
        if let Some(batch) = self.read(ReadScope::Resume(revision, service)).await? {
            for delta in encode::delta(&batch, service, settings) {
                self.send(ResponseMessage::Delta(delta)).await?;
            }
            self.sent_revision = batch.revision;
            return Ok(());
        }
        let snapshot = self.read(ReadScope::Snapshot(service)).await?;
        let snapshot = snapshot.ok_or_else(|| Status::internal("reading the snapshot returned no data"))?;
        for page in encode::snapshot(&snapshot, service, settings) {
            self.send(ResponseMessage::Snapshot(page)).await?;
        }
        self.sent_revision = snapshot.revision;
        Ok(())
    }

    /// Reads a batch of changes for one sidecar only. The number of concurrent reads is limited: when many sidecars reconnect
    /// at once, the reads must not use all database connections.
    async fn read(&self, scope: ReadScope) -> Result<Option<ChangeBatch>, Status> {
        let _permit = self.context.initial_reads.acquire().await.map_err(|_| shutting_down())?;
        if self.sender.is_closed() {
            return Err(Status::cancelled("the follower has disconnected"));
        }
        change_batch::read_batch(&self.context.store, scope).await.map_err(|error| database_unavailable(&error))
    }

    /// Sends the changes of a broadcast batch that concern the service of the sidecar.
    async fn forward(&mut self, batch: &ChangeBatch) -> Result<(), Status> {
        if batch.revision <= self.sent_revision {
            return Ok(());
        }
        if batch.since > self.sent_revision {
            return Err(Status::unavailable("changes were missed; reconnect to resume"));
        }
        for delta in encode::delta(batch, self.key.service, &self.context.settings) {
            let revision = delta.revision.max(self.sent_revision.number());
            self.send(ResponseMessage::Delta(v1::Delta { revision, ..delta })).await?;
        }
        self.sent_revision = batch.revision;
        // A revision is the commit time in microseconds, or slightly more.
        let age = self.context.store.now().micros().saturating_sub(batch.revision.number());
        self.context.metrics.propagation.observe(Duration::from_micros(u64::try_from(age).unwrap_or(0)).as_secs_f64());
        Ok(())
    }

    /// Fails if the API key of the sidecar was revoked; the failure ends the stream.
    async fn check_key(&self) -> Result<(), Status> {
        let key = async { services::find_key(self.context.store.read().await?.conn(), self.key.id).await };
        key.await.map_err(|error: StoreError| database_unavailable(&error))?.map(drop).ok_or_else(invalid_key)
    }

    /// Reads the current position of the change feed, and queues a pong for this position until all changes up to the position
    /// are sent.
    async fn record_ping(&mut self, number: u64) -> Result<(), Status> {
        self.check_key().await?;
        let position = async { feed::position(self.context.store.read().await?.conn()).await };
        let position = position.await.map_err(|error: StoreError| database_unavailable(&error))?;
        self.pending_pongs.push_back(v1::Pong {
            number,
            revision: position.revision.number(),
            floor: position.floor.number(),
        });
        if self.pending_pongs.len() > MAX_PENDING_PINGS {
            Err(Status::resource_exhausted("too many pings"))
        } else {
            Ok(())
        }
    }

    async fn send_pongs(&mut self) -> Result<(), Status> {
        while let Some(pong) = self.pending_pongs.pop_front_if(|pong| pong.revision <= self.sent_revision.number()) {
            self.send(ResponseMessage::Pong(pong)).await?;
        }
        Ok(())
    }

    async fn send(&self, message: ResponseMessage) -> Result<(), Status> {
        let message = FollowResponse { message: Some(message) };
        let result = self.sender.send_timeout(Ok(message), FOLLOWER_TIMEOUT).await;
        result.map_err(|_| too_slow())
    }
}

async fn receive_hello(requests: &mut Streaming<FollowRequest>) -> Result<Revision, Status> {
    match requests.message().await? {
        Some(FollowRequest { message: Some(RequestMessage::Hello(v1::Hello { revision })) }) => {
            Ok(Revision::new(revision))
        }
        _ => Err(Status::invalid_argument("the first message must be Hello")),
    }
}

fn shutting_down() -> Status {
    Status::unavailable("the server is shutting down")
}

fn too_slow() -> Status {
    Status::unavailable("the follower is too slow; reconnect to resume")
}
