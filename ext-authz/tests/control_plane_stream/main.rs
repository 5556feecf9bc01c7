//! Tests of the sidecar with a simulated control plane, which sends the messages of each test.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[path = "../../src/fixtures.rs"]
mod fixtures;
mod reports;
mod simulated_control_plane;
mod start_from_copy;

use countersign_ext_authz::{App, Intervals, config};
use countersign_identity::{AgentHashKey, Claims, Timestamp, TokenId};
use countersign_process::{BootId, Clock, Shutdown, SystemClock, SystemRng};
use countersign_proto::{
    envoy::service::auth::v3::{
        AttributeContext, CheckRequest, CheckResponse, attribute_context, authorization_client::AuthorizationClient,
        check_response::HttpResponse,
    },
    v1::{self, follow_response::Message},
};
use fixtures::{ISSUED_AT, SERVICE_ID, SESSION_ID, TOKEN_REVISION, TestIssuer};
use simulated_control_plane::{AGENT_HASH_KEY, revocation, snapshot, snapshot_page, start_control_plane};
use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tonic::{
    Status,
    transport::{Channel, Endpoint, Identity, ServerTlsConfig},
};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

const API_KEY: &str = "svc_sk_of_the_test";
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A clock whose wall-clock time is always one minute after the tokens were issued.
struct FixedWallClock;

impl Clock for FixedWallClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_seconds(ISSUED_AT + 60)
    }

    fn since_boot(&self) -> Duration {
        SystemClock.since_boot()
    }

    fn boot_id(&self) -> Option<BootId> {
        SystemClock.boot_id()
    }
}

/// The response to a request with this token on a route with these context extensions.
async fn check(
    envoy: &mut AuthorizationClient<Channel>,
    claims: &Claims,
    extensions: &[(&str, &str)],
) -> CheckResponse {
    let bearer = format!("Bearer {}", TestIssuer::new(1).sign(claims));
    let http = attribute_context::HttpRequest {
        headers: [("authorization".to_owned(), bearer)].into(),
        ..attribute_context::HttpRequest::default()
    };
    let request = attribute_context::Request { http: Some(http), ..attribute_context::Request::default() };
    let context_extensions = extensions.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    let attributes = AttributeContext { request: Some(request), context_extensions, ..AttributeContext::default() };
    envoy.check(CheckRequest { attributes: Some(attributes) }).await.unwrap().into_inner()
}

/// The reason of the denial of a request with this token; `None` if the request is allowed.
async fn denial_reason(envoy: &mut AuthorizationClient<Channel>, claims: &Claims) -> Option<String> {
    let response = check(envoy, claims, &[]).await;
    let Some(HttpResponse::DeniedResponse(denied)) = response.http_response else { return None };
    let mut headers = denied.headers.into_iter().filter_map(|option| option.header);
    headers.find(|header| header.key == "x-agent-reason").map(|header| header.value)
}

