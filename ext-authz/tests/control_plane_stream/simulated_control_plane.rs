//! A simulated control plane that answers pings; the tests send all sync messages except pongs.

use crate::{
    API_KEY,
    fixtures::{self, ISSUER, SERVICE_ID, TOKEN_REVISION, TestIssuer},
    wait_until,
};
use countersign_proto::{
    PROTOCOL_VERSION,
    v1::{self, FollowRequest, FollowResponse, follow_request, follow_response::Message, sync_server},
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_stream::{
    StreamExt,
    wrappers::{ReceiverStream, TcpListenerStream},
};
use tonic::{Request, Response, Status, Streaming, transport::Server};

/// An open stream: its Hello (the first message of the sidecar), what the sidecar reports, and the sender of responses.
pub struct OpenStream {
    pub hello: v1::Hello,
    pub reports: mpsc::UnboundedReceiver<Report>,
    pub responses: mpsc::Sender<Result<FollowResponse, Status>>,
}

/// What a sidecar reports about the data with which it decides.
#[derive(Debug, PartialEq, Eq)]
pub enum Report {
    Applied(i64),
    Leaving,
}

/// The state of the simulated control plane that tests change and read.
#[derive(Default)]
pub struct SharedState {
    /// Whether the control plane refuses new streams.
    pub refuse_streams: AtomicBool,
    /// The number of refused streams.
    pub refused_streams: AtomicUsize,
    /// Whether the control plane answers no pings: a real one does not, either, until the stream has sent all missed changes.
    pub withhold_pongs: AtomicBool,
    /// The revision in pongs.
    pub revision: AtomicI64,
}

impl SharedState {
    pub async fn wait_for_refusals(&self, count: usize) {
        wait_until("streams are refused", async || self.refused_streams.load(Ordering::SeqCst) >= count).await;
    }
}

/// The gRPC service of the simulated control plane.
struct SimulatedControlPlane {
    state: Arc<SharedState>,
    open_streams: mpsc::Sender<OpenStream>,
}

#[tonic::async_trait]
impl sync_server::Sync for SimulatedControlPlane {
    type FollowStream = ReceiverStream<Result<FollowResponse, Status>>;

    async fn follow(&self, request: Request<Streaming<FollowRequest>>) -> Result<Response<Self::FollowStream>, Status> {
        assert_eq!(request.metadata().get("authorization").unwrap(), &format!("Bearer {API_KEY}"));
        if self.state.refuse_streams.load(Ordering::SeqCst) {
            self.state.refused_streams.fetch_add(1, Ordering::SeqCst);
            return Err(Status::unauthenticated("revoked"));
        }
        let (responses, response_stream) = mpsc::channel(16);
        tokio::spawn(handle_requests(
            request.into_inner(),
            responses,
            self.open_streams.clone(),
            Arc::clone(&self.state),
        ));
        Ok(Response::new(ReceiverStream::new(response_stream)))
    }
}

async fn handle_requests(
    mut inbound: Streaming<FollowRequest>,
    responses: mpsc::Sender<Result<FollowResponse, Status>>,
    open_streams: mpsc::Sender<OpenStream>,
    state: Arc<SharedState>,
) {
    let (reporter, reports) = mpsc::unbounded_channel();
    let mut reports = Some(reports);
    // A test may drop the stream when it has the reports that it needs, so a failed send is no error.
    let report = |report| drop(reporter.send(report));
    while let Some(Ok(FollowRequest { message: Some(message) })) = inbound.next().await {
        match message {
            follow_request::Message::Hello(hello) => {
                let reports = reports.take().unwrap();
                let stream = OpenStream { hello, reports, responses: responses.clone() };
                open_streams.send(stream).await.unwrap();
            }
            follow_request::Message::Applied(v1::Applied { revision }) => report(Report::Applied(revision)),
            follow_request::Message::Leaving(v1::Leaving {}) => report(Report::Leaving),
            follow_request::Message::Ping(_) if state.withhold_pongs.load(Ordering::SeqCst) => {}
            follow_request::Message::Ping(v1::Ping { number }) => {
                let revision = state.revision.load(Ordering::SeqCst);
                let pong = Message::Pong(v1::Pong { number, revision, floor: 1, time_micros: 0 });
                let _stream_may_be_closed = responses.send(Ok(FollowResponse { message: Some(pong) })).await;
            }
        }
    }
}

impl OpenStream {
    pub async fn send(&self, message: Message) {
        self.responses.send(Ok(FollowResponse { message: Some(message) })).await.unwrap();
    }
}

/// The key of the agent hashes in [`snapshot`].
pub const AGENT_HASH_KEY: [u8; 32] = [7; 32];

/// A snapshot with the role `reader` and the key of the test issuer.
pub fn snapshot() -> Message {
    Message::Snapshot(snapshot_page())
}

/// The only page of [`snapshot`].
pub fn snapshot_page() -> v1::SnapshotPage {
    let reader = fixtures::reader_role();
    let role = v1::Role {
        id: reader.id.to_string(),
        name: reader.name.to_string(),
        permissions: reader.permissions.iter().map(ToString::to_string).collect(),
        created_revision: reader.created_revision.number(),
    };
    v1::SnapshotPage {
        revision: TOKEN_REVISION,
        floor: 1,
        info: Some(v1::ServiceInfo {
            service_id: SERVICE_ID.to_string(),
            issuer: ISSUER.into(),
            accepts_unbound_tokens: true,
            max_staleness_seconds: 60,
            agent_hash_key: AGENT_HASH_KEY.to_vec(),
            protocol_version: PROTOCOL_VERSION,
            resource_uris: vec![],
        }),
        keys: Some(v1::Keys { points: vec![TestIssuer::new(1).public_point()] }),
        roles: Some(v1::Roles { roles: vec![role] }),
        last: true,
        ..v1::SnapshotPage::default()
    }
}

/// A delta with one revocation.
pub fn revocation(revision: i64, subject: v1::revocation::Subject) -> Message {
    let revocations = vec![v1::Revocation { revision, subject: Some(subject) }];
    Message::Delta(v1::Delta { revision, revocations, ..v1::Delta::default() })
}

/// Starts a simulated control plane on a free port. Returns the port, the shared state and the receiver of new streams.
pub async fn start_control_plane() -> (u16, Arc<SharedState>, mpsc::Receiver<OpenStream>) {
    let (open_streams, streams) = mpsc::channel(4);
    let state = Arc::new(SharedState { revision: TOKEN_REVISION.into(), ..SharedState::default() });
    let service = sync_server::SyncServer::new(SimulatedControlPlane { state: Arc::clone(&state), open_streams });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener)));
    (port, state, streams)
}
