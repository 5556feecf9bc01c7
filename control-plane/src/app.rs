//! Assembles the control plane from its settings, runs its servers and jobs, and stops them gracefully.
//!
//! This module is the only one that depends on all others. [`wiring`] builds the components, [`servers`] serves the three
//! ports, [`jobs`] runs the background tasks; the other modules implement the commands that work on the database.

mod audit;
mod audit_archive;
mod database;
mod database_commands;
mod database_outage;
mod error;
mod humans;
mod jobs;
mod port_limits;
mod ports;
mod redis;
mod reload;
mod secrets;
mod servers;
mod wiring;

pub use audit::{AuditError, export_audit, verify_audit};
pub use audit_archive::archive_audit;
pub use database_commands::{CommandReport, DatabaseCommandError, backup, migrate, migrate_to_postgres, restore};
pub use error::AppError;
pub use redis::check_files;
pub use secrets::{describe_master_keys, rotate_secrets};

use crate::{
    address_guard::{HostResolver, SystemResolver},
    certificates::ServedCertificate,
    config::{Config, TlsMode},
    ephemeral::{MAX_UNAUTHENTICATED_WINDOWS, RedisClient},
    files::{self, FileLock},
    http::{AppState, TrustedProxies},
    humans::OperatorKey,
    operations::{Context, ContextParts, flush_suppressed_bursts},
    store::Store,
    sync::{self, SidecarSettings},
    webhooks::{DispatcherHealth, HttpSender},
};
use countersign_process::{Clock, Readiness, ReadinessGuard, Rng, Shutdown, SystemClock, SystemRng, file_reload};
use port_limits::PortLimits;
use ports::Ports;
use reload::{FileReloads, Reloaders};
use secrecy::ExposeSecret;
use servers::Tasks;
use std::{io, net::SocketAddr, sync::Arc, time::Duration};

/// The clock, the random numbers and the name resolution that a control plane uses. Tests replace the clock, the random numbers
/// and the name resolution.
pub struct Dependencies {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The random number generator.
    pub rng: Arc<dyn Rng>,
    /// Resolves the host names of webhooks.
    pub resolver: Arc<dyn HostResolver>,
    /// The interval at which the database is polled for changes that other control planes committed.
    pub change_poll_interval: Duration,
    /// The interval at which files are read that are loaded again when they change.
    pub file_poll_interval: Duration,
    /// The maximum number of rate-limit windows of unauthenticated callers in memory.
    pub max_rate_limit_windows: usize,
}

impl Default for Dependencies {
    /// The clock, random number generator and resolver of the operating system.
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            rng: Arc::new(SystemRng),
            resolver: Arc::new(SystemResolver),
            change_poll_interval: sync::POLL_INTERVAL,
            file_poll_interval: file_reload::POLL_INTERVAL,
            max_rate_limit_windows: MAX_UNAUTHENTICATED_WINDOWS,
        }
    }
}

/// A control plane with bound ports that does not accept requests yet.
pub struct App {
    config: Config,
    state: AppState,
    context_parts: ContextParts,
    redis: Option<Arc<RedisClient>>,
    http_sender: Arc<HttpSender>,
    dispatcher_health: Arc<DispatcherHealth>,
    change_poll_interval: Duration,
    served_certificate: Arc<ServedCertificate>,
    file_reloads: FileReloads,
    ports: Ports,
    database_lock: Option<FileLock>,
    readiness: Readiness,
    startup_guard: ReadinessGuard,
}

impl App {
    /// Binds the ports, opens the database and the keys, and builds the application.
    pub async fn bind(config: Config, dependencies: Dependencies) -> Result<Self, AppError> {
        install_crypto_provider();
        create_data_dir(&config)?;
        let ports = Ports::bind(&config).await?;
        let public_url = match config.public_url.as_str() {
            "" => format!("https://localhost:{}", ports.api.local_addr()?.port()),
            configured => configured.trim_end_matches('/').to_owned(),
        };
        let readiness = Readiness::default();
        let startup_guard = readiness.register("start");
        let metrics = wiring::metrics()?;
        let issuers = humans::build_issuers(&config, &dependencies.clock, &metrics).await?;
        let database_lock = database::lock_shared(&config)?;
        let dispatcher_health = Arc::new(DispatcherHealth::new(dependencies.clock.clone()));
        let health = dispatcher_health.clone();
        let Dependencies { change_poll_interval, file_poll_interval, max_rate_limit_windows, .. } = dependencies;
        let queue_health = Arc::new(move || health.current());
        let (context, context_parts) =
            wiring::context(&config, &public_url, dependencies, queue_health, &metrics).await?;
        let store = context_parts.store.clone();
        metrics.expose_connection_pools(move || store.pool_statuses())?;
        wiring::expose_housekeeping(&metrics, context.clone())?;
        let mut reloaders = Reloaders::new(file_poll_interval, &context_parts.clock, &metrics);
        let (http_sender, authorities) = wiring::http_sender(&config.webhooks, &context_parts.address_guard)?;
        let http_sender = reloaders.send_events(http_sender, authorities);
        let operator_key = humans::load_operator_key(&config, context_parts.rng.as_ref())?.map(Arc::new);
        let (certificate, authority) = wiring::certificate(&config, context.now())?;
        let served_certificate = reloaders.serve_certificate(&config, &certificate)?;
        if let (true, Some(operator_key)) = (config.dev, &operator_key) {
            wiring::set_up_development(&config, &context, operator_key, &ports, &public_url, authority.as_deref())
                .await?;
        }
        let started_at = context.since_boot();
        let humans = reloaders.verify_humans(operator_key, issuers);
        let terminate_tls = config.tls.mode == TlsMode::Terminated;
        let proxies = Arc::new(TrustedProxies { trusted: config.proxies.networks(), terminate_tls });
        let redis = redis::connect(&config, &context_parts.store, &metrics).await?.map(|(client, files)| {
            reloaders.connect_redis(&client, &config.redis, files);
            client
        });
        let file_reloads = reloaders.finish();
        let limiter = redis::rate_limiter(redis.clone(), max_rate_limit_windows, context_parts.clock.clone());
        let limits = Arc::new(wiring::limits(config.limits, (limiter, &metrics), &context_parts.clock)?);
        let state = AppState { context, humans, metrics, limits, proxies, started_at };
        Ok(Self {
            config,
            state,
            context_parts,
            redis,
            http_sender,
            dispatcher_health,
            change_poll_interval,
            served_certificate,
            file_reloads,
            ports,
            database_lock,
            readiness,
            startup_guard,
        })
    }

