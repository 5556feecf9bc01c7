//! Where a Redis is, and how it is come by: one server, the master that Sentinels know, or a cluster.

use redis::{
    Client, ConnectionAddr, ConnectionInfo, FromRedisValue, IntoConnectionInfo, RedisError, RedisResult,
    TlsCertificates, TlsMode, Value,
    aio::{ConnectionLike, MultiplexedConnection, PubSubStream},
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
    io::tcp::TcpSettings,
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};
use secrecy::{ExposeSecret, SecretString};
use std::time::Duration;

/// How long a server may take until one listens there: of a cluster, the next is asked then.
const SUBSCRIBING: Duration = Duration::from_secs(1);

/// What is known of a Redis before it is asked.
pub struct Place {
    /// Its servers; of a cluster and of Sentinels some that may know the others.
    pub servers: Servers,
    /// The PEM of the only authorities that may vouch for its certificate; without, those of the system.
    pub authorities: Option<Vec<u8>>,
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
            Servers::Single(url) => self.client(url).map(drop),
            Servers::Cluster(urls) => self.cluster(urls).map(drop),
            Servers::Sentinel(urls, watched) => self.sentinels(urls, watched).map(drop),
        }
    }

    /// Connects, to where it can be written.
    pub(super) async fn connect(&self) -> RedisResult<Link> {
        match &self.servers {
            Servers::Single(url) => Ok(Link::Server(self.client(url)?.get_multiplexed_async_connection().await?)),
            Servers::Cluster(urls) => Ok(Link::Cluster(self.cluster(urls)?.get_async_connection().await?)),
            Servers::Sentinel(urls, watched) => {
                Ok(Link::Server(self.sentinels(urls, watched)?.get_async_connection().await?))
            }
        }
    }

    /// What is said in a channel from now on. In a cluster it is heard at any node.
    pub(super) async fn listen(&self, channel: &str) -> RedisResult<PubSubStream> {
        let client = match &self.servers {
            Servers::Single(url) => self.client(url)?,
            Servers::Cluster(urls) => return self.listen_at_one_of(urls, channel).await,
            Servers::Sentinel(urls, watched) => self.sentinels(urls, watched)?.async_get_client().await?,
        };
        listen(&client, channel).await
    }

    async fn listen_at_one_of(&self, urls: &[SecretString], channel: &str) -> RedisResult<PubSubStream> {
        let mut result = Err(nowhere());
        for url in urls {
            result = listen(&self.client(url)?, channel).await;
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn client(&self, url: &SecretString) -> RedisResult<Client> {
        let info = info(url)?;
        match (info.addr(), self.certificates()) {
            (ConnectionAddr::TcpTls { .. }, Some(certificates)) => Client::build_with_tls(info, certificates),
            _ => Client::open(info),
        }
    }

    fn cluster(&self, urls: &[SecretString]) -> RedisResult<ClusterClient> {
        let infos = urls.iter().map(info).collect::<RedisResult<Vec<_>>>()?;
        let secure = infos.iter().any(|info| matches!(info.addr(), ConnectionAddr::TcpTls { .. }));
        let builder = ClusterClient::builder(infos).tcp_settings(at_once());
        match self.certificates() {
            Some(certificates) if secure => builder.certs(certificates).build(),
            Some(_) | None => builder.build(),
        }
    }

    fn sentinels(&self, urls: &[SecretString], watched: &Watched) -> RedisResult<SentinelClient> {
        let infos = urls.iter().map(info).collect::<RedisResult<Vec<_>>>()?;
        let Some(first) = infos.first() else { return Err(nowhere()) };
        let secure = matches!(first.addr(), ConnectionAddr::TcpTls { .. });
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
        if secure {
            builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
        }
        match self.certificates() {
            Some(certificates) if secure => builder
                .set_client_to_sentinel_certificates(certificates.clone())
                .set_client_to_redis_certificates(certificates)
                .build(),
            Some(_) | None => builder.build(),
        }
    }

    fn certificates(&self) -> Option<TlsCertificates> {
        let root_cert = Some(self.authorities.clone()?);
        Some(TlsCertificates { client_tls: None, root_cert })
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

async fn listen(client: &Client, channel: &str) -> RedisResult<PubSubStream> {
    let listening = async {
        let mut connection = client.get_async_pubsub().await?;
        connection.subscribe(channel).await?;
        Ok(connection.into_on_message())
    };
    let late = (redis::ErrorKind::Io, "no answer in time");
    tokio::time::timeout(SUBSCRIBING, listening).await.unwrap_or_else(|_| Err(late.into()))
}

fn info(url: &SecretString) -> RedisResult<ConnectionInfo> {
    Ok(url.expose_secret().into_connection_info()?.set_tcp_settings(at_once()))
}

/// What is sent is short, and somebody waits for it.
fn at_once() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

fn nowhere() -> RedisError {
    (redis::ErrorKind::InvalidClientConfig, "no server is named").into()
}
