//! An authorizer with a scripted response, behind an Envoy with a minimal configuration.

use countersign_tests::{Envoy, HttpResponse, RawRequest, Upstream, envoy::replaced};
use envoy_types::{
    ext_authz::v3::pb::{
        Authorization, AuthorizationServer, CheckRequest, CheckResponse, DeniedHttpResponse,
        HttpResponse as EnvoyHttpResponse, HttpStatus, OkHttpResponse,
    },
    pb::{envoy::service::auth::v3::attribute_context::HttpRequest, google::rpc::Status},
};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};
use tempfile::TempDir;
use tokio::{net::UnixListener, task::JoinHandle};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, transport::Server};

/// The authorizer.
pub struct Scripted {
    folder: TempDir,
    script: Arc<Script>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Script {
    /// `None`: it never answers.
    response: Mutex<Option<CheckResponse>>,
    asked: Mutex<Vec<HttpRequest>>,
}

impl Scripted {
    /// Starts it on a Unix socket. It does not answer until a response is set.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(socket(folder.path())).unwrap();
        let script = Arc::new(Script::default());
        let serving = Server::builder().add_service(AuthorizationServer::from_arc(script.clone()));
        let task =
            tokio::spawn(async { serving.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap() });
        Self { folder, script, task }
    }

    /// Path of the socket.
    pub fn socket(&self) -> PathBuf {
        socket(self.folder.path())
    }

    /// Sets the response from now on.
    pub fn says(&self, response: CheckResponse) {
        *self.script.response.lock().unwrap() = Some(response);
    }

    /// The request of the last check.
    pub fn asked(&self) -> HttpRequest {
        self.script.asked.lock().unwrap().last().cloned().expect("it was asked")
    }

    /// Number of checks.
    pub fn times_asked(&self) -> usize {
        self.script.asked.lock().unwrap().len()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("authz.sock")
}

#[tonic::async_trait]
impl Authorization for Script {
    async fn check(&self, request: Request<CheckRequest>) -> Result<Response<CheckResponse>, tonic::Status> {
        let http = request.into_inner().attributes.and_then(|attributes| attributes.request?.http);
        self.asked.lock().unwrap().push(http.expect("it is about a request"));
        let response = self.response.lock().unwrap().clone();
        match response {
            Some(response) => Ok(Response::new(response)),
            None => std::future::pending().await,
        }
    }
}

/// Additions to the minimal configuration, each a line of YAML.
pub struct Said<'a> {
    /// In the HTTP connection manager.
    pub manager: &'a str,
    /// In the filter.
    pub filter: &'a str,
    /// In the gRPC service of the filter.
    pub call: &'a str,
}

/// A timeout that a busy machine does not exceed.
impl Default for Said<'_> {
    fn default() -> Self {
        Self { manager: "", filter: "", call: "timeout: 20s" }
    }
}

/// The authorizer, Envoy, and a service that returns the headers it received.
pub struct Fixture {
    pub authorizer: Scripted,
    pub upstream: Upstream,
    pub envoy: Envoy,
}

impl Fixture {
    pub async fn start(said: Said<'_>) -> Self {
        let (authorizer, upstream) = (Scripted::start(), Upstream::start().await);
        let envoy = bare(&authorizer.socket(), upstream.port, said).await;
        Self { authorizer, upstream, envoy }
    }

    /// Sets the response of the authorizer and sends a request.
    pub async fn judged(&self, response: CheckResponse, request: RawRequest) -> HttpResponse {
        self.authorizer.says(response);
        request.send(&self.envoy.site).await
    }

    /// Sends a request that the authorizer allows without changes.
    pub async fn allowed(&self, request: RawRequest) -> HttpResponse {
        self.judged(allow(OkHttpResponse::default()), request).await
    }
}

/// Starts the minimal Envoy for an authorizer.
pub async fn bare(socket: &Path, upstream: u16, said: Said<'_>) -> Envoy {
    let text = replaced(include_str!("minimal.yaml"), "# <manager>", said.manager);
    let text = replaced(&text, "# <filter>", said.filter);
    Envoy::start(&replaced(&text, "# <call>", said.call), socket, upstream).await
}

/// An allow that changes the request.
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

/// Any response, including a contradictory one.
pub fn response(code: Option<i32>, http_response: Option<EnvoyHttpResponse>) -> CheckResponse {
    let status = code.map(|code| Status { code, ..Status::default() });
    CheckResponse { status, http_response, ..CheckResponse::default() }
}
