//! A client of the sync stream, independent of the client in the sidecar.

use crate::ControlPlane;
use countersign_identity::AgentHashKey;
use countersign_proto::{
    PROTOCOL_VERSION,
    v1::{
        Applied, Delta, FollowRequest, FollowResponse, Hello, Leaving, Ping, Pong, SnapshotPage,
        follow_request::Message as ClientMessage, follow_response::Message as Response, sync_client::SyncClient,
    },
};
use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use tokio::{sync::mpsc, time::Interval};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Status, Streaming,
    transport::{self, Certificate, Channel, ClientTlsConfig, Endpoint},
};

/// An open sync stream.
pub struct Follower {
    requests: mpsc::Sender<FollowRequest>,
    messages: Streaming<FollowResponse>,
    /// The key with which the server hashes agent ids; `None` until the server has sent it.
    agent_hash_key: Option<AgentHashKey>,
    /// The number of the last ping of [`Self::next_with_pings`].
    pings: u64,
}

/// The default interval between two pings of a sidecar.
pub const PING_INTERVAL: Duration = Duration::from_secs(3);

impl Follower {
    /// Opens a stream for the service of the API key, starting after a revision.
    pub async fn start(control: &ControlPlane, key: &str, revision: i64) -> Result<Self, Status> {
        Self::open(channel(control).await, key, revision).await
    }

    /// Opens a stream over this channel, as [`Self::start`] does.
    pub async fn open(channel: Channel, key: &str, revision: i64) -> Result<Self, Status> {
        Self::open_with_hello(channel, key, hello(revision)).await
    }

    /// Opens a stream over this channel with another first message.
    pub async fn open_with_hello(channel: Channel, key: &str, hello: Hello) -> Result<Self, Status> {
        let (requests, receiver) = mpsc::channel(8);
        requests.send(follow_request(ClientMessage::Hello(hello))).await.expect("the request can be sent");
        let mut request = Request::new(ReceiverStream::new(receiver));
        let header = format!("Bearer {key}").parse().expect("the header is valid");
        request.metadata_mut().insert("authorization", header);
        let messages = SyncClient::new(channel).follow(request).await?.into_inner();
        Ok(Self { requests, messages, agent_hash_key: None, pings: 0 })
    }

    /// The two directions of the stream, for a client that sends without waiting for answers.
    pub fn split(self) -> (mpsc::Sender<FollowRequest>, Streaming<FollowResponse>) {
        (self.requests, self.messages)
    }

    /// The next message, or the status with which the stream ended.
    pub async fn next(&mut self) -> Result<Response, Status> {
        let response = self.messages.message().await?;
        let message = response.and_then(|response| response.message);
        let message = message.ok_or_else(|| Status::unavailable("the stream has ended"))?;
        let info = match &message {
            Response::Snapshot(page) => page.info.as_ref(),
            Response::Delta(delta) => delta.info.as_ref(),
            Response::Pong(_) => None,
        };
        if let Some(info) = info {
            self.agent_hash_key = AgentHashKey::from_bytes(&info.agent_hash_key);
        }
        Ok(message)
    }

    /// The next message. Meanwhile, sends a ping each time that the timer ticks, as a sidecar does.
    pub async fn next_with_pings(&mut self, timer: &mut Interval) -> Result<Response, Status> {
        loop {
            tokio::select! {
                message = self.next() => return message,
                _ = timer.tick() => {
                    self.pings += 1;
                    self.send_ping(self.pings).await;
                }
            }
        }
    }

    /// The key with which the server hashes agent ids in this stream.
    pub fn agent_hash_key(&self) -> AgentHashKey {
        self.agent_hash_key.clone().expect("the server sent the key")
    }

    /// The hash that stands for an agent in this stream.
    pub fn agent_hash(&self, agent: &str) -> Vec<u8> {
        self.agent_hash_key().hash(agent.parse().expect("the id is valid")).to_bytes().to_vec()
    }

