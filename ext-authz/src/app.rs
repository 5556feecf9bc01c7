//! Where the parts meet: settings in, a running authorizer out.
//!
//! Neighbours: everybody; nobody else knows them all. The rule of the room: wiring only, no decisions.

mod health;
mod listen;

use crate::{
    answer::Names,
    check::{Authorizer, Complaints},
    config::{ApiKey, Settings, SyncSettings},
    decide::TokenCache,
    metrics::Metrics,
    sync::{Follower, Target},
    view::{Slot, Views},
};
use countersign_process::{Clock, Readiness, Shutdown, admin, shutdown::DRAIN_TIMEOUT};
use envoy_types::ext_authz::v3::pb::AuthorizationServer;
use listen::{Envoys, Incoming};
use std::{error::Error, net::SocketAddr, path::Path, sync::Arc, time::Duration};
use tokio::{
    net::TcpListener,
    task::{JoinError, JoinSet},
};
use tonic::{
    metadata::{Ascii, MetadataValue},
    transport::{Certificate, ClientTlsConfig, Endpoint, Server},
};

/// How long a connection to the control plane may take to come about.
const CONNECT: Duration = Duration::from_secs(5);

/// The largest check that is read, in bytes: twice the largest request head that Envoy can be told to take. What it
/// could not ask about for its size it would treat as the operator set it to treat errors: it may let everybody in.
const LARGEST_CHECK: usize = 16 * 1024 * 1024;

