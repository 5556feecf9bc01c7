//! Creates and runs the sidecar from its settings.
//!
//! This module depends on all others, and only `commands` and `lib` depend on it. Invariant: it connects the others and decides
//! nothing about requests.

mod authorities;
mod check_port;
mod check_tls;
mod copies;
mod credentials;
mod explain_port;
mod health;
mod key_file;
mod key_tasks;
mod listener;
mod offline;
mod rules_file;
mod staleness;
mod sync_endpoints;

use crate::{
    check::{AuthorizationServer, Authorizer},
    config::{CacheSettings, DenialSettings, HeaderSettings, ListenAddress, Settings, TlsMode},
    decide::VerifiedTokens,
    metrics::Metrics,
    policy::PolicyCache,
    response::{HeaderNames, ResponseBuilder},
    rules::RuleSet,
    sync::Instance,
    view::Views,
};
use arc_swap::ArcSwap;
use copies::{Copies, CopyContext};
use countersign_process::{
    Clock, Readiness, Rng, Shutdown, admin,
    file_reload::{self, FileReloader},
    server::{self, PlainText, PortSettings, TlsOnly},
};
use health::HealthService;
use key_tasks::{KeyTaskFactory, KeyTasks};
use listener::CheckListener;
use staleness::StalenessMonitor;
use std::{
    convert::Infallible,
    error::Error,
    fmt::Display,
    net::SocketAddr,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};
use tokio::{net::TcpListener, task::JoinSet};
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

pub use offline::{OfflineAuthorizer, authorizer_from_copies, settings_problems};

/// Why the sidecar cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum AuthorizerError {
    /// A setting cannot be used.
    #[error("{key}: {error}")]
    Setting {
        /// The key of the setting.
        key: &'static str,
        /// Why the setting cannot be used.
        error: String,
    },
    /// A file, socket or port that a setting names cannot be used now. A later start may succeed.
    #[error("{key}: {error}")]
    Unavailable {
        /// The key of the setting.
        key: &'static str,
        /// The error of the operating system, with the path or address that it is about.
        error: String,
    },
    /// An I/O operation failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A metric cannot be registered.
    #[error("{0}")]
    Metrics(#[from] prometheus::Error),
}

impl AuthorizerError {
    fn setting(key: &'static str, error: impl Into<Box<dyn Error>>) -> Self {
        Self::Setting { key, error: error.into().to_string() }
    }

    fn not_listening(key: &'static str, address: impl Display, error: &std::io::Error) -> Self {
        Self::unavailable(key, format!("cannot listen on {address}: {error}"))
    }

    fn unavailable(key: &'static str, error: impl Into<Box<dyn Error>>) -> Self {
        Self::Unavailable { key, error: error.into().to_string() }
    }
}

/// A sidecar that has bound its ports and does not serve yet.
pub struct App {
    authorizer: Authorizer,
    key_tasks: KeyTasks,
    staleness_monitor: StalenessMonitor,
    reloaders: Vec<FileReloader>,
    readiness: Readiness,
    metrics: Arc<Metrics>,
    check_listener: CheckListener,
    check_tls: Option<TlsOnly>,
    admin_listener: TcpListener,
}

