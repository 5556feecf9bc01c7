//! Tests of the sidecar with a simulated control plane, which sends the messages of each test.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[path = "../../src/fixtures.rs"]
mod fixtures;
mod reports;
mod simulated_control_plane;
mod start_from_copy;

use countersign_ext_authz::{App, AuthorizerError, config};
use countersign_identity::{AgentHashKey, Claims, Timestamp, TokenId};
use countersign_process::{BootId, Clock, Shutdown, SystemClock, SystemRng};
use countersign_proto::{
    envoy::service::auth::v3::{
        AttributeContext, CheckRequest, CheckResponse, attribute_context, authorization_client::AuthorizationClient,
        check_response::HttpResponse,
    },
    v1::{self, follow_response::Message, revocation::Subject},
};
use fixtures::{ISSUED_AT, SESSION_ID, TOKEN_REVISION, TestIssuer};
use simulated_control_plane::{
    AGENT_HASH_KEY, OpenStream, SharedState, revocation, snapshot, snapshot_page, start_control_plane,
};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
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

/// Polls a condition until it is met.
async fn wait_until(condition_name: &str, condition: impl AsyncFn() -> bool) {
    let wait = async {
        while !condition().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TEST_TIMEOUT, wait).await.unwrap_or_else(|_| panic!("timed out waiting until {condition_name}"));
}

struct RunningSidecar {
    check_address: SocketAddr,
    /// A client of the port for checks, which connects when it is first used.
    envoy: AuthorizationClient<Channel>,
    shutdown: Shutdown,
    server: JoinHandle<Result<(), AuthorizerError>>,
}

impl RunningSidecar {
    async fn start(url: &str, settings: &[(&str, &str)], copy_interval: fn(Duration) -> Duration) -> Self {
        let flags = [
            ("sync.urls", url),
            ("sync.keys", API_KEY),
            ("sync.ping_seconds", "1"),
            ("listen.grpc", "127.0.0.1:0"),
            ("listen.admin", "127.0.0.1:0"),
        ];
        let flags = flags.iter().chain(settings).map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let settings = config::read(None, vec![], flags.collect()).unwrap();
        let app = App::bind(settings, Arc::new(FixedWallClock), Arc::new(SystemRng), copy_interval).await.unwrap();
        let (check_address, shutdown) = (app.grpc_address().unwrap(), Shutdown::default());
        let server = tokio::spawn(app.serve(shutdown.clone()));
        Self { check_address, envoy: AuthorizationClient::new(channel(check_address)), shutdown, server }
    }

    /// The response to a request with this token on a route with these context extensions.
    async fn check(&self, claims: &Claims, extensions: &[(&str, &str)]) -> CheckResponse {
        let bearer = format!("Bearer {}", TestIssuer::new(1).sign(claims));
        let http = attribute_context::HttpRequest {
            headers: [("authorization".to_owned(), bearer)].into(),
            ..attribute_context::HttpRequest::default()
        };
        let request = attribute_context::Request { http: Some(http), ..attribute_context::Request::default() };
        let context_extensions = extensions.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let attributes = AttributeContext { request: Some(request), context_extensions, ..AttributeContext::default() };
        let request = CheckRequest { attributes: Some(attributes) };
        self.envoy.clone().check(request).await.unwrap().into_inner()
    }

    /// The reason of the denial of a request with this token; `None` if the request is allowed.
    async fn denial_reason(&self, claims: &Claims) -> Option<String> {
        let response = self.check(claims, &[]).await;
        let Some(HttpResponse::DeniedResponse(denied)) = response.http_response else { return None };
        let mut headers = denied.headers.into_iter().filter_map(|option| option.header);
        headers.find(|header| header.key == "x-agent-reason").map(|header| header.value)
    }

    async fn wait_for_reason(&self, claims: &Claims, expected: Option<&str>) {
        let has_reason = async || self.denial_reason(claims).await.as_deref() == expected;
        wait_until(&format!("the reason is {expected:?}"), has_reason).await;
    }

    async fn wait_until_serving(&self) {
        let health = HealthClient::new(channel(self.check_address));
        let is_serving = async || {
            let response = health.clone().check(HealthCheckRequest::default()).await.unwrap();
            response.into_inner().status() == ServingStatus::Serving
        };
        wait_until("the sidecar is healthy", is_serving).await;
    }

    async fn stop(self) {
        self.shutdown.trigger();
        timeout(TEST_TIMEOUT, self.server).await.unwrap().unwrap().unwrap();
    }
}

fn channel(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy()
}

/// A sidecar and its first stream.
struct Fixture {
    streams: mpsc::Receiver<OpenStream>,
    stream: OpenStream,
    state: Arc<SharedState>,
    url: String,
    sidecar: RunningSidecar,
}

impl Fixture {
    async fn new(settings: &[(&str, &str)]) -> Self {
        Self::with_copy_interval(settings, every_second).await
    }

    async fn with_copy_interval(settings: &[(&str, &str)], copy_interval: fn(Duration) -> Duration) -> Self {
        let (port, state, mut streams) = start_control_plane().await;
        let url = format!("http://127.0.0.1:{port}");
        let sidecar = RunningSidecar::start(&url, settings, copy_interval).await;
        let stream = next_stream(&mut streams).await;
        Self { streams, stream, state, url, sidecar }
    }

    /// A revocation of another token.
    async fn send_change(&self, revision: i64) {
        self.state.revision.store(revision, Ordering::SeqCst);
        self.stream.send(revocation(revision, Subject::TokenId(TokenId::from_bits(77).to_string()))).await;
    }
}

const fn every_second(_max_age: Duration) -> Duration {
    Duration::from_secs(1)
}