/// Why the authorizer does not run.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A setting names something that is not usable.
    #[error("{key}: {error}")]
    Setting {
        /// The setting.
        key: &'static str,
        /// What is wrong.
        error: String,
    },
    /// A server failed.
    #[error("{0}")]
    Server(#[from] tonic::transport::Error),
    /// The system failed.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// Metrics that contradict each other.
    #[error("{0}")]
    Metrics(#[from] prometheus::Error),
}

impl Failure {
    fn setting(key: &'static str, error: impl Into<Box<dyn Error>>) -> Self {
        Self::Setting { key, error: error.into().to_string() }
    }
}

/// An authorizer that listens and does not answer yet.
pub struct App {
    authorizer: Authorizer,
    followers: Vec<Follower>,
    readiness: Readiness,
    metrics: Arc<Metrics>,
    envoys: Envoys,
    platform: TcpListener,
}

impl App {
    /// Puts the parts together and opens the ports.
    pub async fn bind(settings: Settings, clock: Arc<dyn Clock>) -> Result<Self, Failure> {
        // A second installation is refused and changes nothing, which is as well.
        let _installed_before = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let Settings { listen, sync, routes, headers, cache, log: _ } = settings;
        let metrics = Arc::new(Metrics::new()?);
        let views = Arc::new(Views::new(sync.keys.len(), routes.default_service));
        let readiness = Readiness::default();
        let followers = followers(&sync, &views, &metrics, &readiness, &clock)?;
        let authorizer = Authorizer {
            views,
            cache: TokenCache::new(cache.tokens, metrics.cache_hits(), metrics.cache_misses()),
            names: Names::new(headers.prefix.as_str()),
            metrics: Arc::clone(&metrics),
            clock,
            complaints: Complaints::default(),
        };
        let envoys = Envoys::bind(&listen.grpc).await.map_err(|error| Failure::setting("listen.grpc", error))?;
        let platform =
            TcpListener::bind(&listen.admin).await.map_err(|error| Failure::setting("listen.admin", error))?;
        Ok(Self { authorizer, followers, readiness, metrics, envoys, platform })
    }

    /// Where Envoy reaches us, unless it is by a socket in the file system.
    pub fn grpc_address(&self) -> Option<SocketAddr> {
        self.envoys.address()
    }

    /// Where the platform reaches us.
    pub fn admin_address(&self) -> std::io::Result<SocketAddr> {
        self.platform.local_addr()
    }

    /// Answers until the process is asked to stop, and then until all checks under way are answered.
    pub async fn serve(self, shutdown: Shutdown) -> Result<(), Failure> {
        let Self { authorizer, followers, readiness, metrics, envoys, platform } = self;
        let mut following: JoinSet<()> = followers.into_iter().map(|follower| follower.run(shutdown.clone())).collect();
        let checks = serve_checks(authorizer, envoys, readiness.clone(), shutdown.clone());
        let admin = admin::serve(platform, readiness, metrics.registry(), shutdown.clone());
        let both = async { tokio::try_join!(checks, async { Ok(admin.await?) }) };
        tokio::select! {
            ended = both => ended.map(|_| ()),
            // A follower that dies would leave its view to age unseen: better that the whole is restarted.
            Err(died) = async { join_all(&mut following).await } => Err(std::io::Error::other(died).into()),
            () = time_is_up(&shutdown) => {
                tracing::warn!("connections were cut, since they did not end in time");
                Ok(())
            }
        }
    }
}

async fn serve_checks(
    authorizer: Authorizer,
    envoys: Envoys,
    readiness: Readiness,
    shutdown: Shutdown,
) -> Result<(), Failure> {
    let (reporter, health) = tonic_health::server::health_reporter();
    tokio::spawn(health::report(reporter, readiness, shutdown.clone()));
    let authorization = AuthorizationServer::new(authorizer).max_decoding_message_size(LARGEST_CHECK);
    let router = Server::builder().add_service(authorization).add_service(health);
    let asked = shutdown.requested_owned();
    match envoys.incoming() {
        Incoming::Tcp(incoming) => router.serve_with_incoming_shutdown(incoming, asked).await?,
        Incoming::Unix(incoming, _socket) => router.serve_with_incoming_shutdown(incoming, asked).await?,
    }
    Ok(())
}

/// Waits for all tasks; an error if one of them panicked.
async fn join_all(tasks: &mut JoinSet<()>) -> Result<(), JoinError> {
    while let Some(ended) = tasks.join_next().await {
        ended?;
    }
    Ok(())
}

async fn time_is_up(shutdown: &Shutdown) {
    shutdown.requested().await;
    tokio::time::sleep(DRAIN_TIMEOUT).await;
}

fn followers(
    settings: &SyncSettings,
    views: &Arc<Views>,
    metrics: &Arc<Metrics>,
    readiness: &Readiness,
    clock: &Arc<dyn Clock>,
) -> Result<Vec<Follower>, Failure> {
    let endpoint = endpoint(settings)?;
    let stricter = Duration::from_secs(settings.max_staleness_seconds.into());
    let follower = |(slot, key): (usize, &ApiKey)| {
        Ok(Follower {
            slot: Slot(slot),
            target: Target { endpoint: endpoint.clone(), authorization: authorization(key)? },
            ping_every: Duration::from_secs(settings.ping_seconds.into()),
            max_staleness: Some(stricter).filter(|stricter| !stricter.is_zero()),
            views: Arc::clone(views),
            metrics: Arc::clone(metrics),
            clock: Arc::clone(clock),
            unready: Some(readiness.register(format!("the first view by sync.keys[{slot}]"))),
            following: None,
        })
    };
    settings.keys.iter().enumerate().map(follower).collect()
}

fn endpoint(settings: &SyncSettings) -> Result<Endpoint, Failure> {
    let endpoint = Endpoint::from(settings.url.uri().clone()).connect_timeout(CONNECT);
    if !settings.url.is_tls() {
        return Ok(endpoint);
    }
    let tls = match &settings.ca {
        Some(path) => ClientTlsConfig::new().ca_certificate(authority(path)?),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    endpoint.tls_config(tls).map_err(|error| Failure::setting("sync.ca", error))
}

fn authority(path: &Path) -> Result<Certificate, Failure> {
    let pem =
        std::fs::read(path).map_err(|error| Failure::setting("sync.ca", format!("{}: {error}", path.display())))?;
    Ok(Certificate::from_pem(pem))
}

fn authorization(key: &ApiKey) -> Result<MetadataValue<Ascii>, Failure> {
    let mut value = MetadataValue::try_from(format!("Bearer {}", key.expose()))
        .map_err(|_| Failure::setting("sync.keys", "holds something that cannot be sent"))?;
    value.set_sensitive(true);
    Ok(value)
}
