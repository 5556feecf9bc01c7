//! Where the parts meet: settings in, running servers out, and a graceful stop.

mod audit;
mod database;
mod database_commands;
mod people;
mod servers;
mod windows;

pub use audit::{AuditError, export_audit, verify_audit};
pub use database_commands::{CommandReport, DatabaseCommandError, backup, migrate, migrate_to_postgres, restore};
pub use windows::unreadable;

use crate::{
    certificates::{Certificate, CertificateError},
    config::{Config, LimitSettings, TlsMode, WebhookSettings},
    development::{self, DevelopmentError, Places},
    domain::{
        signing_key::KeyRules,
        webhook::{
            address::AllowedNetworks,
            delivery::{AttemptFailure, Schedule},
        },
    },
    ephemeral::Redis,
    files::{self, Lock},
    http::{AppState, ErrorCode, Limits, PerMinute, Proxies, RATE_CATEGORIES},
    humans::{Humans, OperatorError},
    keyring::{Keyring, MasterKey, MasterKeyError},
    metrics::{Labels, Metrics},
    operations::{
        Context, OperationConfig, OperationError, Storms, ensure_audit_started, rotate_signing_keys_if_due,
        settle_storms,
    },
    store::{OpenMode, StoreError},
    webhooks::{Courier, CourierRules, Guard, Names, Post, PostError, Pulse, Sorter, SystemNames},
};
use countersign_process::{Clock, Readiness, ReadinessGuard, Rng, Shutdown, SystemClock, SystemRng};
use secrecy::ExposeSecret;
use servers::Servers;
use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{net::TcpListener, sync::Notify};

