//! The client of the sync stream of one API key: connects, receives messages, and reconnects with exponential backoff.

use super::{
    decode::MessageError,
    stream::{PingTimeout, StreamState, ViewUpdate},
};
use crate::{
    metrics::Metrics,
    view::{ApiKeyIndex, Views},
};
use arc_swap::ArcSwap;
use backon::{BackoffBuilder, ExponentialBuilder};
use countersign_identity::ServiceId;
use countersign_process::{Clock, ReadinessGuard, Shutdown};
use countersign_proto::v1::{FollowRequest, FollowResponse, sync_client::SyncClient};
use std::{convert::Infallible, error::Error, sync::Arc, time::Duration};
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    transport::Endpoint,
};

/// The delay before the first attempt to reconnect, without jitter, which at most doubles the delay.
const MIN_BACKOFF: Duration = Duration::from_millis(200);

/// The longest delay before an attempt to reconnect, without jitter.
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// The largest accepted sync message in bytes, which is much larger than a page of a snapshot.
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// The capacity of the queue of outgoing messages: the Hello (the first message of a stream) and the unanswered pings.
const REQUEST_QUEUE_LEN: usize = 8;

/// The timeout for opening a stream, in ping intervals.
const OPEN_TIMEOUT_PINGS: u32 = 3;

/// The address of the control plane and the credentials for it.
#[derive(Debug, Clone)]
pub struct SyncTarget {
    /// The sync port of the control plane. The certificate authorities are replaced when their file changes.
    pub endpoint: Arc<ArcSwap<Endpoint>>,
    /// The value `Bearer <API key>`, marked as sensitive. The API key is replaced when its file changes.
    pub authorization: Arc<ArcSwap<MetadataValue<Ascii>>>,
}

/// Receives the sync stream of one API key, and publishes views of the received data.
pub struct StreamClient {
    /// The API key, by its index in the settings.
    pub key: ApiKeyIndex,
    /// The control plane.
    pub target: SyncTarget,
    /// The interval between pings.
    pub ping_interval: Duration,
    /// The maximum staleness in the sidecar's settings. The effective limit is the smaller of the sidecar's and the
    /// control plane's maximum staleness.
    pub max_staleness: Option<Duration>,
    /// The collection to which views of the services' data are published.
    pub views: Arc<Views>,
    /// The metrics of sync streams and of the views of the services' data.
    pub metrics: Arc<Metrics>,
    /// The source of the current time.
    pub clock: Arc<dyn Clock>,
    /// The readiness guard, which is dropped when the first view of the service's data is confirmed.
    pub readiness_guard: Option<ReadinessGuard>,
    /// The service of the current stream; `None` until the stream has delivered a view of the service's data.
    pub connected_service: Option<ServiceId>,
}

