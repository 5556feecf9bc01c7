//! Where the parts meet: settings in, running servers out, and a graceful stop.

use crate::{
    certificates::{Certificate, CertificateError},
    config::Config,
    development::{self, DevelopmentError, Places},
    files,
    http::{AppState, router, tls::TlsOnly},
    humans::{OperatorError, OperatorKey},
    keyring::{Keyring, KeyringError, MasterKey, MasterKeyError},
    metrics::Metrics,
    operations::{Context, Rules, housekeep},
    store::{Store, StoreError, deployment::Deployment},
    sync::{Reader, SyncService, Terms},
};
use countersign_identity::Timestamp;
use countersign_process::{Chance, Clock, Readiness, Shutdown, SystemChance, SystemClock, admin, shutdown::DRAIN};
use countersign_proto::v1::sync_server::SyncServer;
use hyper_util::rt::TokioTimer;
use secrecy::ExposeSecret;
use std::{io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_rustls::TlsAcceptor;
use tonic::transport::{Identity, Server, ServerTlsConfig};

/// How often old changes and dead logins are forgotten.
const HOUSEKEEPING: Duration = Duration::from_mins(1);

/// How long a client may take to send the head of a request, or to show that it is still there.
const PATIENCE: Duration = Duration::from_secs(20);

/// The largest request head, in bytes: whatever is longer than a token may be is refused by name, not cut off.
const MAX_HEADERS: u32 = 64 * 1024;

/// Streams that one connection of a sidecar may have; it needs one for each service.
const MOST_STREAMS: u32 = 64;

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
    /// The database belongs to another kind of deployment or another master key.
    #[error("{0}")]
    Foreign(&'static str),
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The signing keys.
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    /// The master key.
    #[error(transparent)]
    Master(#[from] MasterKeyError),
    /// The operator key.
    #[error(transparent)]
    Operator(#[from] OperatorError),
    /// TLS.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// `--dev`.
    #[error(transparent)]
    Development(#[from] DevelopmentError),
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

/// The three bound ports.
struct Ports {
    api: std::net::TcpListener,
    sync: TcpListener,
    admin: TcpListener,
}

/// Runs until the process is asked to stop.
pub async fn run(config: Config, shutdown: Shutdown) -> Result<(), AppError> {
    install_crypto();
    let (clock, chance): (Arc<dyn Clock>, Arc<dyn Chance>) = (Arc::new(SystemClock), Arc::new(SystemChance));
    make_folder(&config)?;
    let ports = Ports::bind(&config).await?;
    let api = ports.api.local_addr()?;
    let public_url = if config.public_url.is_empty() {
        format!("https://localhost:{}", api.port())
    } else {
        config.public_url.clone()
    };
    let readiness = Readiness::default();
    let unready = readiness.wait_for("start");

    let (context, operator) = open(&config, public_url.trim_end_matches('/'), clock, chance).await?;
    let metrics = Metrics::new()?;
    let (certificate, authority) = certificate(&config, &context)?;
    let places = (ports.sync.local_addr()?, ports.admin.local_addr()?);
    let state = AppState { context: context.clone(), operator, metrics: metrics.clone() };

    let mut servers = JoinSet::new();
    serve_admin(&mut servers, ports.admin, readiness, metrics, &shutdown);
    serve_sync(&mut servers, ports.sync, &certificate, &config, &state, &shutdown)?;
    serve_api(&mut servers, ports.api, &certificate, state.clone(), &shutdown)?;
    keep_house(&mut servers, context.clone(), &shutdown);

    if config.dev {
        let authority = authority.as_deref();
        let places = Places { url: &public_url, sync: places.0, admin: places.1, authority };
        let file = development::settle(&context, &state.operator, &config.data_dir, &places).await?;
        tracing::info!("development: `set -a; . {}` gives clients everything they need", file.display());
    }
    tracing::info!(url = public_url, api = %api, sync = %places.0, admin = %places.1, "ready");
    drop(unready);
    let ended = wait(servers, &shutdown).await;
    context.store.close().await;
    ended
}

/// Mints a token for a person with the operator key: for the first minutes, until an issuer is set up.
pub fn mint_human_token(config: &Config, subject: &str, admin: bool, life: Duration) -> Result<String, AppError> {
    make_folder(config)?;
    let operator = OperatorKey::open(&operator_file(config), &SystemChance)?;
    Ok(operator.mint(subject, admin, life, SystemClock.now())?.expose_secret().to_owned())
}

fn make_folder(config: &Config) -> Result<(), AppError> {
    files::make_private_folder(&config.data_dir)
        .map_err(|error| AppError::Folder { path: config.data_dir.clone(), error })
}

fn operator_file(config: &Config) -> PathBuf {
    config.data_dir.join("operator.key")
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
    clock: Arc<dyn Clock>,
    chance: Arc<dyn Chance>,
) -> Result<(Arc<Context>, Arc<OperatorKey>), AppError> {
    let master = match config.secrets.master_key.expose_secret() {
        "" => MasterKey::from_file(&config.data_dir.join("master.key"), chance.as_ref())?,
        hex => MasterKey::from_hex(hex)?,
    };
    // SQLite gives the files beside it the same mode.
    let database = config.database_file();
    files::make_private_file(&database).map_err(|error| AppError::Folder { path: database.clone(), error })?;
    let store = Store::open_sqlite(&database, clock.clone()).await?;
    belong_together(&store, &master, config.dev.then(|| clock.now())).await?;
    let keyring = Keyring::open(&store, &master, chance.as_ref()).await?;
    let operator = OperatorKey::open(&operator_file(config), chance.as_ref())?;
    let rules = Rules {
        issuer: issuer.to_owned(),
        access_life: config.access_life(),
        refresh_life: config.refresh_life(),
        challenge_life: config.challenge_life(),
        public_registration: config.registration.public,
    };
    let challenge_keys = master.challenge_keys();
    Ok((Arc::new(Context { store, keyring, challenge_keys, clock, chance, rules }), Arc::new(operator)))
}

/// Refuses a database of another master key, or of the other kind of deployment.
async fn belong_together(store: &Store, master: &MasterKey, dev_since: Option<Timestamp>) -> Result<(), AppError> {
    let wanted = Deployment { master_key_fingerprint: master.fingerprint(), dev_since };
    let kept = store.settle_deployment(&wanted).await?;
    if kept.master_key_fingerprint != wanted.master_key_fingerprint {
        return Err(AppError::Foreign(
            "the master key is not the one that sealed this database: restore the right one (secrets.master_key)",
        ));
    }
    match (kept.dev_since, dev_since) {
        (Some(_), None) => {
            Err(AppError::Foreign("this database was made by --dev and is refused without it: set another data_dir"))
        }
        (None, Some(_)) => {
            Err(AppError::Foreign("this is a real database, which --dev does not touch: set another data_dir"))
        }
        (None, None) | (Some(_), Some(_)) => Ok(()),
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

type Servers = JoinSet<io::Result<()>>;

fn serve_admin(
    servers: &mut Servers,
    listener: TcpListener,
    readiness: Readiness,
    metrics: Metrics,
    shutdown: &Shutdown,
) {
    servers.spawn(admin::serve(listener, readiness, metrics.registry, shutdown.clone()));
}

fn serve_sync(
    servers: &mut Servers,
    listener: TcpListener,
    certificate: &Certificate,
    config: &Config,
    state: &AppState,
    shutdown: &Shutdown,
) -> Result<(), AppError> {
    let AppState { context, metrics, .. } = state;
    let terms = Terms { issuer: context.rules.issuer.clone(), max_staleness: config.max_staleness() };
    let reader = Reader::new(context.store.clone());
    let feed = reader.feed();
    let reading = reader.run(metrics.clone(), shutdown.clone());
    servers.spawn(async {
        reading.await;
        Ok(())
    });
    let service = SyncService::new(context.store.clone(), feed, terms, metrics.clone(), shutdown.clone());
    let identity = Identity::from_pem(&certificate.chain, certificate.key.expose_secret());
    let server = Server::builder()
        .tls_config(ServerTlsConfig::new().identity(identity).timeout(PATIENCE))?
        .http2_keepalive_interval(Some(PATIENCE))
        .max_concurrent_streams(MOST_STREAMS)
        .add_service(SyncServer::new(service))
        .serve_with_incoming_shutdown(tokio_stream::wrappers::TcpListenerStream::new(listener), shutdown.asked_owned());
    servers.spawn(async move { server.await.map_err(io::Error::other) });
    Ok(())
}

fn serve_api(
    servers: &mut Servers,
    listener: std::net::TcpListener,
    certificate: &Certificate,
    state: AppState,
    shutdown: &Shutdown,
) -> Result<(), AppError> {
    let chance = state.context.chance.clone();
    let acceptor = TlsOnly::new(TlsAcceptor::from(certificate.server_config()?), chance);
    let handle = axum_server::Handle::new();
    let (asked, drain) = (shutdown.asked_owned(), handle.clone());
    tokio::spawn(async move {
        asked.await;
        drain.graceful_shutdown(Some(DRAIN));
    });
    let mut server = axum_server::from_tcp(listener)?.acceptor(acceptor).handle(handle);
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    server.http_builder().http2().timer(TokioTimer::new()).keep_alive_interval(Some(PATIENCE));
    server.http_builder().http2().max_header_list_size(MAX_HEADERS);
    servers.spawn(server.serve(router(state).into_make_service_with_connect_info::<SocketAddr>()));
    Ok(())
}

fn keep_house(servers: &mut Servers, context: Arc<Context>, shutdown: &Shutdown) {
    let asked = shutdown.asked_owned();
    let keep = async move {
        loop {
            if let Err(error) = housekeep(&context).await {
                tracing::warn!(%error, "housekeeping failed; trying again in a minute");
            }
            tokio::time::sleep(HOUSEKEEPING).await;
        }
    };
    servers.spawn(async move {
        tokio::select! {
            () = asked => Ok(()),
            () = keep => Ok(()),
        }
    });
}

/// Waits for the stop, then for the servers; one that ends before is a failure of the whole.
async fn wait(mut servers: Servers, shutdown: &Shutdown) -> Result<(), AppError> {
    let first = tokio::select! {
        () = shutdown.asked() => Ok(()),
        Some(ended) = servers.join_next() => ended.map_err(io::Error::other).flatten(),
    };
    shutdown.ask();
    let rest = async { while servers.join_next().await.is_some() {} };
    // What has not drained by then is cut when the runtime ends.
    let _cut = tokio::time::timeout(DRAIN, rest).await;
    Ok(first?)
}
