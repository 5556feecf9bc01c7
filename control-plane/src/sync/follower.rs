//! A follower (the stream to one sidecar) sends a snapshot or the missed changes first, then every change after its commit.
//!
//! Invariant: a pong (the reply to a ping of the sidecar) confirms a revision, and is sent only after all changes up to that
//! revision.

use super::{
    change_batch::{self, BatchRange, ChangeBatch, Changes, InitialChanges, ReadScope},
    context::{SyncContext, database_unavailable, invalid_key},
    encode::StreamFormat,
    feed::Subscription,
};
use crate::{
    domain::service::ServiceKey,
    store::{StoreError, feed::RecipientFilter, services},
};
use countersign_identity::Revision;
use countersign_proto::v1::{
    self, FollowRequest, FollowResponse, Hello, follow_request::Message as RequestMessage,
    follow_response::Message as ResponseMessage,
};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::{
    sync::mpsc::{self, error::TryRecvError},
    time::{interval, timeout},
};
use tonic::{Status, Streaming};

/// Timeout for the `Hello` message of a sidecar, and for space in the queue of messages to a slow sidecar.
const FOLLOWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval at which the API key of a sidecar is checked again. The revocation of a key is a change of the settings of the
/// service, which causes a check at once, so this interval matters only if a previous version revoked the key.
const KEY_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// The protocol version since which sidecars understand hashes of agent ids.
const HASHES_SINCE_VERSION: u32 = 1;

/// Maximum number of unanswered pings. A sidecar with more unanswered pings is disconnected.
const MAX_PENDING_PINGS: usize = 64;

