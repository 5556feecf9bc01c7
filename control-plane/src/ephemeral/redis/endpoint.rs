//! Where a Redis is, and how it is come by: one server, the master that Sentinels know, or a cluster.

use super::{cluster, words::Words};
use redis::{
    Client, ConnectionAddr, ConnectionInfo, FromRedisValue, IntoConnectionInfo, RedisError, RedisResult,
    TlsCertificates, TlsMode, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster_async::ClusterConnection,
    io::tcp::TcpSettings,
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};
use secrecy::{ExposeSecret, SecretString};
use std::sync::{Mutex, PoisonError};

/// What is known of a Redis.
pub struct Place {
    servers: Servers,
    certificates: Option<TlsCertificates>,
    /// Of a cluster: the nodes that it had last.
    seen: Mutex<Vec<(String, u16)>>,
}

/// Servers, by URL. User, password and database in it are those of Redis.
pub enum Servers {
    /// One.
    Single(SecretString),
    /// Nodes of a cluster.
    Cluster(Vec<SecretString>),
    /// Sentinels.
    Sentinel(Vec<SecretString>, Watched),
}

/// What Sentinels watch, and how they are asked.
pub struct Watched {
    /// The name of the master.
    pub master: String,
    /// Who asks; empty: nobody in particular.
    pub user: String,
    /// With which password; empty: none.
    pub password: SecretString,
}

/// A connection that many may use at once.
#[derive(Clone)]
pub(super) enum Link {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Place {
    /// Servers, of a cluster and of Sentinels some that may know the others; and for TLS the authorities that may vouch
    /// for their certificates, without: those of the system, and the certificate that we show, if we do.
    pub fn new(servers: Servers, certificates: Option<TlsCertificates>) -> Self {
        Self { servers, certificates, seen: Mutex::default() }
    }

    /// Of which kind it is, as the settings say it.
    pub const fn kind(&self) -> &'static str {
        match self.servers {
            Servers::Single(_) => "single",
            Servers::Cluster(_) => "cluster",
            Servers::Sentinel(..) => "sentinel",
        }
    }

    /// Whether what is known can be right. Asks nobody.
    pub fn check(&self) -> RedisResult<()> {
        match &self.servers {
            Servers::Single(url) => self.client(info(url)?).map(drop),
            Servers::Cluster(urls) => cluster::client(self.nodes(urls)?, self.certificates.as_ref()).map(drop),
            Servers::Sentinel(urls, watched) => self.sentinels(urls, watched).map(drop),
        }
    }

    /// Connects, to where it can be written.
    pub(super) async fn connect(&self) -> RedisResult<Link> {
        match &self.servers {
            Servers::Single(url) => {
                Ok(Link::Server(self.client(info(url)?)?.get_multiplexed_async_connection().await?))
            }
            Servers::Cluster(urls) => {
                let client = cluster::client(self.nodes(urls)?, self.certificates.as_ref())?;
                Ok(Link::Cluster(client.get_async_connection().await?))
            }
            Servers::Sentinel(urls, watched) => {
                Ok(Link::Server(self.sentinels(urls, watched)?.get_async_connection().await?))
            }
        }
    }

    /// Looks which nodes a cluster has now: those that the settings name may be gone by the time it is looked for again.
    pub(super) async fn look_around(&self, link: &mut Link) {
        if let Link::Cluster(connection) = link
            && let Ok(nodes) = cluster::nodes(connection).await
            && !nodes.is_empty()
        {
            *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = nodes;
        }
    }

    /// Why a cluster cannot be used although a node of it answers: the others must be where it says that they are, and
    /// with TLS their certificates must be for what it calls them.
    pub(super) async fn out_of_reach(&self) -> Option<RedisError> {
        let Servers::Cluster(urls) = &self.servers else { return None };
        let mut first_gone = None;
        for named in self.nodes(urls).ok()? {
            let mut node = match self.knock(named.clone()).await {
                Ok(node) => node,
                Err(error) => {
                    let gone = (error.kind(), "a node cannot be reached", format!("{}: {error}", named.addr()));
                    first_gone.get_or_insert_with(|| gone.into());
                    continue;
                }
            };
            for address in cluster::nodes_by(&mut node).await.ok()? {
                let other = at(&named, &address);
                if let Err(error) = self.knock(other.clone()).await {
                    let detail = format!("{}: {error}", other.addr());
                    return Some((error.kind(), "the cluster names a node that cannot be reached", detail).into());
                }
            }
            break;
        }
        first_gone
    }

