//! Assembles the control plane from its settings, runs its servers and jobs, and stops them gracefully.
//!
//! This module is the only one that depends on all others. [`wiring`] builds the components, [`servers`] serves the three
//! ports, [`jobs`] runs the background tasks. The other modules support these three, or implement commands.

mod audit;
mod audit_archive;
mod database;
mod database_commands;
mod database_outage;
mod development;
mod error;
mod file_check;
mod humans;
mod jobs;
mod ports;
mod redis;
mod reload;
mod secrets;
mod servers;
mod wiring;

pub use audit::{export_audit, verify_audit};
pub use audit_archive::archive_audit;
pub use database_commands::{CommandReport, backup, backup_to_directory, migrate, migrate_to_postgres, restore};
pub use error::AppError;
pub use file_check::check_files;
pub use ports::Addresses;
pub use secrets::{describe_master_keys, rotate_secrets};

use crate::{
    address_guard::{HostResolver, SystemResolver},
    config::{Config, TlsMode},
    ephemeral::RedisClient,
    files,
    http::{ApiState, AppState, Limits, TrustedProxies},
    humans::OperatorKey,
    metrics::Metrics,
    operations::{Context, ContextParts, ensure_audit_started, flush_suppressed_bursts, rotate_signing_keys_if_due},
    store::{Store, changed_data::ReadLimit},
    sync::{self, CHANGES_PER_READ, FeedReader, SidecarSettings, SyncParts},
    webhooks::{DispatcherHealth, HttpSender},
};
use countersign_process::{
    Clock, Readiness, Rng, Shutdown, SystemClock, SystemRng,
    certificates::ServedCertificate,
    file_reload::{self, FileReloader},
};
use development::Development;
use ports::{PortLimits, Ports};
use reload::Reloaders;
use secrecy::ExposeSecret;
use servers::Tasks;
use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

/// What tests replace in a control plane: the clock, random numbers, name resolution, and how often its tasks run.
pub struct Dependencies {
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Generates keys, ids and jitter.
    pub rng: Arc<dyn Rng>,
    /// Resolves the host names of webhooks.
    pub resolver: Arc<dyn HostResolver>,
    /// The interval at which the database is polled for changes that other control planes committed.
    pub change_poll_interval: Duration,
    /// How often a sync stream checks that its API key is still valid and that its sidecar still answers.
    pub key_check_interval: Duration,
    /// How many changes one read of the database for a sidecar returns at most, unless one revision has more.
    pub changes_per_read: u32,
    /// How often we read certificate and key files again, to see whether they have changed.
    pub file_poll_interval: Duration,
}

impl Default for Dependencies {
    /// The clock, random number generator and resolver of the operating system.
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            rng: Arc::new(SystemRng),
            resolver: Arc::new(SystemResolver),
            change_poll_interval: sync::POLL_INTERVAL,
            key_check_interval: sync::KEY_CHECK_INTERVAL,
            changes_per_read: CHANGES_PER_READ,
            file_poll_interval: file_reload::POLL_INTERVAL,
        }
    }
}

/// A running control plane.
pub struct App {
    addresses: Addresses,
    tasks: Tasks,
    context: Arc<Context>,
    store: Store,
    database_lock: Option<database::ServerLock>,
}

