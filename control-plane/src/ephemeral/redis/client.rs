//! The connection to Redis that all requests share.

use super::{connection::RedisConnection, endpoint::RedisEndpoint, script::RateLimitScript};
use crate::metrics::{RedisMetrics, RedisOutcome};
use arc_swap::ArcSwapOption;
use redis::{RedisResult, TlsCertificates};
use std::{fmt::Display, sync::Arc, time::Duration};
use tokio::{sync::Notify, time::timeout};

/// Timeout of a request to Redis.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_millis(250);

/// A client of one Redis, which may be unavailable.
pub struct RedisClient {
    pub(super) endpoint: RedisEndpoint,
    pub(super) script: RateLimitScript,
    /// The channel on which replicas notify each other of changes.
    pub(super) channel: String,
    /// Notified of each message in `channel`.
    pub(super) messages: Arc<Notify>,
    /// `None` while Redis is unavailable.
    connection: ArcSwapOption<RedisConnection>,
    metrics: RedisMetrics,
}

impl RedisClient {
    /// A client whose keys contain the name of the deployment. It is not connected until [`Self::connect_at_startup`] or
    /// [`Self::maintain_connection`] runs.
    pub fn new(endpoint: RedisEndpoint, deployment: &str, metrics: RedisMetrics) -> Self {
        // A hash tag (in braces) puts all keys on one node of a cluster, because a script may use only keys of one node.
        let tag = format!("{{countersign:{deployment}}}");
        metrics.initialize(endpoint.kind());
        Self {
            script: RateLimitScript::new(&tag),
            channel: format!("{tag}:changed"),
            endpoint,
            messages: Arc::default(),
            connection: ArcSwapOption::empty(),
            metrics,
        }
    }

    /// Uses other certificates for the next connections. The current connection continues.
    pub fn replace_certificates(&self, certificates: TlsCertificates) {
        self.endpoint.replace_certificates(certificates);
    }

    /// Whether the last request or probe succeeded.
    pub fn is_connected(&self) -> bool {
        self.connection.load().is_some()
    }

    /// The current connection; `None` while Redis is unavailable.
    pub(super) fn connection(&self) -> Option<RedisConnection> {
        self.connection.load().as_deref().cloned()
    }

    /// Sends a request; `None` if Redis is unavailable, fails or times out. After a failure or timeout, drops the connection.
    pub(super) async fn request<T>(&self, send: impl AsyncFnOnce(&mut RedisConnection) -> RedisResult<T>) -> Option<T> {
        let Some(connection) = self.connection.load_full() else {
            self.metrics.record(RedisOutcome::NotSent);
            return None;
        };
        match timeout(REQUEST_TIMEOUT, send(&mut RedisConnection::clone(&connection))).await {
            Ok(Ok(response)) => {
                self.metrics.record(RedisOutcome::Succeeded);
                Some(response)
            }
            Ok(Err(error)) => {
                self.metrics.record(RedisOutcome::Failed);
                self.disconnect(&connection, &error);
                None
            }
            Err(_) => {
                self.metrics.record(RedisOutcome::TimedOut);
                self.disconnect(&connection, &"timed out");
                None
            }
        }
    }

    /// Uses a connection for the next requests.
    pub(super) fn set_connection(&self, connection: RedisConnection) {
        self.connection.store(Some(Arc::new(connection)));
        self.metrics.set_up(self.endpoint.kind(), true);
        tracing::info!("redis connected: rate limits are counted together with all replicas");
        // We may have missed messages before we subscribed, so we act as if a message had arrived.
        self.messages.notify_one();
    }

    /// Drops a connection, unless another one is in use already, and logs the loss once. [`Self::maintain_connection`] reconnects.
    fn disconnect(&self, failed: &Arc<RedisConnection>, reason: &dyn Display) {
        let current = self.connection.compare_and_swap(failed, None);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, failed)) {
            self.metrics.set_up(self.endpoint.kind(), false);
            tracing::warn!(%reason, "redis connection lost: this replica counts rate limits in memory until it reconnects");
        }
    }
}