    /// The next message, which must be a snapshot page.
    pub async fn snapshot(&mut self) -> SnapshotPage {
        match self.next().await.expect("the stream sends a message") {
            Response::Snapshot(page) => page,
            other => panic!("expected a snapshot, got {other:?}"),
        }
    }

    /// The next message, which must be a delta.
    pub async fn delta(&mut self) -> Delta {
        match self.next().await.expect("the stream sends a message") {
            Response::Delta(delta) => delta,
            other => panic!("expected a delta, got {other:?}"),
        }
    }

    /// Sends a ping. If the stream has ended, the next message tells its status.
    pub async fn send_ping(&self, number: u64) {
        let ping = follow_request(ClientMessage::Ping(Ping { number }));
        let _fails_if_the_stream_has_ended = self.requests.send(ping).await;
    }

    /// Reports that the client decides with all changes up to a revision.
    pub async fn report(&self, revision: i64) {
        let applied = follow_request(ClientMessage::Applied(Applied { revision }));
        let _fails_if_the_stream_has_ended = self.requests.send(applied).await;
    }

    /// Reports that the client no longer decides with its data.
    pub async fn leave(&self) {
        let leaving = follow_request(ClientMessage::Leaving(Leaving {}));
        let _fails_if_the_stream_has_ended = self.requests.send(leaving).await;
    }

    /// Sends a ping. Returns the deltas that arrive before the pong, and the pong.
    pub async fn ping(&mut self, number: u64) -> Result<(Vec<Delta>, Pong), Status> {
        self.send_ping(number).await;
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

/// The number of the next client of [`hello`].
static NEXT_CLIENT: AtomicU64 = AtomicU64::new(1);

/// The first message of a new client: each call returns another `instance`.
pub fn hello(revision: i64) -> Hello {
    let client = u128::from(NEXT_CLIENT.fetch_add(1, Ordering::Relaxed)) << u64::BITS;
    Hello {
        protocol_version: PROTOCOL_VERSION,
        instance: client.to_be_bytes().to_vec(),
        release: String::new(),
        stream_number: 1,
        revision,
        partial_snapshot: None,
        previous_instance: Vec::new(),
    }
}

/// Wraps a client message in a request of the stream.
pub fn follow_request(message: ClientMessage) -> FollowRequest {
    FollowRequest { message: Some(message) }
}

/// A TLS channel to the sync port.
pub async fn channel(control: &ControlPlane) -> Channel {
    connect(&control.env["SYNC_URL"], &control.authority()).await
}

/// A TLS channel to the sync port from another loopback address; an error if the port refuses the connection.
pub async fn channel_from(control: &ControlPlane, address: Ipv4Addr) -> Result<Channel, transport::Error> {
    // `localhost` may be an IPv6 address, which cannot be reached from an IPv4 address.
    let url = control.env["SYNC_URL"].replace("//localhost:", "//127.0.0.1:");
    endpoint(&url, &control.authority()).local_address(Some(address.into())).connect().await
}

/// A TLS channel to the sync port over which the server can send only 64 KiB before the client reads.
pub async fn narrow_channel(control: &ControlPlane) -> Channel {
    let endpoint = endpoint(&control.env["SYNC_URL"], &control.authority());
    let endpoint = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    endpoint.connect().await.expect("the sync port accepts connections")
}

/// Opens a TLS channel to this URL.
pub async fn connect(url: &str, authority: &[u8]) -> Channel {
    endpoint(url, authority).connect().await.expect("the sync port accepts connections")
}

fn endpoint(url: &str, authority: &[u8]) -> Endpoint {
    let authority = Certificate::from_pem(authority);
    let endpoint = Endpoint::from_shared(url.to_owned()).expect("the URL is valid");
    endpoint.tls_config(ClientTlsConfig::new().ca_certificate(authority)).expect("the TLS configuration is valid")
}
