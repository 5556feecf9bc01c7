//! An open connection, to a single server or to a cluster.

use redis::{
    Cmd, FromRedisValue, PushInfo, PushKind, RedisResult,
    aio::{AsyncPushSender, MultiplexedConnection, SendError},
    cluster_async::ClusterConnection,
};
use std::sync::Arc;
use tokio::sync::Notify;

/// A connection that concurrent requests share.
#[derive(Clone)]
pub(super) enum RedisConnection {
    Server(MultiplexedConnection),
    /// A connection to a cluster, which connects by itself to further nodes, even to nodes that are not configured.
    Cluster(ClusterConnection),
}

impl RedisConnection {
    pub(super) async fn send<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        match self {
            Self::Server(connection) => command.query_async(connection).await,
            Self::Cluster(connection) => command.query_async(connection).await,
        }
    }

    /// Subscribes to a channel. Nothing changes if the connection is subscribed already.
    pub(super) async fn subscribe(&mut self, channel: &str) -> RedisResult<()> {
        match self {
            Self::Server(connection) => connection.subscribe(channel).await,
            Self::Cluster(connection) => connection.subscribe(channel).await,
        }
    }
}

/// Handles what a server sends without a request: notifies `messages` of each message in a channel, and ignores everything else.
pub(super) fn push_sender(messages: &Arc<Notify>) -> impl AsyncPushSender + use<> {
    let messages = messages.clone();
    move |push: PushInfo| {
        if push.kind == PushKind::Message {
            messages.notify_one();
        }
        Ok::<_, SendError>(())
    }
}
