//! The configured Redis servers and how to connect to them: a single server, the master reported by Sentinels, or a cluster.

use super::{
    cluster,
    connection::{RedisConnection, tcp_settings, uses_tls},
    subscription::Subscription,
};
use arc_swap::ArcSwapOption;
use redis::{
    Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, RedisResult, TlsCertificates, TlsMode,
    aio::MultiplexedConnection,
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};
use secrecy::{ExposeSecret, SecretString};
use std::sync::{Arc, Mutex, PoisonError};

/// A configured Redis.
pub struct RedisEndpoint {
    servers: RedisServers,
    /// The certificates of the next connections.
    certificates: ArcSwapOption<TlsCertificates>,
    /// The nodes of the cluster, as last discovered.
    discovered_nodes: Mutex<Vec<(String, u16)>>,
}

/// The URLs of the servers. User, password and database in a URL apply to Redis, also in the URL of a Sentinel.
pub enum RedisServers {
    /// A single server.
    Single(SecretString),
    /// Nodes of a cluster.
    Cluster(Vec<SecretString>),
    /// Sentinels.
    Sentinel(Vec<SecretString>, SentinelTarget),
}

/// The name of the master that the Sentinels monitor, and the credentials for the Sentinels themselves.
pub struct SentinelTarget {
    /// The name of the master.
    pub master: String,
    /// The user for the Sentinels. Empty: the Sentinels require no user.
    pub user: String,
    /// The password for the Sentinels. Empty: the Sentinels require no password.
    pub password: SecretString,
}

impl RedisEndpoint {
    /// For a cluster or Sentinels, `servers` may list only some servers: the others are discovered. `certificates` contains the
    /// trusted authorities (if there are none, the authorities of the operating system are trusted) and an optional client
    /// certificate.
    pub fn new(servers: RedisServers, certificates: Option<TlsCertificates>) -> Self {
        let certificates = ArcSwapOption::from_pointee(certificates);
        Self { servers, certificates, discovered_nodes: Mutex::default() }
    }

    /// Uses other certificates for the next connections.
    pub(super) fn replace_certificates(&self, certificates: TlsCertificates) {
        self.certificates.store(Some(Arc::new(certificates)));
    }

