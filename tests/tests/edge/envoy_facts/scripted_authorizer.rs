//! An authorizer with a scripted response, behind an Envoy with a minimal configuration.

use countersign_proto::{
    envoy::{
        service::auth::v3::{
            CheckRequest, CheckResponse, DeniedHttpResponse, OkHttpResponse,
            attribute_context::HttpRequest,
            authorization_server::{Authorization, AuthorizationServer},
            check_response::HttpResponse as EnvoyHttpResponse,
        },
        r#type::v3::HttpStatus,
    },
    google::rpc::Status,
};
use countersign_tests::{Envoy, HttpResponse, RawRequest, Upstream, envoy::replaced};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};
use tempfile::TempDir;
use tokio::{net::UnixListener, task::JoinHandle};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, transport::Server};

/// An authorizer that records the checks and sends the response that the test sets.
pub struct ScriptedAuthorizer {
    directory: TempDir,
    service: Arc<ScriptedService>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct ScriptedService {
    /// `None` if the authorizer never responds.
    response: Mutex<Option<CheckResponse>>,
    requests: Mutex<Vec<HttpRequest>>,
}

impl ScriptedAuthorizer {
    /// Starts the authorizer on a Unix socket. The authorizer does not respond until a test sets a response.
    pub fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(socket(directory.path())).unwrap();
        let service = Arc::new(ScriptedService::default());
        let server = Server::builder().add_service(AuthorizationServer::from_arc(service.clone()));
        let task = tokio::spawn(async { server.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap() });
        Self { directory, service, task }
    }

    /// Path of the socket.
    pub fn socket(&self) -> PathBuf {
        socket(self.directory.path())
    }

    /// Sets the response to every later check.
    pub fn set_response(&self, response: CheckResponse) {
        *self.service.response.lock().unwrap() = Some(response);
    }

    /// The request of the last check.
    pub fn last_request(&self) -> HttpRequest {
        self.service.requests.lock().unwrap().last().cloned().expect("the authorizer received a check")
    }

    /// Number of checks.
    pub fn check_count(&self) -> usize {
        self.service.requests.lock().unwrap().len()
    }
}

impl Drop for ScriptedAuthorizer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("authz.sock")
}

#[tonic::async_trait]
impl Authorization for ScriptedService {
    async fn check(&self, request: Request<CheckRequest>) -> Result<Response<CheckResponse>, tonic::Status> {
        let http = request.into_inner().attributes.and_then(|attributes| attributes.request?.http);
        self.requests.lock().unwrap().push(http.expect("the check contains an HTTP request"));
        let response = self.response.lock().unwrap().clone();
        match response {
            Some(response) => Ok(Response::new(response)),
            None => std::future::pending().await,
        }
    }
}

/// Lines of YAML that are added to the minimal configuration.
pub struct ConfigAdditions<'a> {
    /// Added to the HTTP connection manager.
    pub connection_manager: &'a str,
    /// Added to the `ext_authz` filter.
    pub filter: &'a str,
    /// Added to the gRPC service of the filter.
    pub grpc_service: &'a str,
}

/// Adds only a gRPC timeout that a busy machine does not exceed.
impl Default for ConfigAdditions<'_> {
    fn default() -> Self {
        Self { connection_manager: "", filter: "", grpc_service: "timeout: 20s" }
    }
}

/// The authorizer, Envoy, and a service that returns the headers it received.
pub struct Fixture {
    pub authorizer: ScriptedAuthorizer,
    pub upstream: Upstream,
    pub envoy: Envoy,
}

impl Fixture {
    pub async fn start(additions: ConfigAdditions<'_>) -> Self {
        let (authorizer, upstream) = (ScriptedAuthorizer::start(), Upstream::start().await);
        let envoy = minimal_envoy(&authorizer.socket(), upstream.port, additions).await;
        Self { authorizer, upstream, envoy }
    }

    /// Sets the response of the authorizer and sends a request.
    pub async fn send_with_response(&self, response: CheckResponse, request: RawRequest) -> HttpResponse {
        self.authorizer.set_response(response);
        request.send(&self.envoy.listener).await
    }

    /// Sends a request that the authorizer allows without changes.
    pub async fn send_allowed(&self, request: RawRequest) -> HttpResponse {
        self.send_with_response(allow(OkHttpResponse::default()), request).await
    }
}

/// Starts the minimal Envoy for an authorizer.
pub async fn minimal_envoy(socket: &Path, upstream: u16, additions: ConfigAdditions<'_>) -> Envoy {
    let text = replaced(include_str!("minimal.yaml"), "# <connection_manager>", additions.connection_manager);
    let text = replaced(&text, "# <filter>", additions.filter);
    Envoy::start(&replaced(&text, "# <grpc_service>", additions.grpc_service), socket, upstream).await
}

/// A response that allows the request and changes it.
pub fn allow(ok: OkHttpResponse) -> CheckResponse {
    response(Some(0), Some(EnvoyHttpResponse::OkResponse(ok)))
}

/// A denial with status 401 and a body.
pub fn denied() -> EnvoyHttpResponse {
    let status = Some(HttpStatus { code: 401 });
    EnvoyHttpResponse::DeniedResponse(DeniedHttpResponse {
        status,
        body: "denied".into(),
        ..DeniedHttpResponse::default()
    })
}

/// A response with any status and HTTP response, which may contradict each other.
pub fn response(code: Option<i32>, http_response: Option<EnvoyHttpResponse>) -> CheckResponse {
    let status = code.map(|code| Status { code, ..Status::default() });
    CheckResponse { status, http_response, ..CheckResponse::default() }
}
