//! The rate limiter that counts calls in Redis, or in memory while Redis is unavailable.

use super::client::RedisClient;
use crate::ephemeral::{
    memory::MemoryRateLimiter,
    rate_limit::{DecisionFuture, RateLimit, RateLimitBackend, RateLimiter},
};
use std::sync::Arc;

/// Counts calls in Redis together with all replicas.
pub struct RedisRateLimiter {
    client: Arc<RedisClient>,
    fallback: MemoryRateLimiter,
}

impl RedisRateLimiter {
    /// A rate limiter that uses a Redis client, and `fallback` while Redis is unavailable.
    pub const fn new(client: Arc<RedisClient>, fallback: MemoryRateLimiter) -> Self {
        Self { client, fallback }
    }
}

impl RateLimiter for RedisRateLimiter {
    fn decide<'a>(&'a self, limits: &'a [RateLimit], count_call: bool) -> DecisionFuture<'a> {
        let script = &self.client.script;
        Box::pin(async move {
            let request = self.client.request(async |connection| script.run(connection, limits, count_call).await);
            match request.await {
                Some(decision) => decision,
                None => self.fallback.decide(limits, count_call).await,
            }
        })
    }

    fn backend(&self) -> RateLimitBackend {
        if self.client.is_connected() { RateLimitBackend::Redis } else { RateLimitBackend::MemoryFallback }
    }
}
