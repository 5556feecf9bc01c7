//! A follower of the sync stream, of another make than the sidecar.

use crate::ControlPlane;
use countersign_proto::v1::{
    Delta, FollowRequest, FollowResponse, Hello, Ping, Pong, SnapshotPage, follow_request::Message as Ask,
    follow_response::Message as Told, sync_client::SyncClient,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Status, Streaming,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

/// A stream that was begun.
pub struct Follower {
    asks: mpsc::Sender<FollowRequest>,
    told: Streaming<FollowResponse>,
}

impl Follower {
    /// Follows what the key is for, from a revision on.
    pub async fn start(control: &ControlPlane, key: &str, revision: i64) -> Result<Self, Status> {
        let (asks, receiver) = mpsc::channel(8);
        let follower_asks = asks.clone();
        asks.send(ask(Ask::Hello(Hello { revision }))).await.expect("a queue");
        let mut request = Request::new(ReceiverStream::new(receiver));
        let header = format!("Bearer {key}").parse().expect("a header");
        request.metadata_mut().insert("authorization", header);
        let told = SyncClient::new(channel(control).await).follow(request).await?.into_inner();
        Ok(Self { asks: follower_asks, told })
    }

    /// The next message, or how the stream ended.
    pub async fn next(&mut self) -> Result<Told, Status> {
        let told = self.told.message().await?;
        Ok(told.and_then(|told| told.message).expect("the stream goes on"))
    }

    /// A page, which must come next.
    pub async fn snapshot(&mut self) -> SnapshotPage {
        match self.next().await.expect("a message") {
            Told::Snapshot(page) => page,
            other => panic!("expected a snapshot, got {other:?}"),
        }
    }

    /// A change, which must come next.
    pub async fn delta(&mut self) -> Delta {
        match self.next().await.expect("a message") {
            Told::Delta(delta) => delta,
            other => panic!("expected a delta, got {other:?}"),
        }
    }

    /// Asks how fresh this is; gives what came before the answer too.
    pub async fn ping(&mut self, number: u64) -> Result<(Vec<Delta>, Pong), Status> {
        self.asks.send(ask(Ask::Ping(Ping { number }))).await.expect("a queue");
        let mut deltas = Vec::new();
        loop {
            match self.next().await? {
                Told::Delta(delta) => deltas.push(delta),
                Told::Pong(pong) => return Ok((deltas, pong)),
                Told::Snapshot(page) => panic!("an unexpected snapshot {page:?}"),
            }
        }
    }
}

/// On the wire.
pub fn ask(message: Ask) -> FollowRequest {
    FollowRequest { message: Some(message) }
}

/// A connection to the sync port.
pub async fn channel(control: &ControlPlane) -> Channel {
    let authority = Certificate::from_pem(control.authority());
    let endpoint = Endpoint::from_shared(control.env["SYNC_URL"].clone()).expect("a URL");
    let endpoint = endpoint.tls_config(ClientTlsConfig::new().ca_certificate(authority)).expect("TLS");
    endpoint.connect().await.expect("the sync port answers")
}
