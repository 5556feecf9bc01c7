//! What is said in a channel, from a server that is known to be there.

use redis::{
    Client, RedisResult, Value,
    aio::{PubSubSink, PubSubStream},
};
use std::time::Duration;
use tokio_stream::StreamExt;

/// How long a server may take until one listens there: of a cluster, the next is asked then.
const SUBSCRIBING: Duration = Duration::from_secs(1);

/// After so long a silence it is asked whether it is still there, and given as much time again. A server that hangs, or
/// is behind a network that is gone, ends no connection: nothing would be heard from it, and nothing missed.
const SILENCE: Duration = Duration::from_secs(1);

/// Words as they come.
pub(super) struct Words {
    sink: PubSubSink,
    stream: PubSubStream,
}

impl Words {
    /// Listens there.
    pub(super) async fn listen(client: &Client, channel: &str) -> RedisResult<Self> {
        let listening = async {
            let mut connection = client.get_async_pubsub().await?;
            connection.subscribe(channel).await?;
            let (sink, stream) = connection.split();
            Ok(Self { sink, stream })
        };
        let late = (redis::ErrorKind::Io, "no answer in time");
        tokio::time::timeout(SUBSCRIBING, listening).await.unwrap_or_else(|_| Err(late.into()))
    }

    /// Waits for the next word; `None` if there comes none any more.
    pub(super) async fn next(&mut self) -> Option<()> {
        loop {
            if let Ok(word) = tokio::time::timeout(SILENCE, self.stream.next()).await {
                return word.map(drop);
            }
            let _is_there: Value = tokio::time::timeout(SILENCE, self.sink.ping()).await.ok()?.ok()?;
        }
    }
}
