//! Tests of clients that fill a port with connections that the server does not close for newer ones, or with unfinished messages.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_proto::envoy::service::auth::v3::{CheckRequest, authorization_client::AuthorizationClient};
use countersign_tests::{
    Agent, ControlPlane, Follower, Sidecar, eventually,
    follower::channel_from,
    h2::{self, DATA, PING, frame, grpc_call},
    process::free_port,
    sidecar::{check_request, http_of},
};
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpSocket, TcpStream},
};
use tonic::{Code, transport::Endpoint};

/// The text of the log message about a full port.
const FULL: &str = "the port is full";

async fn connect_from(from: [u8; 4], address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    socket.connect(address).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn full_api_port_is_logged() {
    let control = ControlPlane::start_one_with(&["connections.max=4"]).await;
    let address = control.env["URL"].split_once("://").unwrap().1.replace("localhost", "127.0.0.1").parse().unwrap();
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(connect_from([127, 3, 0, 1], address).await);
    }
    let line = r#"port="api" limit=4 setting="connections.max" without_request="#;
    control.wait_for_log(line).await;
    assert_eq!(control.api.get("/health").await.expect(200)["status"], "healthy");
    assert!(control.log().matches(FULL).count() <= 2, "at most one line per minute:\n{}", control.log());
    drop(silent);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_silent_connections_to_the_check_port_are_logged() {
    let control = ControlPlane::start_one_with(&[]).await;
    let port = CheckPort::start(&control).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(connect_from([127, 3, 0, 1], port.address).await);
    }
    let line = r#"port="check" limit=4096 without_request=256"#;
    port.sidecar.wait_for_log(line).await;
    assert!(port.sidecar.log().matches(FULL).count() <= 2, "at most one line per minute:\n{}", port.sidecar.log());
    drop(silent);
}

#[tokio::test(flavor = "multi_thread")]
async fn full_sync_port_ends_no_stream() {
    let control = ControlPlane::start_one_with(&["connections.max=4"]).await;
    let mut streams = Vec::new();
    // One owner may have half of the connections, so two owners fill the port.
    for owner in ["anna", "bob"] {
        let (_, key) = control.create_service_of(&control.mint_human(owner), json!({ "name": owner })).await;
        for _ in 0..2 {
            let channel = channel_from(&control, [127, 1, 0, 1].into()).await.unwrap();
            let mut stream = Follower::open(channel, &key, 0).await.unwrap();
            stream.snapshot().await;
            streams.push(stream);
        }
    }
    assert!(channel_from(&control, [127, 2, 0, 1].into()).await.is_err(), "the newest connection is refused");
    for (number, stream) in streams.iter_mut().enumerate() {
        stream.ping(number as u64 + 1).await.expect("the stream continues");
    }
    streams.pop();
    let connected = async || channel_from(&control, [127, 2, 0, 1].into()).await.ok();
    let channel = eventually("the place of a stream that has ended is free", connected, || control.log()).await;
    Follower::open(channel, control.key(), 0).await.unwrap().snapshot().await;
}

const CHECK_PATH: &str = "/envoy.service.auth.v3.Authorization/Check";

/// The prefix that announces a gRPC message of this length.
fn prefix(length: u32) -> Vec<u8> {
    [&[0], &length.to_be_bytes()[..]].concat()
}

/// A sidecar whose gRPC port is a TCP port.
struct CheckPort {
    address: SocketAddr,
    sidecar: Sidecar,
}

impl CheckPort {
    async fn start(control: &ControlPlane) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let key = control.create_key(control.service(), "sync").await;
        let sidecar = Sidecar::start_with(control, &[&key], &[&format!("listen.grpc={address}")]);
        sidecar.wait_until_ready().await;
        Self { address, sidecar }
    }

    async fn connect(&self, from: Ipv4Addr) -> TcpStream {
        connect_from(from.octets(), self.address).await
    }

    /// Sends parts of checks, and waits until the sidecar has read them.
    async fn send_unfinished(&self, from: Ipv4Addr, checks: impl Fn(u32) -> Vec<u8>, count: u32) -> TcpStream {
        let mut stream = self.connect(from).await;
        let checks: Vec<u8> = (0..count).flat_map(|index| checks(2 * index + 1)).collect();
        stream.write_all(&[h2::opening(&[]), checks, frame(PING, 0, 0, &[7; 8])].concat()).await.unwrap();
        while h2::read_frame(&mut stream).await.unwrap().kind != PING {}
        stream
    }

    /// Sends a whole check. Returns the gRPC status if the sidecar does not decide it.
    async fn check(&self, from: Ipv4Addr, request: CheckRequest) -> Result<(), Code> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        let channel = endpoint.local_address(Some(from.into())).connect().await.unwrap();
        AuthorizationClient::new(channel).check(request).await.map(|_| ()).map_err(|status| status.code())
    }

    async fn refused(&self) -> f64 {
        self.sidecar.metric("countersign_authz_overloaded_total").await.unwrap()
    }
}

/// A check with a body of a megabyte, which arrives in many parts.
fn large_check() -> CheckRequest {
    let mut check = check_request(&[], &[]);
    http_of(&mut check).body = "x".repeat(1 << 20);
    check
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_checks_share_a_bounded_memory() {
    let control = ControlPlane::start_one_with(&[]).await;
    let (agent, _) = Agent::with_role(&control, "reader", &[]).await;
    let token = agent.token().await;
    let port = CheckPort::start(&control).await;
    let (greedy, honest) = (Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::LOCALHOST);
    assert_eq!(port.check(greedy, large_check()).await, Ok(()));
    let free = async || port.check(greedy, large_check()).await.ok();
    let is_refused = async |count: f64| (port.refused().await >= count).then_some(());
    let log = || port.sidecar.log();

    let before = port.sidecar.resident_memory();
    let no_message = |id| grpc_call(id, CHECK_PATH);
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(port.send_unfinished(greedy, no_message, 1024).await);
    }
    eventually("the client has its share", async || is_refused(2000.0).await, log).await;
    let added = port.sidecar.resident_memory().saturating_sub(before);
    println!("{} MiB more with all unfinished checks of a client", added >> 20);
    assert!(added < 64 << 20, "{added} bytes more");
    assert_eq!(port.check(greedy, large_check()).await, Err(Code::ResourceExhausted));
    let result = port.sidecar.check_token(&token).await;
    assert_eq!(result.status, 200, "{result:?}");
    assert_eq!(port.check(honest, large_check()).await, Ok(()), "another client has a share of its own");
    drop(streams);
    eventually("the memory is free again", free, log).await;

    let refused = port.refused().await;
    let announced = |id| [grpc_call(id, CHECK_PATH), frame(DATA, 0, id, &prefix(15 << 20))].concat();
    let stream = port.send_unfinished(greedy, announced, 10).await;
    eventually("two messages have room", async || is_refused(refused + 8.0).await, log).await;
    assert_eq!(port.check(honest, large_check()).await, Ok(()));
    drop(stream);
}