    /// The address of the API port.
    pub fn api_address(&self) -> io::Result<SocketAddr> {
        self.ports.api.local_addr()
    }

    /// The address of the sync port.
    pub fn sync_address(&self) -> io::Result<SocketAddr> {
        self.ports.sync.local_addr()
    }

    /// The address of the admin port.
    pub fn admin_address(&self) -> io::Result<SocketAddr> {
        self.ports.admin.local_addr()
    }

    /// Serves until shutdown is requested and the requests in progress are completed.
    pub async fn serve(self, shutdown: Shutdown) -> Result<(), AppError> {
        let (api, sync, admin) = (self.api_address()?, self.sync_address()?, self.admin_address()?);
        let Self {
            config,
            state,
            context_parts,
            redis,
            http_sender,
            dispatcher_health,
            change_poll_interval,
            served_certificate,
            file_reloads,
            ports,
            database_lock,
            readiness,
            startup_guard,
        } = self;
        let context = state.context.clone();
        let mut tasks = Tasks::new();
        servers::serve_admin(&mut tasks, ports.admin, readiness.clone(), state.metrics.clone(), &shutdown);
        let settings = SidecarSettings { issuer: context.issuer().to_owned(), max_staleness: config.max_staleness() };
        let agent_hash_secret = wiring::agent_hash_secret(&context_parts).await?;
        let sync_settings = (settings, agent_hash_secret, change_poll_interval);
        let limits = (wiring::sync_limits(&config.sync), state.limits.lookups().clone(), context_parts.clock.clone());
        let (store, metrics) = (&context_parts.store, &state.metrics);
        let sync_service = servers::sync_service(&mut tasks, store, sync_settings, limits, metrics, &shutdown).await?;
        let limits = PortLimits::new(&config);
        let sync_port = (limits.sync, metrics.ports.of_port("sync"));
        servers::serve_sync(&mut tasks, ports.sync, &served_certificate, sync_service, sync_port, &shutdown);
        let (tls, api_port) =
            ((&served_certificate, context_parts.rng.clone()), (limits.api, metrics.ports.of_port("api")));
        servers::serve_api(&mut tasks, ports.api, tls, state.clone(), api_port, &shutdown);
        jobs::spawn_periodic(&mut tasks, &state, &shutdown);
        jobs::spawn_file_reloads(&mut tasks, file_reloads, &shutdown);
        jobs::spawn_database_check(&mut tasks, context_parts.store.clone(), &shutdown);
        jobs::spawn_master_key_check(&mut tasks, &context_parts, readiness, &shutdown);
        jobs::spawn_redis_tasks(&mut tasks, redis.as_ref(), &context_parts.store, &shutdown);
        let health = dispatcher_health.clone();
        let dispatcher =
            wiring::webhook_dispatcher(&config.webhooks, &context_parts, &state.metrics, http_sender, health);
        jobs::spawn_webhook_delivery(
            &mut tasks,
            &context_parts,
            &state.metrics,
            (dispatcher, dispatcher_health),
            &shutdown,
        );
        tracing::info!(url = context.issuer(), %api, %sync, %admin, "ready");
        drop(startup_guard);
        let result = servers::wait_until_stopped(tasks, &shutdown).await;
        if shutdown.run_until_deadline(write_and_close(&context, &context_parts.store)).await.is_none() {
            tracing::warn!("the database does not respond in time: the process ends without closing it");
        }
        drop(database_lock);
        result
    }
}

/// Writes what is only in memory, and closes the database.
async fn write_and_close(context: &Context, store: &Store) {
    if let Err(error) = flush_suppressed_bursts(context).await {
        tracing::warn!(%error, "webhook events about suppressed failed logins could not be written");
    }
    store.close().await;
}

/// Runs the control plane until shutdown is requested. A start in progress is given up: each of its changes is a transaction or
/// one atomic change of a file.
pub async fn run(config: Config, shutdown: Shutdown) -> Result<(), AppError> {
    match shutdown.run_until_requested(Box::pin(App::bind(config, Dependencies::default()))).await {
        Some(app) => app?.serve(shutdown).await,
        None => Ok(()),
    }
}

/// Issues a token for a human user with the operator key of the server that uses the settings in `config`.
pub fn mint_human_token(config: &Config, subject: &str, admin: bool, lifetime: Duration) -> Result<String, AppError> {
    humans::check_operator_key_enabled(config)?;
    let operator_key = OperatorKey::read(&humans::operator_key_file(config))?;
    Ok(operator_key.mint(subject, admin, lifetime, SystemClock.now())?.expose_secret().to_owned())
}

fn create_data_dir(config: &Config) -> Result<(), AppError> {
    let path = &config.data_dir;
    files::create_private_directory(path).map_err(|error| AppError::setting_file("data_dir", path, error))
}

fn install_crypto_provider() {
    // `install_default` fails if another server in this process has already installed the cryptography provider; the error is
    // ignored because that provider is used.
    let _installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
}
