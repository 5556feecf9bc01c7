//! Starts the sidecar binary on a Unix socket or a TCP port, and sends it checks.

use crate::{
    ControlPlane,
    http::HttpClient,
    process::{Process, eventually, free_port, wrapped},
    tools,
};
use countersign_proto::envoy::service::auth::v3::{
    AttributeContext, CheckRequest, CheckResponse,
    attribute_context::{HttpRequest, Request},
    authorization_client::AuthorizationClient,
    check_response::HttpResponse as EnvoyHttpResponse,
};
use std::{
    collections::HashMap,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

/// Builds the command of a sidecar. The argument is a program under which it runs, such as Valgrind, with arguments, or empty.
type SidecarCommand = Box<dyn Fn(&[String]) -> Command + Send + Sync>;

/// A sidecar process.
pub struct Sidecar {
    // Declared before the folder: if the test panics, dropping the process prints the log in the folder.
    process: Process,
    folder: TempDir,
    /// Address for Envoy: `unix:<path>` or `<ip>:<port>`.
    pub listen: String,
    /// HTTP client of the admin port.
    pub admin: HttpClient,
    command: SidecarCommand,
}

/// The sync port of a control plane.
pub struct SyncPort {
    /// The URL.
    pub url: String,
    /// Path of the file with the certificate of the CA.
    pub ca: PathBuf,
}

/// A decoded check response.
#[derive(Debug)]
pub struct CheckResult {
    /// 200 if the request is allowed, otherwise the HTTP status of the denial.
    pub status: u16,
    /// Reason in the body of a denial.
    pub reason: String,
    /// Headers added to the upstream request, or headers of the denial response.
    pub headers: HashMap<String, String>,
    /// Headers removed from the request.
    pub removed: Vec<String>,
    /// The undecoded response.
    pub response: CheckResponse,
}

impl Sidecar {
    /// Starts a sidecar on a Unix socket for the first service, and waits until the sidecar has data of the service (a view).
    pub async fn start(control: &ControlPlane) -> Self {
        let key = control.create_key(control.service(), "sync").await;
        let sidecar = Self::start_with(control, &[&key], &[]);
        sidecar.wait_until_ready().await;
        sidecar
    }

    /// Starts a sidecar with these API keys and settings, and does not wait until the sidecar has data (a view).
    pub fn start_with(control: &ControlPlane, keys: &[&str], settings: &[&str]) -> Self {
        Self::start_in(&[], control, keys, settings)
    }

    /// Like `start_with`, with these environment variables.
    pub fn start_in(environment: &[(&str, String)], control: &ControlPlane, keys: &[&str], settings: &[&str]) -> Self {
        let port = SyncPort { url: control.env["SYNC_URL"].clone(), ca: control.env["CA"].clone().into() };
        Self::start_at(environment, &port, keys, settings)
    }

    /// Like `start_in`, with the sync port of any control plane.
    pub fn start_at(environment: &[(&str, String)], port: &SyncPort, keys: &[&str], settings: &[&str]) -> Self {
        let environment: Vec<_> = environment.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let admin = format!("127.0.0.1:{}", free_port());
        let listen = format!("unix:{}", folder.path().join("authz.sock").display());
        let listen =
            settings.iter().find_map(|setting| setting.strip_prefix("listen.grpc=")).map_or(listen, Into::into);
        let keys_file = folder.path().join("keys");
        std::fs::write(&keys_file, keys.join("\n")).expect("the keys can be written");
        let mut arguments = vec![format!("listen.grpc={listen}"), format!("listen.admin={admin}")];
        if !settings.iter().any(|setting| setting.starts_with("sync.urls=")) {
            arguments.push(format!("sync.urls={}", port.url));
        }
        arguments.push(format!("sync.ca={}", port.ca.display()));
        arguments.extend(["log.format=text".to_owned(), "sync.ping_seconds=1".to_owned()]);
        arguments.extend(settings.iter().map(ToString::to_string));
        let command = Box::new(move |wrapper: &[String]| {
            let mut command = wrapped(&tools::binary("countersign-ext-authz"), wrapper);
            command.env("COUNTERSIGN_SYNC__KEYS_FILE", &keys_file);
            command.envs(environment.iter().map(|(name, value)| (name, value)));
            for setting in &arguments {
                command.args(["--set", setting]);
            }
            command
        });
        let process = Process::start(command(&[]), &folder.path().join("log"));
        Self { process, listen, admin: HttpClient::plain(format!("http://{admin}")), command, folder }
    }

    /// Waits until the sidecar has its first view of the control plane's data.
    pub async fn wait_until_ready(&self) {
        self.admin.wait_until_ok("/readyz", "the sidecar has its first view", || self.log()).await;
    }

    /// Kills the process and starts it with the same settings.
    pub fn restart(&mut self) {
        self.restart_under(&[]);
    }

    /// Kills the process, and starts it with the same settings under another program, such as Valgrind, which is given with its
    /// arguments.
    pub fn restart_under(&mut self, wrapper: &[String]) {
        self.process.kill();
        self.process = Process::start((self.command)(wrapper), &self.folder.path().join("log"));
    }

    /// The folder of the files of the process.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Sends SIGTERM and waits for the exit.
    pub async fn terminate(&mut self) -> std::process::ExitStatus {
        self.process.terminate().await
    }

    /// The id of the process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Resident memory in bytes (`VmRSS`).
    pub fn resident_memory(&self) -> usize {
        self.process.resident_memory()
    }

    /// CPU time of the process.
    pub fn cpu_time(&self) -> Duration {
        self.process.cpu_time()
    }

    /// The log so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Path of the file with the API keys.
    pub fn keys_file(&self) -> PathBuf {
        self.folder.path().join("keys")
    }

    /// Path of the Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.listen.strip_prefix("unix:").expect("the sidecar listens on a Unix socket").into()
    }

    /// A gRPC client of the authorization service.
    pub async fn client(&self) -> AuthorizationClient<Channel> {
        AuthorizationClient::new(self.channel().await)
    }

    /// A connection to the port for Envoy.
    pub async fn channel(&self) -> Channel {
        let uri = match self.listen.strip_prefix("unix:") {
            Some(path) => format!("unix://{path}"),
            None => format!("http://{}", self.listen),
        };
        let endpoint = Endpoint::from_shared(uri).expect("the server has an address");
        eventually("the sidecar listens", async || endpoint.connect().await.ok(), || self.log()).await
    }

    /// Sends a check with these headers and context extensions.
    pub async fn check_with(&self, headers: &[(&str, &str)], extensions: &[(&str, &str)]) -> CheckResult {
        self.check_any(check_request(headers, extensions)).await
    }

    /// Sends a check of a request with this method, host and path.
    pub async fn check_target(
        &self,
        (method, host, path): (&str, &str, &str),
        headers: &[(&str, &str)],
        extensions: &[(&str, &str)],
    ) -> CheckResult {
        let mut request = check_request(headers, extensions);
        let http = http_of(&mut request);
        (http.method, http.host, http.path) = (method.into(), host.into(), path.into());
        self.check_any(request).await
    }

    /// Sends any check.
    pub async fn check_any(&self, request: CheckRequest) -> CheckResult {
        check(&mut self.client().await, request).await
    }

    /// Sends a check with these headers.
    pub async fn check(&self, headers: &[(&str, &str)]) -> CheckResult {
        self.check_with(headers, &[]).await
    }

    /// Sends a check with this bearer token.
    pub async fn check_token(&self, token: &str) -> CheckResult {
        self.check(&[("authorization", &format!("Bearer {token}"))]).await
    }

    /// Waits until a check with this bearer token is allowed.
    pub async fn wait_until_accepted(&self, token: &str) {
        self.wait_for_check(token, |result| result.status == 200).await;
    }

    /// Waits until a check with this bearer token is denied with this reason.
    pub async fn wait_until_refused(&self, token: &str, reason: &str) {
        self.wait_for_check(token, |result| result.reason == reason).await;
    }

    /// Checks this bearer token until the result is as expected.
    pub async fn wait_for_check(&self, token: &str, expected: impl Fn(&CheckResult) -> bool) {
        let decided = async || Some(self.check_token(token).await).filter(&expected);
        eventually("the sidecar decides as expected", decided, || self.log()).await;
    }

    /// Value of a counter or gauge, by the prefix of its line in `/metrics`.
    pub async fn metric(&self, line: &str) -> Option<f64> {
        self.admin.metric(line).await
    }

    /// Waits until a counter or gauge is above zero.
    pub async fn wait_for_metric(&self, line: &str) {
        let is_positive = async || self.metric(line).await.filter(|value| *value > 0.0);
        eventually(line, is_positive, || self.log()).await;
    }

    /// Waits until the log contains a text.
    pub async fn wait_for_log(&self, text: &str) {
        eventually(text, async || self.log().contains(text).then_some(()), || self.log()).await;
    }
}

