//! The sidecars of a history: one without a copy that knows one address, and one with a copy on disk that knows two addresses.
//! They run in the process of the test, which controls their clock.

use crate::{lagging_clock::LaggingClock, operation::SERVICES};
use countersign_ext_authz as authz;
use countersign_process::Rng;
use countersign_proto::envoy::service::auth::v3::{CheckRequest, authorization_client::AuthorizationClient};
use countersign_tests::{
    HttpClient, HttpResponse, Server, TcpProxy, eventually,
    sidecar::{self, CheckResult, check_request},
};
use std::{
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};
use tokio::runtime::Builder;
use tonic::transport::{Channel, Endpoint};

/// The sidecar without a copy, which knows one address.
pub const PLAIN: usize = 0;

/// The sidecar with a copy, which knows two addresses.
pub const COPYING: usize = 1;

/// All sidecars.
pub const SIDECARS: [usize; 2] = [PLAIN, COPYING];

/// The interval at which copies are written and sidecars return to their first address: short enough for a history.
const COPY_INTERVAL: Duration = Duration::from_secs(1);

/// The length of the random bytes that name a process of a sidecar.
const INSTANCE_LEN: usize = 16;

/// Bytes that are not random: sidecars reconnect without a wait, so that a history is short. Only the names of processes differ.
struct NoChance(AtomicU8);

impl Rng for NoChance {
    fn fill(&self, buffer: &mut [u8]) {
        let is_instance = buffer.len() == INSTANCE_LEN;
        buffer.fill(if is_instance { self.0.load(Ordering::SeqCst) } else { 0 });
    }
}

/// A process of a sidecar.
struct Process {
    /// Stops the process when it is dropped.
    _server: Server,
    admin: HttpClient,
    client: AuthorizationClient<Channel>,
}

/// Which connections are possible between the sidecars and the control plane.
#[derive(Debug, Clone, Copy)]
pub struct Network {
    /// Whether the control plane can be reached at all.
    pub connected: bool,
    /// Whether no bytes pass between [`PLAIN`] and the control plane, while its connections stay open.
    pub frozen: bool,
    /// Which of the addresses of [`COPYING`] lead nowhere.
    pub cut: [bool; 2],
}

impl Network {
    /// Everything is connected.
    pub const fn new() -> Self {
        Self { connected: true, frozen: false, cut: [false; 2] }
    }

    pub const fn reaches(self, sidecar: usize) -> bool {
        let Self { connected, frozen, cut } = self;
        connected && if sidecar == PLAIN { !frozen } else { !cut[0] || !cut[1] }
    }
}

/// The sidecars, and the proxies between them and the control plane.
pub struct Sidecars {
    folder: PathBuf,
    keys: String,
    clock: Arc<LaggingClock>,
    rng: Arc<NoChance>,
    /// The proxy of [`PLAIN`], and those of both addresses of [`COPYING`].
    proxies: [TcpProxy; 3],
    processes: [Option<Process>; 2],
}

impl Sidecars {
    /// Starts no sidecar yet. `folder` is the folder of the control plane, and `keys` has the API keys of the sidecars.
    pub async fn new(folder: &Path, keys: String, clock: Arc<LaggingClock>) -> Self {
        let proxies = [TcpProxy::start().await, TcpProxy::start().await, TcpProxy::start().await];
        let rng = Arc::new(NoChance(AtomicU8::new(0)));
        Self { folder: folder.to_owned(), keys, clock, rng, proxies, processes: [None, None] }
    }

    /// Sets which connections are possible to the control plane at `target`.
    pub fn set_network(&self, network: Network, target: SocketAddr) {
        let Network { connected, frozen, cut } = network;
        for (proxy, open) in self.proxies.iter().zip([true, !cut[0], !cut[1]]) {
            if connected && open {
                proxy.set_target(target);
            } else {
                proxy.disconnect();
            }
        }
        self.proxies[0].set_frozen(frozen);
    }

    /// Closes all connections.
    pub fn disconnect(&self) {
        self.proxies.iter().for_each(TcpProxy::disconnect);
    }

    /// Lets the second address of [`COPYING`] lead to another control plane.
    pub fn divert_second_address(&self, target: SocketAddr) {
        self.proxies[2].disconnect();
        self.proxies[2].set_target(target);
    }

    /// The rules file of all sidecars.
    pub fn rules_file(&self) -> PathBuf {
        self.folder.join("rules.toml")
    }

    /// The folder with the copies of [`COPYING`].
    fn copies(&self) -> PathBuf {
        self.folder.join("copies")
    }