impl App {
    /// Creates and connects all modules, and binds the ports. Only tests pass another `copy_interval` than `copy::copy_interval`.
    pub async fn bind(
        settings: Settings,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        copy_interval: fn(Duration) -> Duration,
    ) -> Result<Self, AuthorizerError> {
        // The cryptographic provider of rustls can be installed once per process. Later attempts fail, which is harmless.
        let _already_installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let Settings { listen, tls, sync, copy, routes, rules, headers, denials, cache, log: _ } = settings;
        let metrics = Arc::new(Metrics::new()?);
        let views = Arc::new(Views::new(sync.keys.len(), routes.default_service));
        let readiness = Readiness::default();
        let (endpoints, ca_file) = sync_endpoints::create(&sync)?;
        let (endpoints, ca_reloader) = sync_endpoints::follow_ca_file(&sync, endpoints, ca_file, &metrics, &clock);
        let (rules, rules_reloader) = rules_file::load(&rules, &metrics, &clock)?;
        let (check_tls, tls_reloaders) = check_tls::create(&tls, &metrics, &clock)?.unzip();
        warn_about_clear_text(&listen.grpc, tls.mode);
        let instance = Instance::draw(&*rng);
        tracing::info!(%instance, "the list of sidecars shows this process by its instance; the last 8 digits are the number of the API key");
        let authorizations = credentials::authorizations(&sync)?;
        let context = CopyContext {
            views: Arc::clone(&views),
            metrics: Arc::clone(&metrics),
            clock: Arc::clone(&clock),
            instance,
            interval: copy_interval,
        };
        let factory = KeyTaskFactory {
            endpoints,
            copies: Copies::open(&copy, &sync, &authorizations, context),
            instance,
            ping_interval: Duration::from_secs(sync.ping_seconds.into()),
            staleness_limit: sync.staleness_limit(),
            views: Arc::clone(&views),
            metrics: Arc::clone(&metrics),
            readiness: readiness.clone(),
            clock: Arc::clone(&clock),
            rng,
        };
        let (key_tasks, changes) = KeyTasks::new(&factory, &authorizations);
        let default = routes.default_service;
        let keys_reloader = credentials::follow_keys_file(&sync, default, authorizations, factory, changes, &metrics);
        let reloaders = ca_reloader.into_iter().chain(keys_reloader).chain(rules_reloader);
        let reloaders = reloaders.chain(tls_reloaders.unwrap_or_default()).collect();
        let staleness_monitor = StalenessMonitor::new(Arc::clone(&views), readiness.clone(), Arc::clone(&clock));
        let authorizer = create_authorizer(&headers, &denials, &cache, views, rules, &metrics, clock);
        let check_listener = CheckListener::bind(&listen.grpc)
            .await
            .map_err(|error| AuthorizerError::not_listening("listen.grpc", &listen.grpc, &error))?;
        let admin = listen.admin.as_str();
        let admin_listener = TcpListener::bind(admin)
            .await
            .map_err(|error| AuthorizerError::not_listening("listen.admin", admin, &error))?;
        Ok(Self {
            authorizer,
            key_tasks,
            staleness_monitor,
            reloaders,
            readiness,
            metrics,
            check_listener,
            check_tls,
            admin_listener,
        })
    }

    /// The TCP address to which Envoy connects; `None` for a Unix socket.
    pub fn grpc_address(&self) -> Option<SocketAddr> {
        self.check_listener.address()
    }

    /// The address of the admin port.
    pub fn admin_address(&self) -> std::io::Result<SocketAddr> {
        self.admin_listener.local_addr()
    }

    /// Serves until shutdown is requested, and then still answers the checks in progress, at most for the drain timeout. At the
    /// end, writes the last copies. Each client without a copy tells the control plane that this sidecar no longer decides.
    pub async fn serve(self, shutdown: Shutdown) -> Result<(), AuthorizerError> {
        let Self {
            authorizer,
            key_tasks,
            staleness_monitor,
            reloaders,
            readiness,
            metrics,
            check_listener,
            check_tls,
            admin_listener,
        } = self;
        let mut tasks = JoinSet::new();
        spawn_until_shutdown(&mut tasks, &shutdown, staleness_monitor.run());
        for reloader in reloaders {
            spawn_until_shutdown(&mut tasks, &shutdown, reloader.run(file_reload::POLL_INTERVAL));
        }
        let authorizer = Arc::new(authorizer);
        let explain = explain_port::routes(Arc::clone(&authorizer));
        let checks = serve_checks(
            authorizer,
            check_listener,
            check_tls,
            check_port::settings(metrics.overloaded.clone(), metrics.ports.of_port("check")),
            readiness.clone(),
            shutdown.clone(),
        );
        // The last checks need current data, too. So the tasks of the API keys stop later than the ports.
        let stop_keys = Shutdown::default();
        let checks_and_stop = async {
            checks.await?;
            stop_keys.trigger();
            Ok::<(), AuthorizerError>(())
        };
        let admin = admin::serve(
            admin_listener,
            explain,
            readiness,
            metrics.registry.clone(),
            metrics.ports.of_port("admin"),
            shutdown.clone(),
        );
        let servers =
            async { tokio::try_join!(checks_and_stop, key_tasks.run(stop_keys.clone()), async { Ok(admin.await?) }) };
        tokio::select! {
            result = servers => {
                result?;
                join_all(&mut tasks).await
            }
            // A task has panicked. The process exits, so that it is restarted.
            Err(panic) = join_all(&mut tasks) => Err(panic),
        }
    }
}