async fn wait_for_reason(envoy: &mut AuthorizationClient<Channel>, claims: &Claims, expected: Option<&str>) {
    let wait = async {
        while denial_reason(envoy, claims).await.as_deref() != expected {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TEST_TIMEOUT, wait).await.unwrap_or_else(|_| panic!("timed out waiting for the reason {expected:?}"));
}

async fn wait_until_serving(address: SocketAddr) {
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let mut health = HealthClient::new(channel);
    let wait = async {
        loop {
            let response = health.check(HealthCheckRequest::default()).await.unwrap().into_inner();
            if response.status() == ServingStatus::Serving {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TEST_TIMEOUT, wait).await.unwrap();
}

async fn start_sidecar(url: String, ca: &str) -> App {
    start_sidecar_with(url, ca, &[], Intervals::default()).await
}

async fn start_sidecar_with(url: String, ca: &str, settings: &[(&str, &str)], intervals: Intervals) -> App {
    let flags = [
        ("sync.urls", url),
        ("sync.ca", ca.to_owned()),
        ("sync.keys", API_KEY.to_owned()),
        ("sync.ping_seconds", "1".to_owned()),
        ("listen.grpc", "127.0.0.1:0".to_owned()),
        ("listen.admin", "127.0.0.1:0".to_owned()),
    ];
    let flags = flags.into_iter().map(|(key, value)| (key.to_owned(), value));
    let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let settings = config::read(None, vec![], flags.chain(settings).collect()).unwrap();
    App::bind_with(settings, Arc::new(FixedWallClock), Arc::new(SystemRng), intervals).await.unwrap()
}

#[tokio::test]
async fn sidecar_applies_messages_and_resumes_after_errors() {
    let (port, state, mut streams) = start_control_plane(None).await;
    let app = start_sidecar(format!("http://127.0.0.1:{port}"), "").await;
    let address = app.grpc_address().unwrap();
    let shutdown = Shutdown::default();
    let server = tokio::spawn(app.serve(shutdown.clone()));
    let mut envoy = AuthorizationClient::connect(format!("http://{address}")).await.unwrap();
    let claims = fixtures::claims();
    let other_session = Claims {
        jti: TokenId::from_bits(77),
        sid: countersign_identity::SessionId::from_bits(78),
        ..fixtures::claims()
    };

    let stream = timeout(TEST_TIMEOUT, streams.recv()).await.unwrap().unwrap();
    assert_eq!(stream.revision, 0);
    assert_eq!(denial_reason(&mut envoy, &claims).await.as_deref(), Some("view_missing"));
    stream.send(snapshot()).await;
    wait_for_reason(&mut envoy, &claims, None).await;
    wait_until_serving(address).await;

    state.revision.store(TOKEN_REVISION + 1, Ordering::SeqCst);
    stream.send(revocation(TOKEN_REVISION + 1, v1::revocation::Subject::SessionId(SESSION_ID.to_string()))).await;
    wait_for_reason(&mut envoy, &claims, Some("token_revoked")).await;
    assert_eq!(denial_reason(&mut envoy, &other_session).await, None);

    // An invalid sync message ends the stream and does not change the sidecar's data. While the control plane refuses
    // the API key, the sidecar's data does not change.
    state.refuse_streams.store(true, Ordering::SeqCst);
    stream.send(revocation(TOKEN_REVISION + 2, v1::revocation::Subject::TokenId("invalid".into()))).await;
    let wait_until_refused = async {
        while state.refused_streams.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TEST_TIMEOUT, wait_until_refused).await.unwrap();
    assert_eq!(denial_reason(&mut envoy, &other_session).await, None);
    state.refuse_streams.store(false, Ordering::SeqCst);

    let stream = timeout(TEST_TIMEOUT, streams.recv()).await.unwrap().unwrap();
    assert_eq!(stream.revision, TOKEN_REVISION + 1, "the new stream resumes at the last applied revision");
    stream.send(revocation(TOKEN_REVISION + 2, v1::revocation::Subject::TokenId(other_session.jti.to_string()))).await;
    wait_for_reason(&mut envoy, &other_session, Some("token_revoked")).await;

    shutdown.trigger();
    timeout(TEST_TIMEOUT, server).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn sidecar_connects_only_to_a_control_plane_with_a_trusted_certificate() {
    let _already_installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let trusted_certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let other_certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let write_file = |name: &str, pem: String| {
        let path = directory.path().join(name);
        std::fs::write(&path, pem).unwrap();
        path.display().to_string()
    };
    let (trusted_ca, other_ca) = (
        write_file("trusted.pem", trusted_certificate.cert.pem()),
        write_file("other.pem", other_certificate.cert.pem()),
    );
    let identity = Identity::from_pem(trusted_certificate.cert.pem(), trusted_certificate.signing_key.serialize_pem());
    let (port, _state, mut streams) = start_control_plane(Some(ServerTlsConfig::new().identity(identity))).await;
    let (url, shutdown) = (format!("https://localhost:{port}"), Shutdown::default());

    tokio::spawn(start_sidecar(url.clone(), &other_ca).await.serve(shutdown.clone()));
    assert!(
        timeout(Duration::from_secs(2), streams.recv()).await.is_err(),
        "the sidecar accepted an untrusted certificate"
    );
    tokio::spawn(start_sidecar(url, &trusted_ca).await.serve(shutdown.clone()));
    assert_eq!(timeout(TEST_TIMEOUT, streams.recv()).await.unwrap().unwrap().revision, 0);
    shutdown.trigger();
}

#[tokio::test]
async fn denial_body_contains_the_unmet_requirement_only_if_configured() {
    for (explain, expected) in [
        ("false", r#"{"reason":"role_missing"}"#),
        ("true", r#"{"reason":"role_missing","required":{"roles":["writer"]},"actual":{"roles":["reader"]}}"#),
    ] {
        let (port, _state, mut streams) = start_control_plane(None).await;
        let url = format!("http://127.0.0.1:{port}");
        let app = start_sidecar_with(url, "", &[("denials.explain", explain)], Intervals::default()).await;
        let (address, shutdown) = (app.grpc_address().unwrap(), Shutdown::default());
        tokio::spawn(app.serve(shutdown.clone()));
        let mut envoy = AuthorizationClient::connect(format!("http://{address}")).await.unwrap();
        let stream = timeout(TEST_TIMEOUT, streams.recv()).await.unwrap().unwrap();
        stream.send(snapshot()).await;
        wait_for_reason(&mut envoy, &fixtures::claims(), None).await;
        let response = check(&mut envoy, &fixtures::claims(), &[("require_roles", "writer")]).await;
        let metadata = format!("{:?}", response.dynamic_metadata);
        assert!(metadata.contains("required") && metadata.contains("writer"), "{metadata}");
        let Some(HttpResponse::DeniedResponse(denied)) = response.http_response else {
            panic!("the request was allowed")
        };
        assert!(denied.body.ends_with(&format!("\"details\":{expected}}}}}")), "{}", denied.body);
        shutdown.trigger();
    }
}

#[tokio::test]
async fn failed_connection_attempts_are_not_counted_as_reconnects() {
    let (port, state, mut streams) = start_control_plane(None).await;
    state.refuse_streams.store(true, Ordering::SeqCst);
    let app = start_sidecar(format!("http://127.0.0.1:{port}"), "").await;
    let (admin, shutdown) = (app.admin_address().unwrap(), Shutdown::default());
    tokio::spawn(app.serve(shutdown.clone()));
    wait_for_metric(admin, r#"stream_connect_failures_total{service="none"}"#, 1.0).await;

    state.refuse_streams.store(false, Ordering::SeqCst);
    let stream = timeout(TEST_TIMEOUT, streams.recv()).await.unwrap().unwrap();
    stream.send(snapshot()).await;
    wait_for_metric(admin, &format!(r#"stream_connected{{service="{SERVICE_ID}"}}"#), 1.0).await;
    let reconnects = format!(r#"stream_reconnects_total{{service="{SERVICE_ID}"}}"#);
    assert_eq!(read_metric(admin, &reconnects).await, Some(0.0), "a failed attempt was counted as a reconnect");

    state.refuse_streams.store(true, Ordering::SeqCst);
    stream.responses.send(Err(Status::unavailable("restart"))).await.unwrap();
    wait_for_metric(admin, &format!(r#"stream_connect_failures_total{{service="{SERVICE_ID}"}}"#), 1.0).await;
    assert_eq!(read_metric(admin, &reconnects).await, Some(1.0), "the loss of a stream was not counted");
    shutdown.trigger();
}

async fn wait_for_metric(admin: SocketAddr, series: &str, at_least: f64) {
    let wait = async {
        while read_metric(admin, series).await.is_none_or(|value| value < at_least) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let result = timeout(TEST_TIMEOUT, wait).await;
    assert!(result.is_ok(), "{series} is {:?}", read_metric(admin, series).await);
}

/// Reads a series from the admin port. `series` is the name without the prefix `countersign_authz_`, and the labels.
async fn read_metric(admin: SocketAddr, series: &str) -> Option<f64> {
    let mut connection = TcpStream::connect(admin).await.unwrap();
    connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
    let mut response = String::new();
    connection.read_to_string(&mut response).await.unwrap();
    let series = format!("countersign_authz_{series} ");
    response.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
}

/// The changes of the agent of the tests, with this status.
fn agent_changes(revision: i64, status: v1::AgentStatus) -> v1::AgentChanges {
    let status = Some(v1::StatusFacet { revision, status: status.into(), cutoff: 0 });
    v1::AgentChanges { status, ..v1::AgentChanges::default() }
}

/// A sidecar keeps deciding by its view until the snapshot with the new names is complete.
#[tokio::test]
async fn sidecar_requests_a_snapshot_when_the_names_of_agents_change() {
    let (port, _, mut streams) = start_control_plane(None).await;
    let app = start_sidecar(format!("http://127.0.0.1:{port}"), "").await;
    let address = app.grpc_address().unwrap();
    let shutdown = Shutdown::default();
    let server = tokio::spawn(app.serve(shutdown.clone()));
    let mut envoy = AuthorizationClient::connect(format!("http://{address}")).await.unwrap();
    let (claims, suspended_at) = (fixtures::claims(), TOKEN_REVISION + 1);

    let previous = timeout(TEST_TIMEOUT, streams.recv()).await.unwrap().unwrap();
    let mut page = snapshot_page();
    let info = page.info.clone();
    page.revision = suspended_at;
    let other_key = [8; 32];
    page.info.as_mut().unwrap().agent_hash_key = other_key.to_vec();
    let hash_under = |key: &[u8]| AgentHashKey::from_bytes(key).unwrap().hash(claims.sub).to_bytes().to_vec();
    let changes = agent_changes(suspended_at, v1::AgentStatus::Suspended);
    page.agents = vec![v1::AgentChanges { agent_hash: hash_under(&other_key), ..changes.clone() }];
    previous.send(Message::Snapshot(page)).await;
    wait_for_reason(&mut envoy, &claims, Some("agent_suspended")).await;

    let delta = v1::Delta { revision: suspended_at, info, ..v1::Delta::default() };
    previous.send(Message::Delta(delta)).await;
    let next = timeout(TEST_TIMEOUT, streams.recv()).await.unwrap().unwrap();
    assert_eq!(next.revision, 0, "the sidecar requests a snapshot");
    assert_eq!(denial_reason(&mut envoy, &claims).await.as_deref(), Some("agent_suspended"));
    let agent_hash = hash_under(&AGENT_HASH_KEY);
    let mut page = snapshot_page();
    page.revision = suspended_at;
    page.agents = vec![v1::AgentChanges { agent_hash: agent_hash.clone(), ..changes }];
    next.send(Message::Snapshot(page)).await;
    let active = agent_changes(suspended_at + 1, v1::AgentStatus::Active);
    let agents = vec![v1::AgentChanges { agent_hash, ..active }];
    next.send(Message::Delta(v1::Delta { revision: suspended_at + 1, agents, ..v1::Delta::default() })).await;
    wait_for_reason(&mut envoy, &claims, None).await;
    shutdown.trigger();
    server.await.unwrap().unwrap();
}
