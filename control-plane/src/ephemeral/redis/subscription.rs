//! A subscription to a channel that detects an unresponsive server.

use redis::{
    Client, RedisResult, Value,
    aio::{PubSubSink, PubSubStream},
};
use std::time::Duration;
use tokio_stream::StreamExt;

/// Timeout for subscribing. After this timeout, the client of a cluster tries to subscribe at the next node.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Time without a message after which the client pings the server, and timeout of the ping. A server that hangs, or whose
/// network is down, does not close the connection: without pings, the subscription would look idle forever.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// A subscription to one channel.
pub(super) struct Subscription {
    sink: PubSubSink,
    stream: PubSubStream,
}

impl Subscription {
    /// Subscribes to a channel.
    pub(super) async fn open(client: &Client, channel: &str) -> RedisResult<Self> {
        let subscribing = async {
            let mut connection = client.get_async_pubsub().await?;
            connection.subscribe(channel).await?;
            let (sink, stream) = connection.split();
            Ok(Self { sink, stream })
        };
        let timed_out = (redis::ErrorKind::Io, "timed out");
        tokio::time::timeout(SUBSCRIBE_TIMEOUT, subscribing).await.unwrap_or_else(|_| Err(timed_out.into()))
    }

    /// Waits for the next message; `None` when the subscription has ended.
    pub(super) async fn next(&mut self) -> Option<()> {
        loop {
            if let Ok(message) = tokio::time::timeout(IDLE_TIMEOUT, self.stream.next()).await {
                return message.map(drop);
            }
            let _pong: Value = tokio::time::timeout(IDLE_TIMEOUT, self.sink.ping()).await.ok()?.ok()?;
        }
    }
}
