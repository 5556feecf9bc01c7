//! The connection to Redis that all requests share, and its state.

use super::{connection::RedisConnection, endpoint::RedisEndpoint, script::RateLimitScript};
use crate::metrics::{RedisMetrics, RedisOutcome};
use redis::{RedisResult, TlsCertificates};
use std::time::Duration;
use tokio::sync::watch;

/// Timeout of a request to Redis.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_millis(250);

/// A client of one Redis, which may be unavailable.
pub struct RedisClient {
    pub(super) endpoint: RedisEndpoint,
    pub(super) script: RateLimitScript,
    /// The channel on which replicas notify each other of changes.
    pub(super) channel: String,
    state: watch::Sender<ConnectionState>,
    metrics: RedisMetrics,
}

/// The current connection, if Redis is available.
#[derive(Default)]
pub(super) struct ConnectionState {
    connection: Option<RedisConnection>,
    /// Counts connections, so that a request that failed on an old connection does not drop the new one.
    generation: u64,
}

impl RedisClient {
    /// A client for the Countersign deployment with the name `deployment`. The client is not connected until
    /// [`Self::connect_at_startup`] or [`Self::maintain_connection`] runs.
    pub fn new(endpoint: RedisEndpoint, deployment: &str, metrics: RedisMetrics) -> Self {
        // A hash tag (in braces) puts all keys on one node of a cluster, because a script may use only keys of one node.
        let tag = format!("{{countersign:{deployment}}}");
        metrics.initialize(endpoint.kind());
        Self {
            script: RateLimitScript::new(&tag),
            channel: format!("{tag}:changed"),
            endpoint,
            state: watch::Sender::default(),
            metrics,
        }
    }

    /// Uses other certificates for the next connections. The current connection continues.
    pub fn replace_certificates(&self, certificates: TlsCertificates) {
        self.endpoint.replace_certificates(certificates);
    }

    /// Whether the last request or probe succeeded.
    pub fn is_connected(&self) -> bool {
        self.state.borrow().connection.is_some()
    }

    /// The current connection; `None` while Redis is unavailable.
    pub(super) fn connection(&self) -> Option<RedisConnection> {
        self.state.borrow().connection.clone()
    }

    /// A receiver that is notified when a connection is established or lost.
    pub(super) fn connection_changes(&self) -> watch::Receiver<ConnectionState> {
        self.state.subscribe()
    }

    /// Sends a request; `None` if Redis is unavailable, fails or times out.
    pub(super) async fn request<T>(&self, send: impl AsyncFnOnce(&mut RedisConnection) -> RedisResult<T>) -> Option<T> {
        let (connection, generation) = {
            let state = self.state.borrow();
            (state.connection.clone(), state.generation)
        };
        let Some(mut connection) = connection else {
            self.metrics.record(RedisOutcome::NotSent);
            return None;
        };
        match tokio::time::timeout(REQUEST_TIMEOUT, send(&mut connection)).await {
            Ok(Ok(response)) => {
                self.metrics.record(RedisOutcome::Succeeded);
                Some(response)
            }
            Ok(Err(error)) => {
                self.metrics.record(RedisOutcome::Failed);
                self.disconnect(generation, &error);
                None
            }
            Err(_) => {
                self.metrics.record(RedisOutcome::TimedOut);
                self.disconnect(generation, &"timed out");
                None
            }
        }
    }

    /// Replaces the current connection.
    pub(super) fn set_connection(&self, connection: RedisConnection) {
        self.state.send_modify(|state| {
            let generation = state.generation + 1;
            *state = ConnectionState { connection: Some(connection), generation };
        });
        self.metrics.set_up(self.endpoint.kind(), true);
        tracing::info!("redis connected: rate limits are counted together with all replicas");
    }

    /// Drops the connection with the number `generation` and logs the loss once. The background task
    /// [`Self::maintain_connection`] connects to Redis again.
    fn disconnect(&self, generation: u64, reason: &dyn std::fmt::Display) {
        let was_connected =
            self.state.send_if_modified(|state| state.generation == generation && state.connection.take().is_some());
        if was_connected {
            self.metrics.set_up(self.endpoint.kind(), false);
            tracing::warn!(%reason, "redis connection lost: this replica counts rate limits in memory until it reconnects");
        }
    }
}
