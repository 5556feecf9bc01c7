//! A sync stream at one address of the control plane.

use super::{
    copy_progress::CopyProgress,
    decode::MessageError,
    instance::ProcessIdentity,
    requests::Requests,
    stream::{PingTimeout, StreamState, ViewUpdate},
};
use crate::metrics::FailoverReason;
use arc_swap::ArcSwap;
use countersign_process::{Clock, output::error_chain};
use countersign_proto::v1::{FollowRequest, FollowResponse, sync_client::SyncClient};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::mpsc,
    time::{Interval, MissedTickBehavior, interval, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    transport::Endpoint,
};

/// The largest accepted sync message in bytes, which is much larger than a page of a snapshot.
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// How many ping intervals an attempt to open a stream may take.
const OPEN_TIMEOUT_PINGS: u32 = 3;

/// How long a client that stops waits for the control plane to end the stream.
pub(super) const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// The value `Bearer <API key>`, marked as sensitive. When the file of the API key changes, it is replaced for the next connection.
pub type Authorization = Arc<ArcSwap<MetadataValue<Ascii>>>;

/// What the client of one API key needs to open streams.
#[derive(Clone)]
pub struct SyncTarget {
    /// How to connect to each sync port of the control plane. Replaced when the file of certificate authorities changes.
    pub endpoints: Arc<ArcSwap<Vec<Endpoint>>>,
    pub authorization: Authorization,
    pub identity: ProcessIdentity,
    /// The progress of the copy on disk; `None` if the settings name no directory for copies.
    pub copy: Option<Arc<CopyProgress>>,
    pub ping_interval: Duration,
    pub clock: Arc<dyn Clock>,
}

/// Why a stream ended or could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
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

impl StreamError {
    /// The reason under which a failover is counted.
    pub fn reason(&self) -> FailoverReason {
        match self {
            Self::Connect(_) | Self::OpenTimeout => FailoverReason::Connect,
            Self::PingTimeout(_) => FailoverReason::Pings,
            Self::InvalidMessage(_) if self.serves_unusable_data() => FailoverReason::Data,
            Self::InvalidMessage(_) => FailoverReason::Invalid,
            Self::Status(_) if self.speaks_other_version() => FailoverReason::Invalid,
            Self::Status(status) if is_refusal(status.code()) => FailoverReason::Refused,
            Self::Status(_) | Self::Closed => FailoverReason::Ended,
        }
    }

    /// Whether the control plane at the address speaks another version of the protocol. Either side may have found that out.
    pub fn speaks_other_version(&self) -> bool {
        matches!(self, Self::InvalidMessage(MessageError::OtherProtocolVersion(_)))
            || self.code() == Some(Code::FailedPrecondition)
    }

    /// Whether the address serves older data than the view, or the data of another deployment.
    pub const fn serves_unusable_data(&self) -> bool {
        matches!(self, Self::InvalidMessage(MessageError::OlderThanView | MessageError::OtherDeployment))
    }

    /// The gRPC code with which the control plane ended the stream; `None` if it sent none.
    pub fn code(&self) -> Option<Code> {
        if let Self::Status(status) = self { Some(status.code()) } else { None }
    }
}

/// Whether the control plane refuses to serve this client: it does not know the API key, or there are too many streams.
pub const fn is_refusal(code: Code) -> bool {
    matches!(code, Code::Unauthenticated | Code::ResourceExhausted)
}

pub struct SyncConnection {
    requests: Requests,
    responses: Streaming<FollowResponse>,
    ping_timer: Interval,
    clock: Arc<dyn Clock>,
}

impl SyncConnection {
    /// Opens a stream with Hello, its first message, and a ping. It uses a new connection, so that DNS is resolved again and a dead
    /// connection is not reused. `number` counts the streams of this client.
    pub async fn open(
        target: &SyncTarget,
        address: usize,
        number: i64,
        state: &mut StreamState,
    ) -> Result<Self, StreamError> {
        let (requests, request_stream) = Requests::new(target.copy.clone());
        requests.send_now(state.hello(target.identity, number))?;
        requests.send_now(state.ping(target.clock.since_boot())?)?;
        let endpoint = target.endpoints.load().get(address).cloned();
        let endpoint = endpoint.ok_or_else(|| StreamError::Connect("the address does not exist".to_owned()))?;
        let connected = connect(endpoint, MetadataValue::clone(&target.authorization.load()), request_stream);
        let opened = timeout(target.ping_interval * OPEN_TIMEOUT_PINGS, connected).await;
        let responses = opened.map_err(|_| StreamError::OpenTimeout)??;
        let mut ping_timer = interval(target.ping_interval);
        ping_timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ping_timer.reset();
        Ok(Self { requests, responses, ping_timer, clock: Arc::clone(&target.clock) })
    }

    /// Reports the revision of the view to the control plane. The caller has published the view, so the sidecar decides with it.
    pub fn report_published(&mut self, state: &StreamState) {
        self.requests.record_published(state.data_revision());
    }

    /// Tells the control plane that this sidecar no longer decides. If there is a copy on disk, tells nothing, because a process
    /// that starts from the copy decides again.
    pub async fn leave(self) {
        let Self { requests, mut responses, ping_timer: _, clock: _ } = self;
        if requests.on_disk().is_some() {
            return;
        }
        let leave = async {
            requests.leave().await;
            // The control plane ends the responses when it has received all requests.
            while let Ok(Some(_)) = responses.message().await {}
        };
        let _elapsed = timeout(LEAVE_TIMEOUT, leave).await;
    }

    /// Receives the next message, and sends the pings and reports that are due. Nothing is lost if the future is dropped.
    pub async fn next(&mut self, state: &mut StreamState) -> Result<ViewUpdate, StreamError> {
        loop {
            tokio::select! {
                message = self.responses.message() => {
                    let update = state.apply(message?.ok_or(StreamError::Closed)?, self.clock.since_boot())?;
                    if state.wants_ping() {
                        self.ping_timer.reset_immediately();
                    }
                    return Ok(update);
                }
                _ = self.ping_timer.tick() => {
                    let ping = state.ping(self.clock.since_boot())?;
                    self.requests.send_now(ping)?;
                }
                () = self.requests.report() => {}
            }
        }
    }
}

pub(super) async fn connect(
    endpoint: Endpoint,
    authorization: MetadataValue<Ascii>,
    requests: mpsc::Receiver<FollowRequest>,
) -> Result<Streaming<FollowResponse>, StreamError> {
    let channel = endpoint.connect().await.map_err(|error| StreamError::Connect(error_chain(&error)))?;
    let mut request = Request::new(ReceiverStream::new(requests));
    request.metadata_mut().insert("authorization", authorization);
    let mut client = SyncClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    Ok(client.follow(request).await?.into_inner())
}