    /// The topology, as in the scheme of `redis.url`.
    pub const fn kind(&self) -> &'static str {
        match self.servers {
            RedisServers::Single(_) => "single",
            RedisServers::Cluster(_) => "cluster",
            RedisServers::Sentinel(..) => "sentinel",
        }
    }

    /// Checks that clients can be built, without connecting.
    pub fn validate(&self) -> RedisResult<()> {
        match &self.servers {
            RedisServers::Single(url) => self.client(connection_info(url)?).map(drop),
            RedisServers::Cluster(urls) => {
                cluster::build_client(self.nodes(urls)?, self.certificates.load().as_deref()).map(drop)
            }
            RedisServers::Sentinel(urls, target) => self.sentinel_client(urls, target).map(drop),
        }
    }

    /// Connects to a server that accepts writes.
    pub(super) async fn connect(&self) -> RedisResult<RedisConnection> {
        match &self.servers {
            RedisServers::Single(url) => {
                let client = self.client(connection_info(url)?)?;
                Ok(RedisConnection::Server(client.get_multiplexed_async_connection().await?))
            }
            RedisServers::Cluster(urls) => {
                let client = cluster::build_client(self.nodes(urls)?, self.certificates.load().as_deref())?;
                Ok(RedisConnection::Cluster(client.get_async_connection().await?))
            }
            RedisServers::Sentinel(urls, target) => {
                let mut client = self.sentinel_client(urls, target)?;
                Ok(RedisConnection::Server(client.get_async_connection().await?))
            }
        }
    }

    /// Stores the current nodes of a cluster, because the configured nodes may no longer exist when the client reconnects.
    pub(super) async fn discover_nodes(&self, connection: &mut RedisConnection) {
        if let RedisConnection::Cluster(cluster) = connection
            && let Ok(nodes) = cluster::nodes(cluster).await
            && !nodes.is_empty()
        {
            *self.discovered_nodes.lock().unwrap_or_else(PoisonError::into_inner) = nodes;
        }
    }

    /// Returns why a cluster is unusable although one of its nodes responds: every node must be reachable at the address that
    /// the cluster announces, and with TLS its certificate must be valid for that name.
    pub(super) async fn diagnose_cluster(&self) -> Option<RedisError> {
        let RedisServers::Cluster(urls) = &self.servers else { return None };
        let mut first_error = None;
        for configured in self.nodes(urls).ok()? {
            let mut node = match self.connect_to_node(configured.clone()).await {
                Ok(node) => node,
                Err(error) => {
                    let detail = format!("{}: {error}", configured.addr());
                    first_error.get_or_insert_with(|| (error.kind(), "a node cannot be reached", detail).into());
                    continue;
                }
            };
            for address in cluster::nodes_reported_by(&mut node).await.ok()? {
                let announced = with_address(&configured, &address);
                if let Err(error) = self.connect_to_node(announced.clone()).await {
                    let detail = format!("{}: {error}", announced.addr());
                    return Some((error.kind(), "the cluster announces a node that cannot be reached", detail).into());
                }
            }
            break;
        }
        first_error
    }

    async fn connect_to_node(&self, node: ConnectionInfo) -> RedisResult<MultiplexedConnection> {
        let client = self.client(node)?;
        let timed_out = (redis::ErrorKind::Io, "timed out");
        let connection = tokio::time::timeout(cluster::CONNECT_TIMEOUT, client.get_multiplexed_async_connection());
        connection.await.unwrap_or_else(|_| Err(timed_out.into()))
    }

    /// Subscribes to a channel. In a cluster, every node delivers the messages of the channel.
    pub(super) async fn subscribe(&self, channel: &str) -> RedisResult<Subscription> {
        let client = match &self.servers {
            RedisServers::Single(url) => self.client(connection_info(url)?)?,
            RedisServers::Cluster(urls) => return self.subscribe_at_any_node(self.nodes(urls)?, channel).await,
            RedisServers::Sentinel(urls, target) => self.sentinel_client(urls, target)?.async_get_client().await?,
        };
        Subscription::open(&client, channel).await
    }

    async fn subscribe_at_any_node(&self, nodes: Vec<ConnectionInfo>, channel: &str) -> RedisResult<Subscription> {
        let mut result = Err(no_servers());
        for node in nodes {
            result = Subscription::open(&self.client(node)?, channel).await;
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// The configured and the last discovered nodes of the cluster.
    fn nodes(&self, urls: &[SecretString]) -> RedisResult<Vec<ConnectionInfo>> {
        let mut nodes = urls.iter().map(connection_info).collect::<RedisResult<Vec<_>>>()?;
        let Some(first) = nodes.first().cloned() else { return Err(no_servers()) };
        let discovered = self.discovered_nodes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        nodes.extend(discovered.iter().map(|address| with_address(&first, address)));
        Ok(nodes)
    }

    fn client(&self, info: ConnectionInfo) -> RedisResult<Client> {
        match (info.addr(), self.certificates.load().as_deref()) {
            (ConnectionAddr::TcpTls { .. }, Some(certificates)) => Client::build_with_tls(info, certificates.clone()),
            _ => Client::open(info),
        }
    }

    fn sentinel_client(&self, urls: &[SecretString], target: &SentinelTarget) -> RedisResult<SentinelClient> {
        let infos = urls.iter().map(connection_info).collect::<RedisResult<Vec<_>>>()?;
        let Some(first) = infos.first() else { return Err(no_servers()) };
        let addresses: Vec<_> = infos.iter().map(|info| info.addr().clone()).collect();
        let mut builder = SentinelClientBuilder::new(addresses, &target.master, SentinelServerType::Master)?
            .set_client_to_redis_db(first.redis_settings().db())
            .set_client_to_redis_tcp_settings(tcp_settings())
            .set_client_to_sentinel_tcp_settings(tcp_settings());
        if let Some(user) = first.redis_settings().username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = first.redis_settings().password() {
            builder = builder.set_client_to_redis_password(password);
        }
        if !target.user.is_empty() {
            builder = builder.set_client_to_sentinel_username(&target.user);
        }
        if !target.password.expose_secret().is_empty() {
            builder = builder.set_client_to_sentinel_password(target.password.expose_secret());
        }
        if !uses_tls(first) {
            return builder.build();
        }
        builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
        if let Some(certificates) = self.certificates.load().as_deref() {
            builder = builder
                .set_client_to_sentinel_certificates(certificates.clone())
                .set_client_to_redis_certificates(certificates.clone());
        }
        builder.build()
    }
}

fn connection_info(url: &SecretString) -> RedisResult<ConnectionInfo> {
    Ok(url.expose_secret().into_connection_info()?.set_tcp_settings(tcp_settings()))
}

/// A copy of the connection settings in `info`, with a different address.
fn with_address(info: &ConnectionInfo, (host, port): &(String, u16)) -> ConnectionInfo {
    let (host, port) = (host.clone(), *port);
    info.clone().set_addr(match info.addr() {
        ConnectionAddr::TcpTls { .. } => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        _ => ConnectionAddr::Tcp(host, port),
    })
}

fn no_servers() -> RedisError {
    (redis::ErrorKind::InvalidClientConfig, "no server is configured").into()
}