    async fn knock(&self, server: ConnectionInfo) -> RedisResult<MultiplexedConnection> {
        let client = self.client(server)?;
        let late = (redis::ErrorKind::Io, "no answer in time");
        let connected = tokio::time::timeout(cluster::CONNECTING, client.get_multiplexed_async_connection()).await;
        connected.unwrap_or_else(|_| Err(late.into()))
    }

    /// What is said in a channel from now on. In a cluster it is heard at any node.
    pub(super) async fn listen(&self, channel: &str) -> RedisResult<Words> {
        let client = match &self.servers {
            Servers::Single(url) => self.client(info(url)?)?,
            Servers::Cluster(urls) => return self.listen_at_one_of(self.nodes(urls)?, channel).await,
            Servers::Sentinel(urls, watched) => self.sentinels(urls, watched)?.async_get_client().await?,
        };
        Words::listen(&client, channel).await
    }

    async fn listen_at_one_of(&self, nodes: Vec<ConnectionInfo>, channel: &str) -> RedisResult<Words> {
        let mut result = Err(nowhere());
        for node in nodes {
            result = Words::listen(&self.client(node)?, channel).await;
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// The nodes that the settings name, and those that the cluster had last.
    fn nodes(&self, urls: &[SecretString]) -> RedisResult<Vec<ConnectionInfo>> {
        let mut nodes = urls.iter().map(info).collect::<RedisResult<Vec<_>>>()?;
        let Some(first) = nodes.first().cloned() else { return Err(nowhere()) };
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let others: Vec<_> = seen.iter().map(|address| at(&first, address)).collect();
        nodes.extend(others);
        Ok(nodes)
    }

    fn client(&self, info: ConnectionInfo) -> RedisResult<Client> {
        match (info.addr(), &self.certificates) {
            (ConnectionAddr::TcpTls { .. }, Some(certificates)) => Client::build_with_tls(info, certificates.clone()),
            _ => Client::open(info),
        }
    }

    fn sentinels(&self, urls: &[SecretString], watched: &Watched) -> RedisResult<SentinelClient> {
        let infos = urls.iter().map(info).collect::<RedisResult<Vec<_>>>()?;
        let Some(first) = infos.first() else { return Err(nowhere()) };
        let addresses: Vec<_> = infos.iter().map(|info| info.addr().clone()).collect();
        let mut builder = SentinelClientBuilder::new(addresses, &watched.master, SentinelServerType::Master)?
            .set_client_to_redis_db(first.redis_settings().db())
            .set_client_to_redis_tcp_settings(at_once())
            .set_client_to_sentinel_tcp_settings(at_once());
        if let Some(user) = first.redis_settings().username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = first.redis_settings().password() {
            builder = builder.set_client_to_redis_password(password);
        }
        if !watched.user.is_empty() {
            builder = builder.set_client_to_sentinel_username(&watched.user);
        }
        if !watched.password.expose_secret().is_empty() {
            builder = builder.set_client_to_sentinel_password(watched.password.expose_secret());
        }
        if !is_secure(first) {
            return builder.build();
        }
        builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
        if let Some(certificates) = self.certificates.clone() {
            builder = builder
                .set_client_to_sentinel_certificates(certificates.clone())
                .set_client_to_redis_certificates(certificates);
        }
        builder.build()
    }
}

impl Link {
    /// Sends a command.
    pub(super) async fn send<T: FromRedisValue>(&mut self, command: &redis::Cmd) -> RedisResult<T> {
        let value: Value = match self {
            Self::Server(connection) => connection.req_packed_command(command).await?,
            Self::Cluster(connection) => connection.req_packed_command(command).await?,
        };
        // An answer may be an error.
        Ok(redis::from_redis_value(value.extract_error()?)?)
    }
}

/// Whether it is spoken to with TLS.
pub(super) fn is_secure(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

fn info(url: &SecretString) -> RedisResult<ConnectionInfo> {
    Ok(url.expose_secret().into_connection_info()?.set_tcp_settings(at_once()))
}

/// Another server, asked in the same way.
fn at(same: &ConnectionInfo, (host, port): &(String, u16)) -> ConnectionInfo {
    let (host, port) = (host.clone(), *port);
    same.clone().set_addr(match same.addr() {
        ConnectionAddr::TcpTls { .. } => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        _ => ConnectionAddr::Tcp(host, port),
    })
}

/// What is sent is short, and somebody waits for it.
pub(super) fn at_once() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

fn nowhere() -> RedisError {
    (redis::ErrorKind::InvalidClientConfig, "no server is named").into()
}
