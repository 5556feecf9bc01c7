//! Tests what happens to responses that do not end: server-sent events, `WebSocket` messages and gRPC streams.
//!
//! Envoy asks the sidecar when a request begins, and never again. So a revocation does not end an open stream. Envoy ends the
//! stream after `max_stream_duration`, or at the time that the sidecar gave as the end of its decision.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

mod ticking_service;

use countersign_tests::{Agent, ControlPlane, Environment, Envoy, RawRequest, Sidecar, envoy::replaced, eventually};
use serde_json::Value;
use std::time::Duration;
use ticking_service::{OpenStream, TickingService};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Endpoint;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

/// Time after which a test fails if a stream has not ended.
const LIMIT: Duration = Duration::from_mins(1);

const WEBSOCKET: [(&str, &str); 2] = [("connection", "upgrade"), ("upgrade", "websocket")];

/// A control plane and a sidecar, and Envoy in front of a service whose responses do not end.
struct StreamEnvironment {
    control: ControlPlane,
    sidecar: Sidecar,
    service: TickingService,
    envoy: Envoy,
}

impl StreamEnvironment {
    async fn start(edit: impl FnOnce(String) -> String) -> Self {
        let control = ControlPlane::start().await;
        let (sidecar, service) = tokio::join!(Sidecar::start(&control), TickingService::start());
        let envoy = Envoy::start_edited_example(&sidecar.socket(), service.port, edit).await;
        Self { control, sidecar, service, envoy }
    }

    /// A token of an agent with a new role, and the ids of the agent and the role. The token contains the time at which the role
    /// ends.
    async fn token(&self, role_ends_in: Option<i64>) -> (String, String, String) {
        let agent = Agent::register(&self.control, "agent").await;
        let role = self.control.create_role("reader", &["read"]).await;
        self.control.assign_until(&agent.id, &role, role_ends_in.map(seconds_from_now)).await;
        (agent.token().await, agent.id, role)
    }

    /// Opens streams until Envoy refuses one.
    async fn wait_until_refused(&self, token: &str) {
        let refused = async || self.open("/stream", token, &[]).await.status.contains("403").then_some(());
        eventually("the next request is refused", refused, || self.sidecar.log()).await;
    }

    async fn open(&self, path: &str, token: &str, headers: &[(&str, &str)]) -> OpenStream {
        let bearer = format!("Bearer {token}");
        let headers = [&[("authorization", bearer.as_str())], headers].concat();
        OpenStream::open(&self.envoy.listener, path, &headers).await
    }
}

#[expect(clippy::disallowed_methods, reason = "role assignments end by the real time")]
fn seconds_from_now(seconds: i64) -> String {
    let end = jiff::Timestamp::now().as_second() + seconds;
    jiff::Timestamp::from_second(end).unwrap().to_string()
}

#[tokio::test]
async fn access_log_contains_the_end_of_the_decision() {
    let environment = Environment::start().await;
    let (agent, role) = environment.agent("reader", &["read"]).await;
    let until = seconds_from_now(600);
    environment.control.assign_until(&agent.id, &role, Some(until.clone())).await;
    let token = agent.token().await;
    let duration = "x-envoy-upstream-stream-duration-ms";
    for (path, request) in [("/", RawRequest::get("/").bearer(&token)), ("/open", RawRequest::get("/open"))] {
        let response = request.with(duration, "86400000").send_until_checked(&environment.envoy.listener).await;
        assert!(response.expect(200).get(duration).is_none(), "{path}: the header reached the service");
    }
    let lines = async || {
        let log = environment.envoy.log();
        let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let find = |path: &str| lines.iter().find(|line| line["path"] == path && line["status"] == 200).cloned();
        Some((find("/")?, find("/open")?))
    };
    let (verified, anonymous) = eventually("both requests are logged", lines, || environment.envoy.log()).await;
    let metadata = &verified["countersign"];
    let expected = until.parse::<jiff::Timestamp>().unwrap().as_second();
    assert_eq!(metadata["valid_until"].as_f64(), Some(Value::from(expected).as_f64().unwrap()), "{verified}");
    let milliseconds = metadata["valid_milliseconds"].as_f64().unwrap();
    assert!((1.0..=600_000.0).contains(&milliseconds), "{verified}");
    assert_eq!(anonymous["countersign"]["reason"], "anonymous");
    assert!(anonymous["countersign"].get("valid_until").is_none(), "{anonymous}");
}