async fn next_stream(streams: &mut mpsc::Receiver<OpenStream>) -> OpenStream {
    timeout(TEST_TIMEOUT, streams.recv()).await.unwrap().unwrap()
}

/// The copy in a directory.
fn copy_in(directory: &Path) -> Option<PathBuf> {
    let mut paths = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    paths.find(|path| path.extension().is_some_and(|extension| extension == "copy"))
}

#[tokio::test]
async fn sidecar_applies_messages_and_resumes_after_errors() {
    let Fixture { mut streams, stream, state, url: _, sidecar } = Fixture::new(&[]).await;
    let claims = fixtures::claims();
    let other_session = Claims {
        jti: TokenId::from_bits(77),
        sid: countersign_identity::SessionId::from_bits(78),
        ..fixtures::claims()
    };

    assert_eq!(stream.hello.revision, 0);
    assert_eq!(sidecar.denial_reason(&claims).await.as_deref(), Some("view_missing"));
    stream.send(snapshot()).await;
    sidecar.wait_for_reason(&claims, None).await;
    sidecar.wait_until_serving().await;

    state.revision.store(TOKEN_REVISION + 1, Ordering::SeqCst);
    stream.send(revocation(TOKEN_REVISION + 1, Subject::SessionId(SESSION_ID.to_string()))).await;
    sidecar.wait_for_reason(&claims, Some("token_revoked")).await;
    assert_eq!(sidecar.denial_reason(&other_session).await, None);

    // An invalid sync message ends the stream. Neither the message nor the refusal of the next streams changes the sidecar's data.
    state.refuse_streams.store(true, Ordering::SeqCst);
    stream.send(revocation(TOKEN_REVISION + 2, Subject::TokenId("invalid".into()))).await;
    state.wait_for_refusals(1).await;
    assert_eq!(sidecar.denial_reason(&other_session).await, None);
    state.refuse_streams.store(false, Ordering::SeqCst);

    let stream = next_stream(&mut streams).await;
    assert_eq!(stream.hello.revision, TOKEN_REVISION + 1, "the new stream resumes at the last applied revision");
    stream.send(revocation(TOKEN_REVISION + 2, Subject::TokenId(other_session.jti.to_string()))).await;
    sidecar.wait_for_reason(&other_session, Some("token_revoked")).await;
    sidecar.stop().await;
}

#[tokio::test]
async fn denial_body_contains_the_unmet_requirement_if_configured() {
    let fixture = Fixture::new(&[("denials.explain", "true")]).await;
    fixture.stream.send(snapshot()).await;
    fixture.sidecar.wait_for_reason(&fixtures::claims(), None).await;
    let response = fixture.sidecar.check(&fixtures::claims(), &[("require_roles", "writer")]).await;
    let Some(HttpResponse::DeniedResponse(denied)) = response.http_response else { panic!("the request was allowed") };
    let expected = r#"{"reason":"role_missing","required":{"roles":["writer"]},"actual":{"roles":["reader"]}}"#;
    assert!(denied.body.ends_with(&format!("\"details\":{expected}}}}}")), "{}", denied.body);
    fixture.sidecar.stop().await;
}

/// The changes of the agent of the tests, with this status.
fn agent_changes(revision: i64, status: v1::AgentStatus) -> v1::AgentChanges {
    let status = Some(v1::StatusFacet { revision, status: status.into(), cutoff: 0 });
    v1::AgentChanges { status, ..v1::AgentChanges::default() }
}

/// After a change of the agent hash key, a sidecar keeps deciding with its view until a snapshot under the new key is complete.
#[tokio::test]
async fn sidecar_requests_a_snapshot_when_the_names_of_agents_change() {
    let Fixture { mut streams, stream, state: _, url: _, sidecar } = Fixture::new(&[]).await;
    let (claims, suspended_at) = (fixtures::claims(), TOKEN_REVISION + 1);

    let mut page = snapshot_page();
    let info = page.info.clone();
    page.revision = suspended_at;
    let other_key = [8; 32];
    page.info.as_mut().unwrap().agent_hash_key = other_key.to_vec();
    let hash_under = |key: &[u8]| AgentHashKey::from_bytes(key).unwrap().hash(claims.sub).to_bytes().to_vec();
    let changes = agent_changes(suspended_at, v1::AgentStatus::Suspended);
    page.agents = vec![v1::AgentChanges { agent_hash: hash_under(&other_key), ..changes.clone() }];
    stream.send(Message::Snapshot(page)).await;
    sidecar.wait_for_reason(&claims, Some("agent_suspended")).await;

    stream.send(Message::Delta(v1::Delta { revision: suspended_at, info, ..v1::Delta::default() })).await;
    let next = next_stream(&mut streams).await;
    assert_eq!(next.hello.revision, 0, "the sidecar requests a snapshot");
    assert_eq!(sidecar.denial_reason(&claims).await.as_deref(), Some("agent_suspended"));
    let agent_hash = hash_under(&AGENT_HASH_KEY);
    let agents = vec![v1::AgentChanges { agent_hash: agent_hash.clone(), ..changes }];
    next.send(Message::Snapshot(v1::SnapshotPage { revision: suspended_at, agents, ..snapshot_page() })).await;
    let active = agent_changes(suspended_at + 1, v1::AgentStatus::Active);
    let agents = vec![v1::AgentChanges { agent_hash, ..active }];
    next.send(Message::Delta(v1::Delta { revision: suspended_at + 1, agents, ..v1::Delta::default() })).await;
    sidecar.wait_for_reason(&claims, None).await;
    sidecar.stop().await;
}
