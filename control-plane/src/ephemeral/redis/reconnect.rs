//! The background task that probes the connection to Redis, and connects again when it is lost.

use super::{
    client::{REQUEST_TIMEOUT, RedisClient},
    cluster::{find_unreachable_node, remember_cluster_nodes},
    connection::RedisConnection,
};
use crate::ephemeral::rate_limit::{CallerKind, Quota, RateLimit, RateLimitKey};
use redis::{ErrorKind, RedisResult};
use std::{convert::Infallible, time::Duration};
use tokio::time::{sleep, timeout};

/// Timeout for connecting to Redis, including the discovery of the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the start of the process waits for the first connection.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval between probes, and between attempts to connect. Probes detect a lost connection even if there are no requests.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

impl RedisClient {
    /// Tries to connect once, for at most a second, so that a replica uses an available Redis from its first request on.
    pub async fn connect_at_startup(&self) {
        let Err(error) = within(STARTUP_TIMEOUT, self.connect()).await else { return };
        let diagnosis = timeout(STARTUP_TIMEOUT, find_unreachable_node(&self.endpoint)).await.unwrap_or_default();
        let reason = diagnosis.map_or_else(|| error.to_string(), |diagnosis| format!("{error}; {diagnosis}"));
        tracing::warn!(reason, "redis unavailable: this replica counts rate limits in memory until it connects");
    }

    /// Probes the connection and reconnects when it is lost; never returns.
    pub async fn maintain_connection(&self) -> Infallible {
        loop {
            if let Some(mut connection) = self.connection() {
                // The nodes of a cluster may be replaced while we run. If we cannot read them, we keep those that we know.
                let _ignored = timeout(REQUEST_TIMEOUT, remember_cluster_nodes(&self.endpoint, &mut connection)).await;
            }
            sleep(PROBE_INTERVAL).await;
            let probe = async |connection: &mut RedisConnection| self.probe(connection).await;
            if self.is_connected() && self.request(probe).await.is_some() {
                continue;
            }
            if let Err(reason) = self.connect().await {
                tracing::debug!(%reason, "reconnecting to redis failed");
            }
        }
    }

    /// Connects to a server that accepts writes.
    async fn connect(&self) -> RedisResult<()> {
        // The future is on the heap, because the futures of the client library are large.
        let connecting = Box::pin(self.endpoint.connect(&self.messages));
        let mut connection = within(CONNECT_TIMEOUT, connecting).await?;
        within(REQUEST_TIMEOUT, self.probe(&mut connection)).await?;
        self.set_connection(connection);
        Ok(())
    }

    /// Runs the rate limit script, which fails where calls cannot be counted, for example on a read-only replica. Then subscribes
    /// again, because another node of the cluster may serve the channel now.
    async fn probe(&self, connection: &mut RedisConnection) -> RedisResult<()> {
        // With a short window, each probe removes the last probe's call before it adds its own. Even a full Redis allows this.
        let quota = Quota { max_calls: u32::MAX, window: Duration::from_millis(1) };
        let key = RateLimitKey::new(CallerKind::Authenticated, &[b"probe"]);
        self.script.run(connection, &[RateLimit { key, quota }], true).await?;
        connection.subscribe(&self.channel).await
    }
}

/// Fails if `future` takes longer than `limit`.
async fn within<T>(limit: Duration, future: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    timeout(limit, future).await.unwrap_or_else(|_| Err((ErrorKind::Io, "timed out").into()))
}