#[tokio::test]
async fn open_stream_survives_a_revocation_and_the_next_request_is_refused() {
    let environment = StreamEnvironment::start(|text| text).await;
    let (token, agent, role) = environment.token(None).await;
    let mut stream = environment.open("/stream", &token, &[]).await;
    let mut websocket = environment.open("/stream", &token, &WEBSOCKET).await;
    assert!(
        stream.status.contains("200") && websocket.status.contains("101"),
        "{} {}",
        stream.status,
        websocket.status
    );
    assert!(environment.control.revoke(&agent, &role).await);
    environment.wait_until_refused(&token).await;
    let written_before = environment.service.last_tick();
    for stream in [&mut stream, &mut websocket] {
        let mut tick = stream.next_tick().await.unwrap();
        while tick <= written_before {
            tick = stream.next_tick().await.unwrap();
        }
    }
}

#[tokio::test]
async fn envoy_ends_a_stream_when_the_decision_ends() {
    let environment = StreamEnvironment::start(|text| text).await;
    let (token, ..) = environment.token(Some(5)).await;
    let mut stream = environment.open("/stream", &token, &[]).await;
    let mut websocket = environment.open("/stream", &token, &WEBSOCKET).await;
    let ends = async { tokio::join!(stream.read_to_end(), websocket.read_to_end()) };
    let (events, messages) = tokio::time::timeout(LIMIT, ends).await.unwrap();
    assert!(events > 0 && messages > 0, "{events} {messages}");
    let logged = async || {
        let count = environment.envoy.log().matches("upstream_max_stream_duration_reached").count();
        (count == 2).then_some(())
    };
    eventually("Envoy logs why the streams ended", logged, || environment.envoy.log()).await;
    environment.wait_until_refused(&token).await;
}

#[tokio::test]
async fn envoy_ends_streams_when_the_view_of_the_sidecar_would_be_too_old() {
    let control = ControlPlane::start().await;
    let key = control.create_key(control.service(), "sync").await;
    let sidecar = Sidecar::start_with(&control, &[&key], &["sync.max_staleness_seconds=5"]);
    let service = TickingService::start().await;
    sidecar.wait_until_ready().await;
    let envoy = Envoy::start_example(&sidecar.socket(), service.port).await;
    let environment = StreamEnvironment { control, sidecar, service, envoy };
    let (token, ..) = environment.token(None).await;
    let mut stream = environment.open("/stream", &token, &[]).await;
    let count = tokio::time::timeout(LIMIT, stream.read_to_end()).await.unwrap();
    assert!(count > 0);
    let mut next = environment.open("/stream", &token, &[]).await;
    assert!(next.next_tick().await.is_some(), "the agent is allowed to open the next stream");
}

#[tokio::test]
async fn envoy_ends_streams_after_the_configured_duration() {
    let environment = StreamEnvironment::start(|text| {
        let text = replaced(&text, "max_stream_duration: 900s", "max_stream_duration: 1s");
        replaced(&text, "max_stream_duration: 3600s", "max_stream_duration: 2s")
    })
    .await;
    let (token, ..) = environment.token(None).await;
    let mut of_route = environment.open("/stream", &token, &[]).await;
    let mut anonymous = environment.open("/open", &token, &[]).await;
    let ends = async { tokio::join!(of_route.read_to_end(), anonymous.read_to_end()) };
    let (of_route, anonymous) = tokio::time::timeout(LIMIT, ends).await.unwrap();
    assert!(of_route > 0 && anonymous > 0);
    let logged = async || (environment.envoy.log().matches("\"max_duration_timeout\"").count() == 2).then_some(());
    eventually("Envoy logs why the streams ended", logged, || environment.envoy.log()).await;
}

#[tokio::test]
async fn envoy_ends_a_grpc_stream_when_the_decision_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (_reporter, health) = tonic_health::server::health_reporter();
    let server = tonic::transport::Server::builder().add_service(health);
    let server = tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let mut environment = StreamEnvironment::start(|text| text).await;
    environment.envoy = Envoy::start_edited_example(&environment.sidecar.socket(), port, |text| {
        let text = replaced(&text, "path_separated_prefix: /stream", "path_separated_prefix: /grpc.health.v1.Health");
        replaced(&text, "connect_timeout: 1s\n", "connect_timeout: 1s\n      http2_protocol_options: {}\n")
    })
    .await;
    let (token, ..) = environment.token(Some(5)).await;
    let channel = Endpoint::from_shared(environment.envoy.listener.url.clone()).unwrap().connect().await.unwrap();
    let mut request = tonic::Request::new(HealthCheckRequest::default());
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    let mut stream = HealthClient::new(channel).watch(request).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_some());
    tokio::time::timeout(LIMIT, stream.message()).await.unwrap().unwrap_err();
    server.abort();
}