    /// Stops a sidecar at once and starts a new one.
    pub async fn restart(&mut self, sidecar: usize) {
        drop(self.processes[sidecar].take());
        let url = |proxy: &TcpProxy| format!("https://{}", proxy.address);
        let [plain, first, second] = &self.proxies;
        let mut settings = vec![
            ("listen.grpc", "127.0.0.1:0".to_owned()),
            ("listen.admin", "127.0.0.1:0".to_owned()),
            ("sync.ca", self.folder.join("ca.pem").display().to_string()),
            ("sync.ping_seconds", "1".to_owned()),
            ("rules.file", self.rules_file().display().to_string()),
        ];
        if sidecar == PLAIN {
            settings.push(("sync.urls", url(plain)));
        } else {
            self.wait_until_copies_are_free().await;
            settings.push(("sync.urls", format!("{},{}", url(first), url(second))));
            settings.push(("copy.directory", self.copies().display().to_string()));
        }
        let flags = settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let environment = vec![("COUNTERSIGN_SYNC__KEYS".to_owned(), self.keys.clone())];
        let settings = authz::config::read(None, environment, flags).unwrap();
        self.rng.0.fetch_add(1, Ordering::SeqCst);
        let (clock, rng) = (Arc::clone(&self.clock), Arc::clone(&self.rng));
        let start = async |shutdown| {
            let app = authz::App::bind(settings, clock, rng, |_| COPY_INTERVAL).await.unwrap();
            let addresses = (app.grpc_address().unwrap(), app.admin_address().unwrap());
            (addresses, async move { app.serve(shutdown).await.unwrap() })
        };
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (server, (grpc, admin)) = Server::start(runtime, start).await;
        let channel = Endpoint::from_shared(format!("http://{grpc}")).unwrap().connect_lazy();
        let admin = HttpClient::plain(format!("http://{admin}"));
        self.processes[sidecar] = Some(Process { _server: server, admin, client: AuthorizationClient::new(channel) });
    }

    /// The tasks of a stopped sidecar end soon after its process is dropped. When the copies are no longer locked, they have ended.
    async fn wait_until_copies_are_free(&self) {
        let path = self.copies().join("lock");
        let is_free = async || match File::open(&path) {
            Ok(file) => file.try_lock().ok(),
            Err(_) => Some(()),
        };
        eventually("the copies are not locked", is_free, String::new).await;
    }

    /// Waits until there is a copy of the view of each service.
    pub async fn wait_for_copies(&self) {
        let are_written = async || {
            let files = fs::read_dir(self.copies()).ok()?.map(|file| file.unwrap().path());
            (files.filter(|path| path.extension().is_some_and(|extension| extension == "copy")).count() == SERVICES)
                .then_some(())
        };
        eventually("the copies are on disk", are_written, String::new).await;
    }

    pub async fn check(&self, sidecar: usize, request: CheckRequest) -> CheckResult {
        sidecar::check(&mut self.process(sidecar).client.clone(), request).await
    }

    /// The revision of the view of a service; 0 if there is none.
    #[expect(clippy::cast_possible_truncation, reason = "revisions are whole numbers")]
    pub async fn view_revision(&self, sidecar: usize, service: &str) -> i64 {
        self.metric(sidecar, &format!("countersign_authz_view_revision{{service=\"{service}\"}}")).await as i64
    }

    /// The sum of all metrics whose lines begin with a text; 0 if there are none.
    pub async fn metric(&self, sidecar: usize, line: &str) -> f64 {
        let response = HttpResponse::try_send(self.process(sidecar).admin.request("GET", "/metrics")).await;
        let Some(text) = response.as_ref().and_then(|response| response.body.as_str()) else { return 0.0 };
        let values = text.lines().filter(|metric| metric.starts_with(line));
        values.filter_map(|metric| metric.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Whether a sidecar has refused at least this number of copies.
    #[expect(clippy::cast_precision_loss, reason = "there are few copies")]
    pub async fn copies_refused(&self, sidecar: usize, count: usize) -> bool {
        self.metric(sidecar, "countersign_authz_view_copy_rejected_total").await >= count as f64
    }

    fn process(&self, sidecar: usize) -> &Process {
        self.processes[sidecar].as_ref().unwrap()
    }
}

/// A request with this token, on a route with these context extensions.
pub fn request(token: Option<&str>, extensions: &[(&str, &str)]) -> CheckRequest {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<_> = bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect();
    check_request(&headers, extensions)
}
