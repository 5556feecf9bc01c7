//! A follower (the stream to one sidecar) first sends a snapshot or the missed changes (`catch_up`), then each new change.
//!
//! Invariant: a pong (the reply to a ping of the sidecar) confirms a revision. We send it only after all changes up to this revision.

use super::{
    catch_up::{SidecarState, Start},
    change_batch::Changes,
    context::{SyncContext, invalid_key, shutting_down},
    encode::{PageKind, StreamFormat},
    feed::{ServiceBatch, Subscription},
    page_reader::PageRun,
    pings::PingReceiver,
    stream_limits::StreamPlace,
};
use crate::{
    domain::{
        service::ServiceKey,
        sidecar::{SidecarIdentity, SidecarInstance},
    },
    sidecars::{NewStream, OpenStream},
};
use countersign_identity::Revision;
use countersign_proto::{
    PROTOCOL_VERSION,
    encoded::EncodedResponse,
    v1::{self, FollowRequest, Hello, follow_request::Message as RequestMessage},
};
use std::{
    cmp::Ordering,
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::{
    sync::mpsc::{self, error::TryRecvError},
    time::{Interval, MissedTickBehavior, interval, timeout},
};
use tonic::{Status, Streaming};

/// How long a follower waits for the `Hello` of the sidecar, for the record of its stream, and for space in the queue to a slow sidecar.
const FOLLOWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of pongs of one stream that wait for changes to be sent.
const MAX_PENDING_PONGS: usize = 16;

/// The queue of messages to a sidecar.
pub(super) type MessageSender = mpsc::Sender<Result<EncodedResponse, Status>>;

/// The server side of the stream to one sidecar.
pub(super) struct Follower {
    pub(super) context: Arc<SyncContext>,
    pub(super) key: ServiceKey,
    pub(super) format: Arc<StreamFormat>,
    sender: MessageSender,
    /// Ticks when the follower must check the API key again, and whether the sidecar is silent.
    pub(super) key_check: Interval,
    /// Whether the stream contains changes that concern unbound tokens.
    pub(super) includes_unbound: bool,
    /// The revision of the data with which the sidecar connected.
    pub(super) sidecar_revision: Revision,
    /// What the sidecar has received and reported.
    pub(super) stream: OpenStream,
    /// All changes up to `sent_revision` have been sent.
    pub(super) sent_revision: Revision,
    /// The newest revision of the change feed that this follower has seen.
    pub(super) known_revision: Revision,
    /// The floor of the change feed when the sidecar connected.
    pub(super) known_floor: Revision,
    /// The pages that are being sent, as long as the cache has them.
    pub(super) run: Weak<PageRun>,
    /// Pongs that wait until all changes up to their revisions are sent.
    pending_pongs: VecDeque<v1::Pong>,
    _place: StreamPlace,
}

/// Why the live changes are no longer sent.
enum FollowEnd {
    /// The sidecar has ended its requests.
    RequestsEnded,
    /// The service has begun to accept unbound tokens.
    NeedsSnapshot,
}

/// A stream whose API key is valid, before its Hello.
pub(super) struct AcceptedStream {
    pub(super) context: Arc<SyncContext>,
    pub(super) key: ServiceKey,
    pub(super) place: StreamPlace,
    pub(super) peer: SocketAddr,
    pub(super) sender: MessageSender,
}

impl AcceptedStream {
    pub(super) async fn run(self, requests: Streaming<FollowRequest>) {
        let (streams, service, sender) =
            (self.context.parts.metrics.sync.streams.clone(), self.key.service, self.sender.clone());
        streams.inc();
        if let Err(status) = self.serve(requests).await {
            tracing::info!(%service, code = ?status.code(), status = status.message(), "sync stream closed");
            // Sending fails if the sidecar has disconnected, which is no problem.
            let _ignored = sender.send_timeout(Err(status), FOLLOWER_TIMEOUT).await;
        }
        streams.dec();
    }

    async fn serve(self, mut requests: Streaming<FollowRequest>) -> Result<(), Status> {
        let hello = tokio::select! {
            () = self.context.parts.shutdown.requested() => return Err(shutting_down()),
            hello = timeout(FOLLOWER_TIMEOUT, receive_hello(&mut requests)) => hello.map_err(|_| Status::deadline_exceeded("timed out waiting for Hello"))??,
        };
        let Self { context, key, place, peer, sender } = self;
        let (state, new) = parse_hello(hello, &key, peer, context.parts.settings.max_staleness)?;
        let stream = context.parts.sidecars.open(new);
        let agent_hash_key = context.parts.agent_hash_secret.key_of(key.service);
        let format =
            Arc::new(StreamFormat { service: key.service, settings: context.parts.settings.clone(), agent_hash_key });
        let none = Revision::default();
        let mut key_check = interval(context.parts.key_check_interval);
        // Do not make up for missed ticks: after several checks at once, the sidecar would seem to be silent.
        key_check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut follower = Follower {
            context,
            key,
            format,
            sender,
            key_check,
            includes_unbound: false,
            sidecar_revision: none,
            stream,
            sent_revision: none,
            known_revision: none,
            known_floor: none,
            run: Weak::new(),
            pending_pongs: VecDeque::new(),
            _place: place,
        };
        // In a box, because the state of a follower is large.
        Box::pin(follower.serve(requests, state)).await
    }
}

impl Follower {
    async fn serve(&mut self, requests: Streaming<FollowRequest>, state: SidecarState) -> Result<(), Status> {
        let shutdown = self.context.parts.shutdown.clone();
        // Authentication accepts a revoked key only if its service is deleted, which the sidecar must learn.
        if self.key.revoked_at.is_some() {
            return self.send_deletion(state.revision).await;
        }
        tokio::select! {
            () = shutdown.requested() => return Err(shutting_down()),
            () = self.sender.closed() => return Err(disconnected()),
            recorded = timeout(FOLLOWER_TIMEOUT, self.stream.record()) => recorded.map_err(|_| not_recorded())?,
        }
        let mut pings = PingReceiver::new(requests, self.stream.status());
        let mut start = Start::Resume(state);
        loop {
            let sender = self.sender.clone();
            let subscription = tokio::select! {
                () = shutdown.requested() => return Err(shutting_down()),
                () = sender.closed() => return Err(disconnected()),
                status = pings.collect() => return Err(status),
                // In a box, so that the large state of `catch_up` is freed before the stream sends live changes.
                result = Box::pin(self.catch_up(start)) => result?,
            };
            drop(sender);
            match self.follow(&mut pings, subscription).await? {
                FollowEnd::RequestsEnded => return Ok(()),
                FollowEnd::NeedsSnapshot => start = Start::NewSnapshot,
            }
        }
    }

    /// Sends each change after its commit.
    async fn follow(&mut self, pings: &mut PingReceiver, mut subscription: Subscription) -> Result<FollowEnd, Status> {
        let shutdown = self.context.parts.shutdown.clone();
        loop {
            let mut needs_snapshot = false;
            tokio::select! {
                () = shutdown.requested() => return Err(shutting_down()),
                ping = pings.next() => match ping? {
                    Some(number) => self.record_ping(number).await?,
                    None => return Ok(FollowEnd::RequestsEnded),
                },
                batch = subscription.batches.recv() => {
                    let batch = batch.ok_or_else(too_slow)?;
                    needs_snapshot = self.forward(batch, &mut subscription).await?;
                }
                // Changes that do not concern the service wake the follower only if pongs wait for their revisions.
                _ = subscription.distributed.changed(), if !self.pending_pongs.is_empty() => {}
                _ = self.key_check.tick() => {
                    pings.check_silence()?;
                    // The box keeps the state of rare work out of the memory of each stream.
                    Box::pin(self.check_key_or_send_deletion()).await?;
                }
            }
            if needs_snapshot || self.send_pongs(&mut subscription).await? {
                return Ok(FollowEnd::NeedsSnapshot);
            }
        }
    }

    /// Sends the changes of a batch, and of the batches that wait behind it. Returns true if the sidecar needs a snapshot instead, because
    /// the service begins to accept unbound tokens: the sidecar lacks the earlier changes that concern such tokens.
    async fn forward(&mut self, batch: ServiceBatch, subscription: &mut Subscription) -> Result<bool, Status> {
        // Pages that were sent after the subscription can already contain the batch.
        if batch.revision <= self.sent_revision {
            return Ok(false);
        }
        let batch = subscription.coalesce(batch, self.includes_unbound);
        let changes = &batch.changes;
        self.known_revision = self.known_revision.max(batch.read_at);
        // A revoked API key counts as a change of the settings, so check the key of this stream. The deletion of the service
        // revokes the key too, but then the sidecar must learn of the deletion first.
        if changes.settings.is_some() && !changes.is_deleted {
            Box::pin(self.check_key()).await?;
        }
        let already_included_unbound = self.includes_unbound;
        if let Some(accepts_unbound) = changes.accepts_unbound() {
            self.includes_unbound = accepts_unbound;
            subscription.set_receives_unbound(self.includes_unbound);
        }
        if self.includes_unbound && !already_included_unbound {
            self.known_revision = self.known_revision.max(batch.revision);
            return Ok(true);
        }
        self.send_changes(batch.revision, changes).await?;
        self.observe_propagation(batch.oldest);
        if changes.is_deleted { Err(invalid_key()) } else { Ok(false) }
    }

    /// Sends changes. Only the last message has the new revision, because before it, the sidecar lacks some of the changes.
    async fn send_changes(&mut self, revision: Revision, changes: &Changes) -> Result<(), Status> {
        let format = Arc::clone(&self.format);
        let mut bodies = format.bodies(PageKind::Changes, changes).peekable();
        while let Some(body) = bodies.next() {
            let is_last = bodies.peek().is_none();
            self.send_delta(body, if is_last { revision } else { self.sent_revision }).await?;
        }
        self.set_sent_revision(revision);
        Ok(())
    }

    /// Call this when all changes up to a revision have been sent.
    pub(super) fn set_sent_revision(&mut self, revision: Revision) {
        self.sent_revision = revision;
        self.stream.status().covers(revision);
    }

    /// Records the time since the commit of a change. A revision is the commit time in microseconds, or slightly more.
    fn observe_propagation(&self, revision: Revision) {
        let age = self.context.parts.store.now().micros().saturating_sub(revision.number());
        let age = Duration::from_micros(u64::try_from(age).unwrap_or(0));
        self.context.parts.metrics.sync.propagation.observe(age.as_secs_f64());
    }

    /// Fails if the API key of the sidecar was revoked; the failure ends the stream.
    async fn check_key(&self) -> Result<(), Status> {
        if self.context.is_valid_key(self.key.id).await? { Ok(()) } else { Err(invalid_key()) }
    }

    /// Like [`Self::check_key`], but tells the sidecar first if its key is revoked because its service is deleted.
    pub(super) async fn check_key_or_send_deletion(&mut self) -> Result<(), Status> {
        let result = self.check_key().await;
        if result.is_err() && self.is_deleted().await? {
            return self.send_deletion(self.sent_revision.max(self.sidecar_revision)).await;
        }
        result
    }

    /// Tells the sidecar that its service is deleted, and ends the stream. All messages have `revision`, the one of the sidecar's data. A
    /// sidecar without data needs no message, because it refuses all requests.
    pub(super) async fn send_deletion(&mut self, revision: Revision) -> Result<(), Status> {
        if revision > Revision::default() {
            self.sent_revision = revision;
            self.send_changes(revision, &Changes::of_deleted_service()).await?;
        }
        Err(invalid_key())
    }

    /// Reads the current position of the change feed, and queues a pong that confirms the data of this revision. [`Self::send_pongs`]
    /// sends the pong after all changes up to the revision.
    async fn record_ping(&mut self, number: u64) -> Result<(), Status> {
        self.stream.status().will_confirm();
        // `None`: others consider us killed, so we must not answer this ping. The sidecar will send others.
        let Some(position) = Box::pin(self.context.position()).await? else { return Ok(()) };
        if self.pending_pongs.len() >= MAX_PENDING_PONGS {
            // A pong also answers all earlier pings, so this one replaces the last that waits.
            self.pending_pongs.pop_back();
        }
        self.pending_pongs.push_back(v1::Pong {
            number,
            revision: position.revision.number(),
            floor: position.floor.number(),
            time_micros: self.context.parts.store.now().micros(),
        });
        Ok(())
    }

    /// Sends the waiting pongs of revisions up to which all changes have been sent. Returns true if the sidecar needs a snapshot.
    async fn send_pongs(&mut self, subscription: &mut Subscription) -> Result<bool, Status> {
        if self.pending_pongs.is_empty() || !self.stream.may_be_confirmed() {
            return Ok(false);
        }
        if self.forward_queued(subscription).await? {
            return Ok(true);
        }
        while let Some(pong) = self.pending_pongs.pop_front_if(|pong| pong.revision <= self.sent_revision.number()) {
            self.send(EncodedResponse::pong(&pong)).await?;
        }
        Ok(false)
    }

    /// Sends the queued batches, and thus all changes up to the distributed revision. Returns true if the sidecar needs a snapshot.
    async fn forward_queued(&mut self, subscription: &mut Subscription) -> Result<bool, Status> {
        // Read this revision before the queue, which then has all batches up to it that concern the service.
        let distributed = *subscription.distributed.borrow_and_update();
        loop {
            match subscription.batches.try_recv() {
                Ok(batch) => {
                    if self.forward(batch, subscription).await? {
                        return Ok(true);
                    }
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(too_slow()),
            }
        }
        self.set_sent_revision(self.sent_revision.max(distributed));
        Ok(false)
    }

    pub(super) async fn send(&self, message: EncodedResponse) -> Result<(), Status> {
        self.sender.send_timeout(Ok(message), FOLLOWER_TIMEOUT).await.map_err(|_| too_slow())
    }
}

async fn receive_hello(requests: &mut Streaming<FollowRequest>) -> Result<Hello, Status> {
    match requests.message().await? {
        Some(FollowRequest { message: Some(RequestMessage::Hello(hello)) }) => Ok(hello),
        _ => Err(Status::invalid_argument("the first message must be Hello")),
    }
}

/// Reads from a Hello who the sidecar is and which data it has.
fn parse_hello(
    hello: Hello,
    key: &ServiceKey,
    peer: SocketAddr,
    max_staleness: Duration,
) -> Result<(SidecarState, NewStream), Status> {
    let Hello { protocol_version, instance, release, stream_number, revision, partial_snapshot, previous_instance } =
        hello;
    if protocol_version != PROTOCOL_VERSION {
        return Err(other_version(protocol_version));
    }
    let state = SidecarState { revision: Revision::new(revision), partial_snapshot };
    let new = NewStream {
        identity: SidecarIdentity {
            instance: parse_instance(&instance)?.ok_or_else(|| Status::invalid_argument("an instance is required"))?,
            api_key: key.id,
            service: key.service,
            address: SocketAddr::new(peer.ip().to_canonical(), peer.port()).to_string(),
            release,
        },
        number: stream_number,
        has_view: state.revision > Revision::default(),
        previous: parse_instance(&previous_instance)?,
        max_staleness,
    };
    Ok((state, new))
}

/// The gRPC status for a sidecar that speaks another version of the protocol.
fn other_version(version: u32) -> Status {
    let advice = match version.cmp(&PROTOCOL_VERSION) {
        Ordering::Less => "upgrade the sidecar",
        Ordering::Equal | Ordering::Greater => "upgrade the control plane",
    };
    Status::failed_precondition(format!(
        "the sidecar speaks version {version} of the sync protocol, the control plane version {PROTOCOL_VERSION}: {advice}"
    ))
}

fn parse_instance(bytes: &[u8]) -> Result<Option<SidecarInstance>, Status> {
    let invalid = || Status::invalid_argument("an instance must have 16 bytes, and not only zeros");
    if bytes.is_empty() {
        return Ok(None);
    }
    let instance = bytes.try_into().map(SidecarInstance::from_bytes).map_err(|_| invalid())?;
    if instance == SidecarInstance::UNKNOWN { Err(invalid()) } else { Ok(Some(instance)) }
}

/// The gRPC status for a sidecar that cannot be recorded: receipts would not count it, so it gets no data.
fn not_recorded() -> Status {
    Status::unavailable(
        "the stream cannot be recorded: the database accepts no writes, or the sidecar has a later stream",
    )
}

fn disconnected() -> Status {
    Status::cancelled("the sidecar has disconnected")
}

fn too_slow() -> Status {
    Status::unavailable("the sidecar is too slow; reconnect to resume")
}