/// The server side of the stream to one sidecar.
pub(super) struct Follower {
    context: Arc<SyncContext>,
    key: ServiceKey,
    format: StreamFormat,
    sender: mpsc::Sender<Result<FollowResponse, Status>>,
    /// Whether the stream contains changes that concern unbound tokens.
    includes_unbound: bool,
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
        let format = StreamFormat { service: key.service, settings: context.settings.clone(), agent_hash_key: None };
        let (sent_revision, pending_pongs) = (Revision::default(), VecDeque::new());
        Self { context, key, format, sender, includes_unbound: false, sent_revision, pending_pongs }
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
        let mut subscription = self.context.feed.subscribe(self.key.service);
        let shutdown = self.context.shutdown.clone();
        let Hello { revision, protocol_version } = tokio::select! {
            () = shutdown.requested() => return Err(shutting_down()),
            hello = timeout(FOLLOWER_TIMEOUT, receive_hello(&mut requests)) => hello.map_err(|_| Status::deadline_exceeded("timed out waiting for Hello"))??,
        };
        if protocol_version >= HASHES_SINCE_VERSION {
            self.format.agent_hash_key = Some(self.context.agent_hash_secret.key_of(self.key.service));
        }
        let revision = Revision::new(revision);
        if self.key.revoked_at.is_some() {
            return self.send_deletion(revision).await;
        }
        self.send_initial(revision, &subscription).await?;
        let mut key_check = interval(KEY_CHECK_INTERVAL);
        loop {
            tokio::select! {
                () = shutdown.requested() => return Err(shutting_down()),
                request = requests.message() => match request? {
                    Some(FollowRequest { message: Some(RequestMessage::Ping(ping)) }) => self.record_ping(ping.number).await?,
                    Some(_) => return Err(Status::invalid_argument("only Ping may follow Hello")),
                    None => return Ok(()),
                },
                batch = subscription.batches.recv() => {
                    let batch = batch.ok_or_else(too_slow)?;
                    self.forward(&batch, &subscription).await?;
                }
                // Only a follower with pending pongs is woken by changes that do not concern it.
                _ = subscription.distributed.changed(), if !self.pending_pongs.is_empty() => {}
                _ = key_check.tick() => self.check_key_or_send_deletion().await?,
            }
            self.send_pongs(&mut subscription).await?;
        }
    }

    /// Sends the changes since the revision of the sidecar, or a snapshot if the sidecar cannot resume at this revision.
    async fn send_initial(&mut self, revision: Revision, subscription: &Subscription) -> Result<(), Status> {
        let context = Arc::clone(&self.context);
        if let Some(initial) = self.read(change_batch::read_since(&context.store, self.read_scope(), revision)).await? {
            self.set_includes_unbound(initial.accepts_unbound, subscription);
            for delta in self.format.delta(initial.range, &initial.changes) {
                self.send(ResponseMessage::Delta(delta)).await?;
            }
            self.sent_revision = initial.range.revision;
            return Ok(());
        }
        self.send_snapshot(subscription).await
    }

    async fn send_snapshot(&mut self, subscription: &Subscription) -> Result<(), Status> {
        let context = Arc::clone(&self.context);
        let snapshot = self.read(change_batch::read_snapshot(&context.store, self.read_scope())).await?;
        let InitialChanges { range, accepts_unbound, changes } = snapshot;
        self.set_includes_unbound(accepts_unbound, subscription);
        for page in self.format.snapshot(range, &changes) {
            self.send(ResponseMessage::Snapshot(page)).await?;
        }
        self.sent_revision = range.revision;
        Ok(())
    }

    /// Reads data for one sidecar only. The number of concurrent reads is limited: when many sidecars reconnect at once, the
    /// reads must not use all database connections.
    async fn read<T>(&self, read: impl Future<Output = Result<T, StoreError>>) -> Result<T, Status> {
        let _permit = self.context.initial_reads.acquire().await.map_err(|_| shutting_down())?;
        if self.sender.is_closed() {
            return Err(Status::cancelled("the follower has disconnected"));
        }
        read.await.map_err(|error| database_unavailable(&error))
    }

    const fn read_scope(&self) -> ReadScope {
        ReadScope { service: self.key.service, allows_unbound: self.format.agent_hash_key.is_some() }
    }

    fn set_includes_unbound(&mut self, accepts_unbound: bool, subscription: &Subscription) {
        self.includes_unbound = accepts_unbound && self.format.agent_hash_key.is_some();
        subscription.set_receives_unbound(self.includes_unbound);
    }

    /// Sends the changes of a batch that concern the service of the sidecar. If the service begins to accept unbound tokens,
    /// sends a snapshot, because the sidecar did not receive the earlier changes that concern such tokens.
    async fn forward(&mut self, batch: &ChangeBatch, subscription: &Subscription) -> Result<(), Status> {
        if batch.range.revision <= self.sent_revision {
            return Ok(());
        }
        let filter = RecipientFilter { service: self.key.service, includes_unbound: self.includes_unbound };
        let changes = batch.changes_for(filter);
        let included_unbound = self.includes_unbound;
        // The revocation of an API key changes the settings of the service. The deletion of the service revokes the key as
        // well, but its sidecars must learn of the deletion.
        if changes.accepts_unbound.is_some() && !changes.is_deleted {
            self.check_key().await?;
        }
        if let Some(accepts_unbound) = changes.accepts_unbound {
            self.set_includes_unbound(accepts_unbound, subscription);
        }
        if self.includes_unbound && !included_unbound {
            self.send_snapshot(subscription).await?;
        } else {
            self.send_changes(batch.range, &changes).await?;
            self.observe_propagation(batch.range.revision);
        }
        if changes.is_deleted { Err(invalid_key()) } else { Ok(()) }
    }

    async fn send_changes(&mut self, range: BatchRange, changes: &Changes) -> Result<(), Status> {
        // All messages except the last repeat the revision that the sidecar has. It may be lower than `range.since`, because
        // batches that do not concern the service are not sent.
        let range = BatchRange { since: self.sent_revision, ..range };
        for delta in self.format.delta(range, changes) {
            self.send(ResponseMessage::Delta(delta)).await?;
        }
        self.sent_revision = range.revision;
        Ok(())
    }

    /// Records the time since the commit of a change. A revision is the commit time in microseconds, or slightly more.
    fn observe_propagation(&self, revision: Revision) {
        let age = self.context.store.now().micros().saturating_sub(revision.number());
        self.context.metrics.propagation.observe(Duration::from_micros(u64::try_from(age).unwrap_or(0)).as_secs_f64());
    }

    /// Fails if the API key of the sidecar was revoked; the failure ends the stream.
    async fn check_key(&self) -> Result<(), Status> {
        let key = async { services::find_key(self.context.store.read().await?.conn(), self.key.id).await };
        key.await.map_err(|error: StoreError| database_unavailable(&error))?.map(drop).ok_or_else(invalid_key)
    }

    /// Checks the API key as [`Self::check_key`] does. The deletion of the service revokes its keys, and its sidecars must learn
    /// of the deletion before the stream ends.
    async fn check_key_or_send_deletion(&mut self) -> Result<(), Status> {
        let result = self.check_key().await;
        if result.is_err() {
            let is_deleted = change_batch::is_deleted(&self.context.store, self.key.service).await;
            if is_deleted.map_err(|error| database_unavailable(&error))? {
                return self.send_deletion(self.sent_revision).await;
            }
        }
        result
    }

    /// Tells a sidecar with the data of a revision that its service is deleted, and ends the stream. A sidecar without data
    /// needs no message, because it refuses all requests.
    async fn send_deletion(&mut self, revision: Revision) -> Result<(), Status> {
        if revision > Revision::default() {
            self.sent_revision = revision;
            let range = BatchRange { since: revision, revision, floor: Revision::default() };
            self.send_changes(range, &Changes::of_deleted_service()).await?;
        }
        Err(invalid_key())
    }

    /// Reads the current position of the change feed, and queues a pong for this position until all changes up to the position
    /// are sent.
    async fn record_ping(&mut self, number: u64) -> Result<(), Status> {
        let position = self.context.positions.read().await?;
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

    /// Sends the pongs for revisions up to which all changes that concern the service were sent.
    async fn send_pongs(&mut self, subscription: &mut Subscription) -> Result<(), Status> {
        if self.pending_pongs.is_empty() {
            return Ok(());
        }
        // All batches up to this revision that concern the service are in the queue, because the revision is read first.
        let distributed = *subscription.distributed.borrow_and_update();
        loop {
            match subscription.batches.try_recv() {
                Ok(batch) => self.forward(&batch, subscription).await?,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(too_slow()),
            }
        }
        self.sent_revision = self.sent_revision.max(distributed);
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

async fn receive_hello(requests: &mut Streaming<FollowRequest>) -> Result<Hello, Status> {
    match requests.message().await? {
        Some(FollowRequest { message: Some(RequestMessage::Hello(hello)) }) => Ok(hello),
        _ => Err(Status::invalid_argument("the first message must be Hello")),
    }
}

fn shutting_down() -> Status {
    Status::unavailable("the server is shutting down")
}

fn too_slow() -> Status {
    Status::unavailable("the follower is too slow; reconnect to resume")
}