/// Why the control plane does not run.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// An address that cannot be bound.
    #[error("cannot listen on {address} ({setting}): {error}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The setting that names it.
        setting: &'static str,
        /// What the system said.
        error: io::Error,
    },
    /// The data folder or the database's file cannot be made.
    #[error("{path}: {error}")]
    Folder {
        /// The folder or file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The database's URL.
    #[error("{0}")]
    Place(String),
    /// The database belongs to another kind of deployment or another master key.
    #[error("{0}")]
    Foreign(&'static str),
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The audit could not begin.
    #[error("audit: {0}")]
    Audit(OperationError),
    /// The signing keys cannot be made or opened.
    #[error("signing keys: {0}")]
    Keys(OperationError),
    /// The master key.
    #[error(transparent)]
    Master(#[from] MasterKeyError),
    /// The operator key.
    #[error(transparent)]
    Operator(#[from] OperatorError),
    /// The operator key is out of use.
    #[error("{0}")]
    NoOperator(&'static str),
    /// A file, or what else a setting names.
    #[error("{setting}: {error}")]
    Setting {
        /// The setting.
        setting: String,
        /// What is wrong with what it names.
        error: String,
    },
    /// TLS.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// `--dev`.
    #[error(transparent)]
    Development(#[from] DevelopmentError),
    /// What is said of Redis.
    #[error("redis: {0}")]
    Redis(#[from] redis::RedisError),
    /// What events are sent with.
    #[error("webhooks.ca_file: {0}")]
    Webhooks(#[from] PostError),
    /// The metrics contradict each other.
    #[error(transparent)]
    Metrics(#[from] prometheus::Error),
    /// The sync port.
    #[error("sync port: {0}")]
    Sync(#[from] tonic::transport::Error),
    /// A server ended on its own.
    #[error("a server ended: {0}")]
    Server(#[from] io::Error),
}

impl AppError {
    fn folder(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |error| Self::Folder { path: path.to_owned(), error }
    }
}

/// The three bound ports.
struct Ports {
    api: std::net::TcpListener,
    sync: TcpListener,
    admin: TcpListener,
}

/// What a control plane is told from outside. Tests bring their own.
pub struct Surroundings {
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// The dice.
    pub rng: Arc<dyn Rng>,
    /// Where hosts are that events are sent to.
    pub names: Arc<dyn Names>,
}

impl Default for Surroundings {
    /// Those of the machine.
    fn default() -> Self {
        Self { clock: Arc::new(SystemClock), rng: Arc::new(SystemRng), names: Arc::new(SystemNames) }
    }
}

/// A control plane that listens and does not answer yet.
pub struct App {
    config: Config,
    state: AppState,
    redis: Option<Arc<Redis>>,
    post: Arc<Post>,
    certificate: Certificate,
    ports: Ports,
    lock: Option<Lock>,
    readiness: Readiness,
    unready: ReadinessGuard,
}

impl App {
    /// Opens ports, database and keys, and puts the parts together.
    pub async fn bind(config: Config, surroundings: Surroundings) -> Result<Self, AppError> {
        install_crypto();
        make_folder(&config)?;
        let ports = Ports::bind(&config).await?;
        let public_url = match config.public_url.as_str() {
            "" => format!("https://localhost:{}", ports.api.local_addr()?.port()),
            stated => stated.trim_end_matches('/').to_owned(),
        };
        let readiness = Readiness::default();
        let unready = readiness.register("start");

        let codes: Vec<_> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        let failures: Vec<_> = AttemptFailure::ALL.iter().map(|failure| failure.as_str()).collect();
        let metrics = Metrics::new(&Labels { codes: &codes, limits: &RATE_CATEGORIES, failures: &failures })?;
        let issuers = people::issuers(&config, &surroundings.clock).await?;
        let lock = database::lock_shared(&config)?;
        let context = open(&config, &public_url, surroundings, &metrics).await?;
        let post = Arc::new(post(&config.webhooks, &context.guard)?);
        let operator = people::operator_if_any(&config, context.rng.as_ref())?.map(Arc::new);
        let (certificate, authority) = certificate(&config, &context)?;
        metrics.certificate_expiry.set(certificate.expires_at()?.seconds());
        if let (true, Some(operator)) = (config.dev, &operator) {
            let (sync, admin) = (ports.sync.local_addr()?, ports.admin.local_addr()?);
            let places = Places { url: &public_url, sync, admin, authority: authority.as_deref() };
            let file = development::settle(&context, operator, &config.data_dir, &places).await?;
            tracing::info!("development: `set -a; . {}` gives clients everything they need", file.display());
        }
        let began = context.clock.since_boot();
        let humans = Arc::new(Humans::new(operator, issuers));
        let terminate_tls = config.tls.mode == TlsMode::Terminated;
        let proxies = Arc::new(Proxies { trusted: config.proxies.networks(), terminate_tls });
        let redis = windows::redis(&config, &context, &metrics).await?.map(Arc::new);
        let windows = windows::windows(redis.clone(), &context);
        let limits = Arc::new(Limits::new(per_minute(config.limits), windows));
        let state = AppState { context, humans, metrics, limits, proxies, began };
        Ok(Self { config, state, redis, post, certificate, ports, lock, readiness, unready })
    }

    /// Where agents and services reach the API.
    pub fn api_address(&self) -> io::Result<SocketAddr> {
        self.ports.api.local_addr()
    }

    /// Where sidecars follow.
    pub fn sync_address(&self) -> io::Result<SocketAddr> {
        self.ports.sync.local_addr()
    }

    /// Where the platform reaches us.
    pub fn admin_address(&self) -> io::Result<SocketAddr> {
        self.ports.admin.local_addr()
    }

    /// Answers until the process is asked to stop, and then until all requests under way are answered.
    pub async fn serve(self, shutdown: Shutdown) -> Result<(), AppError> {
        let (api, sync, admin) = (self.api_address()?, self.sync_address()?, self.admin_address()?);
        let Self { config, state, redis, post, certificate, ports, lock, readiness, unready } = self;
        let issuer = &state.context.config.issuer;
        let mut servers = Servers::new();
        servers::serve_admin(&mut servers, ports.admin, readiness, state.metrics.clone(), &shutdown);
        servers::serve_sync(&mut servers, ports.sync, &certificate, &config, &state, &shutdown)?;
        servers::serve_api(&mut servers, ports.api, &certificate, state.clone(), &shutdown)?;
        if let Some(redis) = redis {
            windows::keep(&mut servers, &redis, &state.context.store, &shutdown);
        }
        servers::keep_house(&mut servers, state.context.clone(), &shutdown);
        servers::keep_keys(&mut servers, &state, &shutdown);
        servers::watch_place(&mut servers, state.context.store.clone(), &shutdown);
        servers::keep_trust_told(&mut servers, state.context.clone(), &shutdown);
        let sorter = Sorter { store: state.context.store.clone(), pulse: state.context.pulse.clone() };
        servers::deliver(&mut servers, sorter, courier(&config.webhooks, &state, post), &shutdown);
        servers::keep_webhooks_told(&mut servers, &state, &shutdown);
        tracing::info!(url = issuer, %api, %sync, %admin, "ready");
        drop(unready);
        let ended = servers::wait(servers, &shutdown).await;
        if let Err(error) = settle_storms(&state.context).await {
            tracing::warn!(%error, "failed logins that were counted are not told to webhooks");
        }
        state.context.store.close().await;
        drop(lock);
        ended
    }
}

/// Runs until the process is asked to stop.
pub async fn run(config: Config, shutdown: Shutdown) -> Result<(), AppError> {
    App::bind(config, Surroundings::default()).await?.serve(shutdown).await
}

/// Mints a token for a person with the operator key: for the first minutes, until an issuer is set up.
pub fn mint_human_token(config: &Config, subject: &str, admin: bool, life: Duration) -> Result<String, AppError> {
    make_folder(config)?;
    let operator = people::operator(config, &SystemRng)?;
    Ok(operator.mint(subject, admin, life, SystemClock.now())?.expose_secret().to_owned())
}

fn make_folder(config: &Config) -> Result<(), AppError> {
    files::make_private_folder(&config.data_dir)
        .map_err(|error| AppError::Folder { path: config.data_dir.clone(), error })
}

fn install_crypto() {
    // Installed already if this is not the first server in the process.
    let _installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

impl Ports {
    async fn bind(config: &Config) -> Result<Self, AppError> {
        let api = bind("listen.api", config.listen.api).await?;
        Ok(Self {
            api: api.into_std()?,
            sync: bind("listen.sync", config.listen.sync).await?,
            admin: bind("listen.admin", config.listen.admin).await?,
        })
    }
}

async fn bind(setting: &'static str, address: SocketAddr) -> Result<TcpListener, AppError> {
    TcpListener::bind(address).await.map_err(|error| AppError::Bind { address, setting, error })
}

/// Opens database and keys.
async fn open(
    config: &Config,
    issuer: &str,
    surroundings: Surroundings,
    metrics: &Metrics,
) -> Result<Arc<Context>, AppError> {
    let Surroundings { clock, rng, names } = surroundings;
    let master = match config.secrets.master_key.expose_secret() {
        "" => MasterKey::from_file(&config.data_dir.join("master.key"), rng.as_ref())?,
        hex => MasterKey::from_hex(hex)?,
    };
    let store = database::open(config, OpenMode::Serve, &master, clock.clone(), metrics).await?;
    database::ensure_deployment(&store, &master, config.dev.then(|| clock.now())).await?;
    let operation_config = OperationConfig {
        issuer: issuer.to_owned(),
        access_token_lifetime: config.access_token_lifetime(),
        session_lifetime: config.session_lifetime(),
        challenge_lifetime: config.challenge_lifetime(),
        event_retention: config.webhooks.event_retention(),
        keys: KeyRules::new(config.max_staleness(), config.rotation(), config.access_token_lifetime()),
        public_registration: config.registration.public,
    };
    let (challenge_keys, keyring) = (master.challenge_keys(), Arc::new(Keyring::new(master)));
    let guard = Guard::new(names, AllowedNetworks::new(config.webhooks.networks(config.dev)));
    let (pulse, trust_marked, storms) = (Arc::new(Pulse::new(clock.clone())), Notify::new(), Storms::default());
    let context = Context {
        store,
        keyring,
        challenge_keys,
        clock,
        rng,
        config: operation_config,
        trust_marked,
        guard,
        pulse,
        storms,
    };
    ensure_audit_started(&context.store).await.map_err(AppError::Audit)?;
    rotate_signing_keys_if_due(&context).await.map_err(AppError::Keys)?;
    Ok(Arc::new(context))
}

const fn per_minute(settings: LimitSettings) -> PerMinute {
    let LimitSettings { auth, auth_address, verification, management, feedback, failures } = settings;
    PerMinute { auth, auth_address, verification, feedback, management, failures }
}

/// What events are sent with.
fn post(settings: &WebhookSettings, guard: &Guard) -> Result<Post, AppError> {
    let file = &settings.ca_file;
    let authorities = files::read_named(file);
    let authorities = authorities.map_err(|error| AppError::Folder { path: file.clone(), error })?;
    Ok(Post::new(guard.clone(), authorities.as_deref(), settings.patience())?)
}

fn courier(settings: &WebhookSettings, state: &AppState, post: Arc<Post>) -> Courier {
    let AppState { context, metrics, .. } = state;
    let (widest, widest_lane) = settings.widths();
    let (schedule, patience) = (Schedule::new(settings.pauses()), settings.patience());
    Courier {
        store: context.store.clone(),
        keyring: context.keyring.clone(),
        post,
        clock: context.clock.clone(),
        rng: context.rng.clone(),
        rules: CourierRules { schedule, patience, widest, widest_lane },
        pulse: context.pulse.clone(),
        metrics: metrics.webhooks.clone(),
    }
}

fn certificate(config: &Config, context: &Context) -> Result<(Certificate, Option<PathBuf>), AppError> {
    if config.tls.certificate.as_os_str().is_empty() {
        let (certificate, authority) =
            Certificate::for_development(&config.data_dir, development::year(context.now()))?;
        return Ok((certificate, Some(authority)));
    }
    Ok((Certificate::read(&config.tls.certificate, &config.tls.private_key)?, None))
}