/// Runs a command of the sidecar with this standard input. Returns the exit code, the standard output and the standard error.
pub fn run_command(mut command: Command, input: &str) -> (Option<i32>, String, String) {
    let mut process =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    // The write fails if the process has already ended because of its arguments, so ignore the error.
    let _written = process.stdin.take().expect("the input is piped").write_all(input.as_bytes());
    let output = process.wait_with_output().expect("the process ends");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// The HTTP request of a check.
pub fn http_of(check: &mut CheckRequest) -> &mut HttpRequest {
    let request = check.attributes.as_mut().and_then(|attributes| attributes.request.as_mut()?.http.as_mut());
    request.expect("the check has an HTTP request")
}

/// Sends a check over this connection.
pub async fn check(client: &mut AuthorizationClient<Channel>, request: CheckRequest) -> CheckResult {
    let response = client.check(request).await;
    CheckResult::from_response(response.expect("a check never fails with a gRPC error").into_inner())
}

/// A check request as Envoy sends it.
pub fn check_request(headers: &[(&str, &str)], extensions: &[(&str, &str)]) -> CheckRequest {
    let to_map = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    let http =
        HttpRequest { method: "GET".into(), path: "/".into(), headers: to_map(headers), ..HttpRequest::default() };
    CheckRequest {
        attributes: Some(AttributeContext {
            request: Some(Request { http: Some(http), ..Request::default() }),
            context_extensions: to_map(extensions),
            ..AttributeContext::default()
        }),
    }
}

/// The details in the body of a denial. A denial by a rule about MCP is a JSON-RPC error, whose field `data` contains the details.
fn details_of(body: &str) -> serde_json::Value {
    let body: serde_json::Value = serde_json::from_str(body).expect("a denial has a JSON body");
    body["error"].get("details").or_else(|| body["error"].get("data")).cloned().unwrap_or_default()
}

impl CheckResult {
    /// The details in the body of a denial.
    pub fn details(&self) -> serde_json::Value {
        let Some(EnvoyHttpResponse::DeniedResponse(denied)) = &self.response.http_response else {
            panic!("the request was not denied: {self:?}")
        };
        details_of(&denied.body)
    }

    /// Decodes a response as Envoy does: gRPC status 0, or no status, allows the request.
    pub fn from_response(response: CheckResponse) -> Self {
        let code = response.status.as_ref().map_or(0, |status| status.code);
        let undecoded = response.clone();
        let (status, reason, options, removed) = match response.http_response {
            Some(EnvoyHttpResponse::DeniedResponse(denied)) if code != 0 => {
                let reason = details_of(&denied.body)["reason"].as_str().unwrap_or_default().to_owned();
                (denied.status.map_or(403, |status| status.code), reason, denied.headers, Vec::new())
            }
            Some(EnvoyHttpResponse::OkResponse(ok)) if code == 0 => {
                (200, String::new(), ok.headers, ok.headers_to_remove)
            }
            None if code == 0 => (200, String::new(), Vec::new(), Vec::new()),
            other => panic!("gRPC status {code} does not match the HTTP response {other:?}"),
        };
        let status = u16::try_from(status).expect("the status is an HTTP status");
        let headers = options.into_iter().filter_map(|option| option.header);
        let headers = headers.map(|header| (header.key, header.value)).collect();
        Self { status, reason, headers, removed, response: undecoded }
    }
}