/// Why a stream ended or could not be opened.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("cannot connect: {0}")]
    Connect(String),
    #[error("{:?}: {}", .0.code(), .0.message())]
    Status(#[from] Status),
    #[error("invalid message: {0}")]
    InvalidMessage(#[from] MessageError),
    #[error("{0}")]
    PingTimeout(#[from] PingTimeout),
    #[error("opening the stream timed out")]
    OpenTimeout,
    #[error("the control plane closed the stream")]
    Closed,
}

impl StreamClient {
    /// Receives the stream, and reopens it when it ends, until shutdown is requested.
    pub async fn run(mut self, shutdown: Shutdown) {
        let mut backoff = new_backoff();
        let mut stream_state = StreamState::resume(None, self.max_staleness);
        loop {
            let error = tokio::select! {
                () = shutdown.requested() => return,
                Err(error) = self.follow(&mut stream_state) => error,
            };
            self.report(&error, stream_state.view().map(|view| view.service()));
            if stream_state.was_confirmed() {
                backoff = new_backoff();
            }
            // The names of agents in the view or in a part of a snapshot are hashes under another key, so the next stream must
            // begin with a new snapshot.
            stream_state = if matches!(error, StreamError::InvalidMessage(MessageError::AgentHashKeyChanged)) {
                StreamState::resume(None, self.max_staleness)
            } else {
                stream_state.into_next_stream()
            };
            tokio::select! {
                () = shutdown.requested() => return,
                () = sleep(backoff.next().unwrap_or(MAX_BACKOFF)) => {}
            }
        }
    }

    /// Counts and logs the loss of a stream, or the failure to open one. `last_service` is the service whose data was
    /// received last.
    fn report(&mut self, error: &StreamError, last_service: Option<ServiceId>) {
        let disconnected = self.connected_service.take();
        match disconnected {
            Some(service) => self.metrics.stream_lost(service),
            None => self.metrics.connect_failed(last_service),
        }
        let service = last_service.map(|service| service.to_string());
        let (key, endpoint) = (self.key.0, self.target.endpoint.load());
        let url = endpoint.uri();
        let code = if let StreamError::Status(status) = error { Some(status.code()) } else { None };
        if matches!(code, Some(Code::Unauthenticated | Code::ResourceExhausted)) {
            self.views.key_refused(self.key);
            // Whoever owns the service of a refused key must not keep the other services of a new sidecar out of the rotation.
            if self.views.serves_any() && self.readiness_guard.take().is_some() {
                tracing::warn!(key, "ready without this API key, because the control plane refuses it");
            }
        }
        if code == Some(Code::Unauthenticated) {
            tracing::error!(
                key,
                service,
                "the control plane refuses the API key: the key is unknown or revoked, or its service is deleted"
            );
        } else if disconnected.is_some() {
            tracing::warn!(key, service, %url, %error, "lost the sync stream; reconnecting");
        } else {
            tracing::warn!(key, service, %url, %error, "cannot open the sync stream; retrying");
        }
    }

    async fn follow(&mut self, stream_state: &mut StreamState) -> Result<Infallible, StreamError> {
        let (requests, request_stream) = mpsc::channel(REQUEST_QUEUE_LEN);
        requests.try_send(stream_state.hello()).map_err(|_| StreamError::Closed)?;
        requests.try_send(stream_state.ping(self.clock.since_boot())?).map_err(|_| StreamError::Closed)?;
        let open_result = timeout(self.ping_interval * OPEN_TIMEOUT_PINGS, self.open(request_stream)).await;
        let mut responses = open_result.map_err(|_| StreamError::OpenTimeout)??;
        let mut ping_timer = interval(self.ping_interval);
        ping_timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ping_timer.reset();
        loop {
            tokio::select! {
                message = responses.message() => {
                    let update = stream_state.apply(message?.ok_or(StreamError::Closed)?, self.clock.since_boot())?;
                    self.publish(update);
                    if stream_state.wants_ping() {
                        ping_timer.reset_immediately();
                    }
                }
                _ = ping_timer.tick() => {
                    requests.try_send(stream_state.ping(self.clock.since_boot())?).map_err(|_| StreamError::Closed)?;
                }
            }
        }
    }

    /// Opens a stream on a new connection, so that DNS is resolved again and a dead connection is not reused.
    async fn open(&self, requests: mpsc::Receiver<FollowRequest>) -> Result<Streaming<FollowResponse>, StreamError> {
        let endpoint = self.target.endpoint.load_full();
        let channel = endpoint.connect().await.map_err(|error| StreamError::Connect(error_chain(&error)))?;
        let mut request = Request::new(ReceiverStream::new(requests));
        request.metadata_mut().insert("authorization", MetadataValue::clone(&self.target.authorization.load()));
        let mut client = SyncClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        Ok(client.follow(request).await?.into_inner())
    }

    fn publish(&mut self, update: ViewUpdate) {
        let (view, ping_sent_at) = match update {
            ViewUpdate::View(view) => (view, None),
            ViewUpdate::Confirmed(view, ping_sent_at) => (view, Some(ping_sent_at)),
            ViewUpdate::NoChange => return,
        };
        let service = view.service();
        self.metrics.init_service(service);
        self.views.publish(self.key, &view);
        self.metrics.view_published(service, view.revision(), view.agent_count());
        if self.connected_service.replace(service).is_none() {
            self.metrics.stream_opened(service);
        }
        if let Some(ping_sent_at) = ping_sent_at {
            let (now, since_boot) = (self.clock.now(), self.clock.since_boot());
            self.metrics.view_confirmed(service, now.saturating_sub(since_boot.saturating_sub(ping_sent_at)));
            if let Some(server_clock) = view.server_clock() {
                self.metrics.clock_offset(service, now.micros() - server_clock.now(since_boot).micros());
            }
            if self.readiness_guard.take().is_some() {
                tracing::info!(key = self.key.0, %service, revision = %view.revision(), "the first view is confirmed");
            }
        }
    }
}

fn new_backoff() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::new()
        .with_jitter()
        .with_min_delay(MIN_BACKOFF)
        .with_max_delay(MAX_BACKOFF)
        .without_max_times()
        .build()
}

/// Joins the messages of an error and its sources. In tonic's transport errors, only the sources contain the cause.
fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
