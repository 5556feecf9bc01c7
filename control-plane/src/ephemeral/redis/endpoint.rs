//! The configured Redis servers and how to connect to them: a single server, the master reported by Sentinels, or a cluster.

use super::{
    cluster::{NodeAddress, with_address},
    connection::{RedisConnection, push_sender},
};
use arc_swap::{ArcSwap, ArcSwapOption};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisError,
    RedisResult, TlsCertificates, TlsMode,
    aio::MultiplexedConnection,
    cluster::ClusterClient,
    io::tcp::TcpSettings,
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};
use secrecy::{ExposeSecret, SecretString};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::sync::Notify;

/// Timeout for connecting to one node of a cluster. It is short, so that an unreachable node leaves time for the other nodes.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(400);

/// Timeout for the response of one node while the client looks up the slots of a cluster.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

/// How often a request is tried again while a slot moves or the nodes elect a master, and the pauses in milliseconds. All pauses
/// together are shorter than the timeout of a request, so a request that still gets `TRYAGAIN` fails with this error.
const RETRIES: u32 = 8;
const SHORTEST_RETRY_PAUSE: u64 = 10;
const LONGEST_RETRY_PAUSE: u64 = 30;

/// A configured Redis.
pub struct RedisEndpoint {
    servers: RedisServers,
    /// The certificates for connections that are opened from now on.
    certificates: ArcSwapOption<TlsCertificates>,
    /// The nodes that the cluster announced last. The configured nodes may be gone when we connect again.
    announced_nodes: ArcSwap<BTreeSet<NodeAddress>>,
}

/// The URLs of the servers, which differ only in host and port. User, password and database are those of Redis, not of Sentinels.
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
    pub master: String,
    /// The user for the Sentinels. Empty: the Sentinels require no user.
    pub user: String,
    /// The password for the Sentinels. Empty: the Sentinels require no password.
    pub password: SecretString,
}

/// A client that is not connected.
enum UnconnectedClient {
    Single(Client),
    Cluster(ClusterClient),
    Sentinel(SentinelClient),
}

impl RedisEndpoint {
    /// `servers` may list only some nodes of a cluster or some Sentinels: the client discovers the others. Without authorities in
    /// `certificates`, the client trusts those of the operating system.
    pub fn new(servers: RedisServers, certificates: Option<TlsCertificates>) -> Self {
        let certificates = ArcSwapOption::from_pointee(certificates);
        Self { servers, certificates, announced_nodes: ArcSwap::default() }
    }

    /// Uses other certificates for the next connections.
    pub(super) fn replace_certificates(&self, certificates: TlsCertificates) {
        self.certificates.store(Some(Arc::new(certificates)));
    }

    /// Uses these nodes of the cluster for the next connections, besides the configured nodes.
    pub(super) fn set_announced_nodes(&self, nodes: BTreeSet<NodeAddress>) {
        self.announced_nodes.store(Arc::new(nodes));
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
        self.client(&Arc::default()).map(drop)
    }

    /// Connects to the single server, to the master that the Sentinels report, or to the cluster. Messages in the channels to which
    /// the connection subscribes later notify `messages`.
    pub(super) async fn connect(&self, messages: &Arc<Notify>) -> RedisResult<RedisConnection> {
        let config = AsyncConnectionConfig::new().set_push_sender(push_sender(messages));
        let connection = match self.client(messages)? {
            UnconnectedClient::Single(client) => client.get_multiplexed_async_connection_with_config(&config).await?,
            UnconnectedClient::Sentinel(mut client) => client.get_async_connection_with_config(&config).await?,
            UnconnectedClient::Cluster(client) => {
                return client.get_async_connection().await.map(RedisConnection::Cluster);
            }
        };
        Ok(RedisConnection::Server(connection))
    }

    /// The configured and the announced nodes of a cluster; none for other topologies.
    pub(super) fn cluster_nodes(&self) -> RedisResult<Vec<ConnectionInfo>> {
        let RedisServers::Cluster(urls) = &self.servers else { return Ok(Vec::new()) };
        let mut nodes = connection_infos(urls)?;
        let first = nodes.first().ok_or_else(no_servers)?.clone();
        nodes.extend(self.announced_nodes.load().iter().map(|address| with_address(&first, address.clone())));
        Ok(nodes)
    }

    /// Connects to one node of a cluster.
    pub(super) async fn connect_to_node(&self, node: ConnectionInfo) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT_TIMEOUT));
        self.server(node)?.get_multiplexed_async_connection_with_config(&config).await
    }

    fn client(&self, messages: &Arc<Notify>) -> RedisResult<UnconnectedClient> {
        Ok(match &self.servers {
            RedisServers::Single(url) => UnconnectedClient::Single(self.server(connection_info(url)?)?),
            RedisServers::Cluster(_) => UnconnectedClient::Cluster(self.cluster(self.cluster_nodes()?, messages)?),
            RedisServers::Sentinel(urls, target) => {
                UnconnectedClient::Sentinel(self.sentinel(&connection_infos(urls)?, target)?)
            }
        })
    }

    fn server(&self, info: ConnectionInfo) -> RedisResult<Client> {
        match self.certificates.load().as_deref() {
            Some(certificates) if uses_tls(&info) => Client::build_with_tls(info, certificates.clone()),
            _ => Client::open(info),
        }
    }

    fn cluster(&self, nodes: Vec<ConnectionInfo>, messages: &Arc<Notify>) -> RedisResult<ClusterClient> {
        let is_tls = nodes.iter().any(uses_tls);
        let builder = ClusterClient::builder(nodes)
            .use_protocol(ProtocolVersion::RESP3)
            .push_sender(push_sender(messages))
            .tcp_settings(tcp_settings())
            .connection_timeout(CONNECT_TIMEOUT)
            .response_timeout(RESPONSE_TIMEOUT)
            .overall_response_timeout(None)
            .retries(RETRIES)
            .min_retry_wait(SHORTEST_RETRY_PAUSE)
            .max_retry_wait(LONGEST_RETRY_PAUSE);
        match self.certificates.load().as_deref() {
            Some(certificates) if is_tls => builder.certs(certificates.clone()).build(),
            _ => builder.build(),
        }
    }

    fn sentinel(&self, sentinels: &[ConnectionInfo], target: &SentinelTarget) -> RedisResult<SentinelClient> {
        let Some(first) = sentinels.first() else { return Err(no_servers()) };
        let addresses: Vec<_> = sentinels.iter().map(|info| info.addr().clone()).collect();
        let mut builder = SentinelClientBuilder::new(addresses, &target.master, SentinelServerType::Master)?
            .set_client_to_redis_protocol(ProtocolVersion::RESP3)
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

fn connection_infos(urls: &[SecretString]) -> RedisResult<Vec<ConnectionInfo>> {
    urls.iter().map(connection_info).collect()
}

/// The settings in a URL. We use RESP3, because it sends the messages of channels on the connection that requests use.
fn connection_info(url: &SecretString) -> RedisResult<ConnectionInfo> {
    let info = url.expose_secret().into_connection_info()?.set_tcp_settings(tcp_settings());
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Ok(info.set_redis_settings(settings))
}

/// Whether connections to this server use TLS.
fn uses_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

/// Disables Nagle's algorithm, because commands are short and a request waits for each reply.
fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

fn no_servers() -> RedisError {
    (redis::ErrorKind::InvalidClientConfig, "no server is configured").into()
}
