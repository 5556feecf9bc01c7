//! A client of the sync stream, independent of the sidecar's.

use crate::ControlPlane;
use countersign_proto::v1::{
    Delta, FollowRequest, FollowResponse, Hello, Ping, Pong, SnapshotPage, follow_request::Message as ClientMessage,
    follow_response::Message as Response, sync_client::SyncClient,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Status, Streaming,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

/// An open sync stream.
pub struct Follower {
    requests: mpsc::Sender<FollowRequest>,
    messages: Streaming<FollowResponse>,
}

impl Follower {
    /// Opens a stream from a revision for the service of the key.
    pub async fn start(control: &ControlPlane, key: &str, revision: i64) -> Result<Self, Status> {
        Self::open(channel(control).await, key, revision).await
    }

    /// Opens a stream over this channel, as [`Self::start`] does.
    pub async fn open(channel: Channel, key: &str, revision: i64) -> Result<Self, Status> {
        let (requests, receiver) = mpsc::channel(8);
        requests.send(follow_request(ClientMessage::Hello(Hello { revision }))).await.expect("a queue");
        let mut request = Request::new(ReceiverStream::new(receiver));
        let header = format!("Bearer {key}").parse().expect("a header");
        request.metadata_mut().insert("authorization", header);
        let messages = SyncClient::new(channel).follow(request).await?.into_inner();
        Ok(Self { requests, messages })
    }

    /// The next message, or the status with which the stream ended.
    pub async fn next(&mut self) -> Result<Response, Status> {
        let response = self.messages.message().await?;
        Ok(response.and_then(|response| response.message).expect("the stream goes on"))
    }

    /// The next message, which must be a snapshot page.
    pub async fn snapshot(&mut self) -> SnapshotPage {
        match self.next().await.expect("a message") {
            Response::Snapshot(page) => page,
            other => panic!("expected a snapshot, got {other:?}"),
        }
    }

    /// The next message, which must be a delta.
    pub async fn delta(&mut self) -> Delta {
        match self.next().await.expect("a message") {
            Response::Delta(delta) => delta,
            other => panic!("expected a delta, got {other:?}"),
        }
    }

    /// Sends a ping. Returns the deltas that came before the pong, and the pong.
    pub async fn ping(&mut self, number: u64) -> Result<(Vec<Delta>, Pong), Status> {
        self.requests.send(follow_request(ClientMessage::Ping(Ping { number }))).await.expect("a queue");
        let mut deltas = Vec::new();
        loop {
            match self.next().await? {
                Response::Delta(delta) => deltas.push(delta),
                Response::Pong(pong) => return Ok((deltas, pong)),
                Response::Snapshot(page) => panic!("an unexpected snapshot {page:?}"),
            }
        }
    }
}

/// Wraps a message of the client.
pub fn follow_request(message: ClientMessage) -> FollowRequest {
    FollowRequest { message: Some(message) }
}

/// A TLS channel to the sync port.
pub async fn channel(control: &ControlPlane) -> Channel {
    connect(&control.env["SYNC_URL"], &control.authority()).await
}

/// A TLS channel to this URL.
pub async fn connect(url: &str, authority: &[u8]) -> Channel {
    let authority = Certificate::from_pem(authority);
    let endpoint = Endpoint::from_shared(url.to_owned()).expect("a URL");
    let endpoint = endpoint.tls_config(ClientTlsConfig::new().ca_certificate(authority)).expect("TLS");
    endpoint.connect().await.expect("the sync port answers")
}