impl App {
    /// Opens the database and the keys, and begins to serve. At first, only the admin port is served; the others refuse
    /// connections.
    pub async fn start(config: Config, dependencies: Dependencies, shutdown: Shutdown) -> Result<Self, AppError> {
        install_crypto_provider();
        create_data_dir(&config)?;
        let Ports { api, sync, admin } = Ports::bind(&config)?;
        let addresses = Addresses { api: api.address(), sync: sync.address(), admin: admin.address() };
        let (readiness, metrics) = (Readiness::default(), wiring::metrics()?);
        let startup_guard = readiness.register("start"); // not ready until this is dropped
        let mut tasks = Tasks::new(shutdown);
        servers::serve_admin(&mut tasks, admin.listen()?, readiness.clone(), metrics.clone());
        let components = Components::build(&config, &dependencies, metrics, addresses.api).await?;
        let (state, context_parts) = (components.state, &components.context_parts);
        let (context, store, metrics) = (state.context.clone(), context_parts.store.clone(), &state.metrics);
        let settings = SidecarSettings { issuer: context.issuer().to_owned(), max_staleness: config.max_staleness() };
        let poll_interval = dependencies.change_poll_interval;
        let reader = FeedReader::open(store.clone(), poll_interval, context_parts.sidecars.clone()).await?;
        let sync_parts = SyncParts {
            store: store.clone(),
            sidecars: context_parts.sidecars.clone(),
            key_lookups: context_parts.key_lookups.clone(),
            failures: state.limits.failures().clone(),
            clock: context_parts.clock.clone(),
            feed: reader.feed(),
            settings,
            agent_hash_secret: context_parts.agent_hash_secret.clone(),
            connections: components.port_limits.sync.caps.total,
            read_limit: ReadLimit::entries(dependencies.changes_per_read),
            key_check_interval: dependencies.key_check_interval,
            metrics: metrics.clone(),
            shutdown: tasks.shutdown.clone(),
        };
        let sync_service = servers::sync_service(&mut tasks, reader, sync_parts);
        let limits = components.port_limits;
        let (certificate, rng) = (&components.served_certificate, context_parts.rng.clone());
        servers::serve_sync(&mut tasks, sync.listen()?, certificate, sync_service, limits.sync);
        servers::serve_api(&mut tasks, api.listen()?, certificate, rng, state.clone(), limits.api);
        jobs::spawn_periodic(&mut tasks, &state);
        jobs::spawn_flush_of_bursts(&mut tasks, &state);
        jobs::spawn_file_reloads(&mut tasks, components.file_reloaders, dependencies.file_poll_interval);
        jobs::spawn_outage_log(&mut tasks, store.clone());
        jobs::spawn_database_check(&mut tasks, store.clone());
        jobs::spawn_master_key_check(&mut tasks, context_parts, readiness);
        jobs::spawn_redis_tasks(&mut tasks, components.redis.as_ref(), &store);
        let (sender, health) = (components.http_sender, components.dispatcher_health);
        let dispatcher = wiring::webhook_dispatcher(&config.webhooks, context_parts, metrics, sender, health.clone());
        jobs::spawn_webhook_delivery(&mut tasks, context_parts, metrics, dispatcher, health);
        if let Some(development) = &components.development {
            development::set_up(&config, &context, development, &addresses).await?;
        }
        let Addresses { api, sync, admin } = addresses;
        tracing::info!(url = context.issuer(), %api, %sync, %admin, "ready");
        drop(startup_guard);
        Ok(Self { addresses, tasks, context, store, database_lock: components.database_lock })
    }

    /// The addresses of the ports.
    pub const fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Serves until shutdown is requested and the requests in progress are completed.
    pub async fn run(self) -> Result<(), AppError> {
        let Self { addresses: _, tasks, context, store, database_lock } = self;
        let shutdown = tasks.shutdown.clone();
        let result = tasks.wait_until_stopped().await;
        if shutdown.run_until_deadline(write_and_close(&context, &store)).await.is_none() {
            tracing::warn!("the database does not respond in time: the process ends without closing it");
        }
        drop(database_lock);
        result
    }
}

/// What the servers and background tasks need, built from the settings and the database.
struct Components {
    state: AppState,
    context_parts: ContextParts,
    redis: Option<Arc<RedisClient>>,
    http_sender: Arc<HttpSender>,
    dispatcher_health: Arc<DispatcherHealth>,
    port_limits: PortLimits,
    served_certificate: Arc<ServedCertificate>,
    file_reloaders: Vec<FileReloader>,
    database_lock: Option<database::ServerLock>,
    development: Option<Development>,
}

