//! Servers in the test process.

mod captured_log;

pub use captured_log::CapturedLog;

use crate::{Follower, HttpClient, ManualClock, control_plane::unreachable_limits, engines, follower};
use countersign_control_plane as plane;
use countersign_process::Shutdown;
use std::{net::SocketAddr, path::Path, sync::Arc};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
};
use tonic::transport::Channel;

/// Number of threads of a server, so that its tasks run at the same time, as in a process of their own.
const SERVER_THREADS: usize = 2;

/// A server in its own runtime. Dropping the [`Server`] stops the server at once, as a crash would.
pub struct Server {
    runtime: Option<Runtime>,
    shutdown: Shutdown,
    task: JoinHandle<()>,
}

impl Server {
    /// A placeholder that runs no server.
    pub fn none() -> Self {
        Self { runtime: None, shutdown: Shutdown::default(), task: tokio::spawn(async {}) }
    }

    /// Starts a server in this runtime. `start` returns what the caller gets, and the future that serves.
    pub async fn start<T, F, S>(runtime: Runtime, start: impl FnOnce(Shutdown) -> F) -> (Self, T)
    where
        T: Send + 'static,
        F: Future<Output = (T, S)> + Send + 'static,
        S: Future<Output = ()> + Send + 'static,
    {
        let shutdown = Shutdown::default();
        let (started, serving) = runtime.spawn(start(shutdown.clone())).await.expect("the server starts");
        let task = runtime.spawn(serving);
        (Self { runtime: Some(runtime), shutdown, task }, started)
    }

    /// Starts a control plane with these settings, as with `--dev`.
    pub async fn start_control_plane(
        flags: Vec<(String, String)>,
        dependencies: plane::Dependencies,
    ) -> (Self, plane::Addresses, CapturedLog) {
        let dev = true;
        let config = plane::Config::read(None, Vec::new(), flags, dev).expect("the settings can be parsed");
        config.check().expect("the settings are valid");
        let log = CapturedLog::default();
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(SERVER_THREADS).enable_all().on_thread_start(log.capture_of_threads());
        let start = async |shutdown| {
            let app = plane::App::start(config, dependencies, shutdown).await.expect("the server starts");
            (app.addresses(), async move { app.run().await.expect("the server runs") })
        };
        let (server, addresses) = Self::start(builder.build().expect("the runtime can be built"), start).await;
        (server, addresses, log)
    }

    /// Triggers a graceful shutdown and waits until it completes.
    pub async fn stop(mut self) {
        self.shutdown.trigger();
        (&mut self.task).await.expect("the server stops");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A `--dev` control plane in this process.
pub struct InProcessServer {
    /// The server.
    pub server: Server,
    /// HTTP client of the API.
    pub api: HttpClient,
    /// Address of the sync port.
    pub sync: SocketAddr,
}

impl InProcessServer {
    /// Starts with these settings, the data directory `folder` and this clock.
    pub async fn start(folder: &Path, settings: &[(&str, String)], clock: &Arc<ManualClock>) -> Self {
        let clock = Arc::clone(clock);
        Self::start_with(folder, settings, plane::Dependencies { clock, ..Default::default() }).await
    }

    /// Starts with these injected dependencies.
    pub async fn start_with(folder: &Path, settings: &[(&str, String)], dependencies: plane::Dependencies) -> Self {
        let mut flags = vec![("data_dir".to_owned(), folder.display().to_string())];
        flags.extend(["api", "sync", "admin"].map(|port| (format!("listen.{port}"), "127.0.0.1:0".to_owned())));
        flags.extend(unreachable_limits());
        flags.extend(engines::redis_url().map(|url| ("redis.url".to_owned(), url)));
        flags.extend(engines::database_for_folder(folder).await.map(|url| ("database.url".to_owned(), url)));
        flags.extend(settings.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        let (server, addresses, _) = Server::start_control_plane(flags, dependencies).await;
        let plane::Addresses { api, sync, .. } = addresses;
        let authority = std::fs::read(folder.join("ca.pem")).expect("the CA file exists");
        Self { server, api: HttpClient::trusting(format!("https://localhost:{}", api.port()), &authority), sync }
    }

    /// Opens a stream of the first service, and receives its snapshot. `folder` is the data directory.
    pub async fn follow(&self, folder: &Path) -> Follower {
        let stream = Follower::open(self.sync_channel(folder).await, &Self::env(folder, "SERVICE_KEY"), 0).await;
        let mut follower = stream.expect("the server accepts the key");
        assert!(follower.snapshot().await.last);
        follower
    }

    /// Opens a channel to the sync port. `folder` is the data directory.
    pub async fn sync_channel(&self, folder: &Path) -> Channel {
        let authority = std::fs::read(folder.join("ca.pem")).expect("the CA file exists");
        follower::connect(&format!("https://localhost:{}", self.sync.port()), &authority).await
    }

    /// The URL of the database. `folder` is the data directory.
    pub async fn database_url(folder: &Path) -> String {
        let sqlite = || format!("sqlite://{}", folder.join("countersign.db").display());
        engines::database_for_folder(folder).await.unwrap_or_else(sqlite)
    }

    /// A value of `dev.env`, by its name without the prefix `COUNTERSIGN_`.
    pub fn env(folder: &Path, name: &str) -> String {
        let env = std::fs::read_to_string(folder.join("dev.env")).expect("dev.env exists");
        let value =
            env.lines().find_map(|line| line.strip_prefix("COUNTERSIGN_")?.strip_prefix(name)?.strip_prefix('='));
        value.expect("dev.env contains the variable").to_owned()
    }
}
