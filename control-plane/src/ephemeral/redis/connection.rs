//! An open connection, to a single server or to a cluster.

use redis::{
    ConnectionAddr, ConnectionInfo, FromRedisValue, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster_async::ClusterConnection,
    io::tcp::TcpSettings,
};

/// A connection that concurrent requests share.
#[derive(Clone)]
pub(super) enum RedisConnection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl RedisConnection {
    /// Sends a command.
    pub(super) async fn send<T: FromRedisValue>(&mut self, command: &redis::Cmd) -> RedisResult<T> {
        let value: Value = match self {
            Self::Server(connection) => connection.req_packed_command(command).await?,
            Self::Cluster(connection) => connection.req_packed_command(command).await?,
        };
        // A value nested in a reply of Redis may be an error.
        Ok(redis::from_redis_value(value.extract_error()?)?)
    }
}

/// Whether connections to this server use TLS.
pub(super) fn uses_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

/// Disables Nagle's algorithm, because commands are short and a request waits for each reply.
pub(super) fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}