async fn serve_checks(
    authorizer: Arc<Authorizer>,
    listener: CheckListener,
    tls: Option<TlsOnly>,
    port: PortSettings,
    readiness: Readiness,
    shutdown: Shutdown,
) -> Result<(), AuthorizerError> {
    let health = HealthServer::new(HealthService { readiness, shutdown: shutdown.clone() });
    let authorization = AuthorizationServer::new(authorizer, check_port::MAX_CHECK_BYTES);
    let routes = Routes::new(authorization).add_service(health).prepare().into_axum_router();
    match (listener, tls) {
        (CheckListener::Tcp(listener), None) => server::serve(listener, PlainText, routes, port, shutdown).await?,
        (CheckListener::Tcp(listener), Some(tls)) => server::serve(listener, tls, routes, port, shutdown).await?,
        (CheckListener::Unix(listener, _socket), None) => {
            server::serve(listener, PlainText, routes, port, shutdown).await?;
        }
        (CheckListener::Unix(listener, _socket), Some(tls)) => {
            server::serve(listener, tls, routes, port, shutdown).await?;
        }
    }
    Ok(())
}

fn warn_about_clear_text(address: &ListenAddress, mode: TlsMode) {
    if mode == TlsMode::Insecure && !address.is_local() {
        tracing::warn!(
            %address,
            "tls.mode = insecure: the tokens in checks cross the network in clear text, and anybody can answer checks instead of this \
             sidecar"
        );
    }
}

/// Waits for all tasks, and returns an error as soon as one of them panics.
async fn join_all(tasks: &mut JoinSet<()>) -> Result<(), AuthorizerError> {
    while let Some(result) = tasks.join_next().await {
        result.map_err(std::io::Error::other)?;
    }
    Ok(())
}

fn spawn_until_shutdown(
    tasks: &mut JoinSet<()>,
    shutdown: &Shutdown,
    work: impl Future<Output = Infallible> + Send + 'static,
) {
    let shutdown = shutdown.requested_owned();
    tasks.spawn(async move {
        tokio::select! {
            () = shutdown => {}
            never = work => match never {},
        }
    });
}

fn create_authorizer(
    headers: &HeaderSettings,
    denials: &DenialSettings,
    cache: &CacheSettings,
    views: Arc<Views>,
    rules: Arc<ArcSwap<RuleSet>>,
    metrics: &Arc<Metrics>,
    clock: Arc<dyn Clock>,
) -> Authorizer {
    let names = HeaderNames::new(headers.prefix.as_str());
    Authorizer {
        views,
        rules,
        policies: PolicyCache::default(),
        cache: VerifiedTokens::new(cache.tokens, metrics.cache_hits.clone(), metrics.cache_misses.clone()),
        responses: ResponseBuilder { names, explain_denials: denials.explain },
        metrics: Arc::clone(metrics),
        clock,
        last_extension_warning: AtomicU64::default(),
    }
}
