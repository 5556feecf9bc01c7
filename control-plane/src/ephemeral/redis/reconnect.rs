//! The background task that connects to Redis, probes the connection and reconnects.

use super::{
    client::{REQUEST_TIMEOUT, RedisClient},
    connection::RedisConnection,
};
use crate::ephemeral::rate_limit::{CallerKind, Quota, RateLimit, RateLimitKey};
use redis::RedisError;
use std::{convert::Infallible, time::Duration};

/// How long connecting may take, discovery of the server included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the process waits for the first connection when it starts.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval of probes, which find a lost connection while no requests come.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The nodes of a cluster are looked up once in this many probes.
const PROBES_PER_DISCOVERY: u32 = 10;

/// The pause before the first attempt to reconnect; it doubles after each failure, up to the second value.
const RECONNECT_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Why connecting failed.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error(transparent)]
    Redis(#[from] RedisError),
    #[error("no answer in time")]
    TimedOut,
}

impl RedisClient {
    /// Tries to connect once, for at most a second, so that a replica that starts beside an available Redis uses it from its
    /// first request on.
    pub async fn connect_at_startup(&self) {
        let connected =
            tokio::time::timeout(STARTUP_TIMEOUT, self.connect()).await.unwrap_or(Err(ConnectError::TimedOut));
        match connected {
            Ok(connection) => self.set_connection(connection),
            Err(error) => {
                let diagnosis = tokio::time::timeout(STARTUP_TIMEOUT, self.endpoint.diagnose_cluster());
                let diagnosis = diagnosis.await.unwrap_or_default();
                let reason = diagnosis.map_or_else(|| error.to_string(), |diagnosis| format!("{error}; {diagnosis}"));
                tracing::warn!(
                    reason,
                    "redis unavailable: this replica counts rate limits in memory until it connects"
                );
            }
        }
    }

    /// Keeps the client connected; never returns.
    pub async fn maintain_connection(&self) -> Infallible {
        let mut pause = RECONNECT_PAUSES.0;
        loop {
            if self.probe_until_lost().await {
                pause = RECONNECT_PAUSES.0;
            }
            tokio::time::sleep(pause).await;
            pause = RECONNECT_PAUSES.1.min(pause * 2);
            match self.connect().await {
                Ok(connection) => self.set_connection(connection),
                Err(reason) => tracing::debug!(%reason, "reconnecting to redis failed"),
            }
        }
    }

    /// Probes until the connection is lost. Returns whether there was one.
    async fn probe_until_lost(&self) -> bool {
        let mut changes = self.connection_changes();
        let mut probes = 0_u32;
        while self.is_connected() {
            changes.mark_unchanged();
            probes = probes.wrapping_add(1);
            let _lost_meanwhile = tokio::time::timeout(PROBE_INTERVAL, changes.changed()).await;
            let probe = probe();
            let run = async |connection: &mut RedisConnection| self.script.run(connection, &probe, true).await;
            let _disconnected_on_failure = self.request(run).await;
            if let (Some(mut connection), 0) = (self.connection(), probes % PROBES_PER_DISCOVERY) {
                self.discover_nodes(&mut connection).await;
            }
        }
        probes > 0
    }

    /// Connects and probes the connection.
    async fn connect(&self) -> Result<RedisConnection, ConnectError> {
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, self.endpoint.connect());
        let mut connection = connecting.await.map_err(|_| ConnectError::TimedOut)??;
        let probe = probe();
        let probed = tokio::time::timeout(REQUEST_TIMEOUT, self.script.run(&mut connection, &probe, true));
        probed.await.map_err(|_| ConnectError::TimedOut)??;
        self.discover_nodes(&mut connection).await;
        Ok(connection)
    }

    async fn discover_nodes(&self, connection: &mut RedisConnection) {
        let _unchanged_on_timeout =
            tokio::time::timeout(REQUEST_TIMEOUT, self.endpoint.discover_nodes(connection)).await;
    }
}

/// Tests what requests need: that the script runs and that it can write. On a read-only replica no call could be counted.
fn probe() -> [RateLimit; 1] {
    // The window is so short that each probe starts a new one: a full Redis can still remove the old one and then add.
    let quota = Quota { max_calls: u32::MAX, window: Duration::from_millis(1) };
    [RateLimit { key: RateLimitKey::new(CallerKind::Authenticated, &[b"probe"]), quota }]
}
