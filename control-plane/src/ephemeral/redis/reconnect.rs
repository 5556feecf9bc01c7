//! The background task that connects to Redis, probes the connection and reconnects.

use super::{
    client::{REQUEST_TIMEOUT, RedisClient},
    connection::RedisConnection,
};
use crate::ephemeral::rate_limit::{CallerKind, Quota, RateLimit, RateLimitKey};
use redis::RedisError;
use std::{convert::Infallible, time::Duration};

/// Timeout for connecting to Redis, including the discovery of the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the start of the process waits for the first connection.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval between probes. Probes detect a lost connection even if there are no requests.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Number of probes between two discoveries of the nodes of a cluster.
const PROBES_PER_DISCOVERY: u32 = 10;

/// The pause before the first attempt to reconnect, and the maximum pause. The pause doubles after each failed attempt.
const RECONNECT_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Why connecting failed.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error(transparent)]
    Redis(#[from] RedisError),
    #[error("timed out")]
    TimedOut,
}

impl RedisClient {
    /// Tries to connect once, for at most a second, so that a replica uses an available Redis from its first request on.
    pub async fn connect_at_startup(&self) {
        let result = tokio::time::timeout(STARTUP_TIMEOUT, self.connect()).await.unwrap_or(Err(ConnectError::TimedOut));
        match result {
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

    /// Probes the connection and reconnects when it is lost; never returns.
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

    /// Probes until the connection is lost. Returns false if the client was not connected.
    async fn probe_until_lost(&self) -> bool {
        let mut changes = self.connection_changes();
        let mut probes = 0_u32;
        while self.is_connected() {
            changes.mark_unchanged();
            probes = probes.wrapping_add(1);
            // If the connection is lost, the pause between two probes ends early.
            let _ignored = tokio::time::timeout(PROBE_INTERVAL, changes.changed()).await;
            let probe = probe();
            let run = async |connection: &mut RedisConnection| self.script.run(connection, &probe, true).await;
            // A failed request disconnects the client, which ends the probe loop.
            let _ignored = self.request(run).await;
            if let (Some(mut connection), 0) = (self.connection(), probes % PROBES_PER_DISCOVERY) {
                self.discover_nodes(&mut connection).await;
            }
        }
        probes > 0
    }

    /// Connects and probes the connection.
    async fn connect(&self) -> Result<RedisConnection, ConnectError> {
        let connection = tokio::time::timeout(CONNECT_TIMEOUT, self.endpoint.connect());
        let mut connection = connection.await.map_err(|_| ConnectError::TimedOut)??;
        let probe = probe();
        let decision = tokio::time::timeout(REQUEST_TIMEOUT, self.script.run(&mut connection, &probe, true));
        decision.await.map_err(|_| ConnectError::TimedOut)??;
        self.discover_nodes(&mut connection).await;
        Ok(connection)
    }

    async fn discover_nodes(&self, connection: &mut RedisConnection) {
        // If the discovery of the cluster nodes times out, the previously discovered nodes remain stored.
        let _ignored = tokio::time::timeout(REQUEST_TIMEOUT, self.endpoint.discover_nodes(connection)).await;
    }
}

/// The rate limit that probes of the Redis connection use. Running the rate limit script with the probe limit fails where calls
/// cannot be counted, for example on a read-only replica.
fn probe() -> [RateLimit; 1] {
    // The window of the probe limit is so short that each probe first removes the call of the previous probe, which frees
    // memory in a full Redis.
    let quota = Quota { max_calls: u32::MAX, window: Duration::from_millis(1) };
    [RateLimit { key: RateLimitKey::new(CallerKind::Authenticated, &[b"probe"]), quota }]
}