impl Components {
    async fn build(
        config: &Config,
        dependencies: &Dependencies,
        metrics: Metrics,
        api: SocketAddr,
    ) -> Result<Self, AppError> {
        let public_url = match config.public_url.as_str() {
            "" => format!("https://localhost:{}", api.port()),
            configured => configured.trim_end_matches('/').to_owned(),
        };
        let issuers = humans::build_issuers(config, &dependencies.clock, &metrics).await?;
        let database_lock = database::lock_to_serve(config)?;
        let dispatcher_health = Arc::new(DispatcherHealth::new(dependencies.clock.clone()));
        let health = dispatcher_health.clone();
        let port_limits = PortLimits::new(config, &metrics.ports);
        let queue_health = Arc::new(move || health.current());
        let Dependencies { clock, rng, .. } = dependencies;
        let (store, master_keys) = database::open_to_serve(config, clock, rng.as_ref(), &metrics).await?;
        database::ensure_deployment(&store, &master_keys, config.dev.then(|| clock.now())).await?;
        let pools = store.clone();
        metrics.expose_connection_pools(move || pools.pool_statuses())?;
        let agent_hash_secret = wiring::load_agent_hash_secret(&store, rng.as_ref()).await?;
        let (context, context_parts) =
            wiring::context(config, &public_url, dependencies, store, master_keys, agent_hash_secret, queue_health);
        ensure_audit_started(&context_parts.store).await?;
        // In a new deployment, this also creates the first signing keys.
        rotate_signing_keys_if_due(&context).await?;
        wiring::expose_housekeeping(&metrics, context.clone())?;
        let mut reloaders = Reloaders::new(&context_parts.clock, &metrics);
        let (http_sender, authorities) = wiring::http_sender(&config.webhooks, &context_parts.address_guard)?;
        let http_sender = reloaders.event_sender(http_sender, authorities);
        let operator_key = humans::load_operator_key(config, context_parts.rng.as_ref())?.map(Arc::new);
        let (certificate, authority) = wiring::certificate(config, context.now())?;
        let served_certificate = reloaders.served_certificate(config, &certificate)?;
        let development =
            operator_key.clone().filter(|_| config.dev).map(|operator_key| Development { operator_key, authority });
        let started_at = context.since_boot();
        let humans = reloaders.human_verifier(operator_key, issuers);
        let terminate_tls = config.tls.mode == TlsMode::Terminated;
        let proxies = Arc::new(TrustedProxies { trusted: config.proxies.networks(), terminate_tls });
        let redis = redis::connect(config, &context_parts.store, &metrics).await?.map(|(client, files)| {
            reloaders.add_redis_certificates(&client, &config.redis, files);
            client
        });
        let file_reloaders = reloaders.created;
        let limiter = redis::rate_limiter(redis.clone(), context_parts.clock.clone());
        let limits = Arc::new(Limits::new(wiring::limits_per_minute(config.limits), limiter));
        let state = AppState::new(ApiState { context, humans, metrics, limits, proxies, started_at });
        Ok(Self {
            state,
            context_parts,
            redis,
            http_sender,
            dispatcher_health,
            port_limits,
            served_certificate,
            file_reloaders,
            database_lock,
            development,
        })
    }
}

/// Stores the failed logins that were only counted in memory, and closes the database.
async fn write_and_close(context: &Context, store: &Store) {
    if let Err(error) = flush_suppressed_bursts(context).await {
        tracing::warn!(%error, "webhook events about suppressed failed logins could not be written");
    }
    store.close().await;
}

/// Runs the control plane until shutdown is requested. A shutdown may interrupt the start at any point, because each change that
/// the start makes is a transaction or an atomic change of a file.
pub async fn run(config: Config, shutdown: Shutdown) -> Result<(), AppError> {
    let start = Box::pin(App::start(config, Dependencies::default(), shutdown.clone()));
    match shutdown.run_until_requested(start).await {
        Some(app) => app?.run().await,
        None => Ok(()),
    }
}

/// Issues a token for a human user with the operator key of the server that uses the settings in `config`.
pub fn mint_human_token(config: &Config, subject: &str, admin: bool, lifetime: Duration) -> Result<String, AppError> {
    humans::check_operator_key_enabled(config)?;
    let operator_key = OperatorKey::read(&humans::operator_key_file(config))?;
    Ok(operator_key.mint(subject, admin, lifetime, SystemClock.now())?.expose_secret().to_owned())
}

/// Like [`mint_human_token`], but writes the token to a new file of mode 0600.
pub fn mint_human_token_to_file(
    config: &Config,
    subject: &str,
    admin: bool,
    lifetime: Duration,
    file: &Path,
) -> Result<(), AppError> {
    let token = mint_human_token(config, subject, admin, lifetime)?;
    files::create_secret(file, &files::with_suffix(file, ".partial"), format!("{token}\n").as_bytes())
        .map_err(AppError::file(file))
}

fn create_data_dir(config: &Config) -> Result<(), AppError> {
    let path = &config.data_dir;
    files::create_private_directory(path).map_err(|error| AppError::setting_file("data_dir", path, error))
}

fn install_crypto_provider() {
    // This fails if another server in this process has already installed the provider, which we then use.
    let _installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
}
