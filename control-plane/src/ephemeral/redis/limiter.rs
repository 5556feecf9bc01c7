//! The rate limiter that counts calls in Redis, or in memory while Redis is unavailable.

use super::client::RedisClient;
use crate::ephemeral::{
    memory::MemoryRateLimiter,
    rate_limit::{DecisionFuture, RateLimit, RateLimitBackend, RateLimitDecision, RateLimiter},
};
use std::sync::Arc;

/// Counts calls in Redis together with all replicas.
pub struct RedisRateLimiter {
    client: Arc<RedisClient>,
    fallback: MemoryRateLimiter,
}

impl RedisRateLimiter {
    /// A rate limiter that uses a Redis client, and another rate limiter while Redis is unavailable.
    pub const fn new(client: Arc<RedisClient>, fallback: MemoryRateLimiter) -> Self {
        Self { client, fallback }
    }

    async fn decide(&self, limits: &[RateLimit], count_call: bool) -> RateLimitDecision {
        let script = &self.client.script;
        let decision = self.client.request(async |connection| script.run(connection, limits, count_call).await);
        match decision.await {
            Some(decision) => decision,
            None if count_call => self.fallback.acquire(limits).await,
            None => self.fallback.peek(limits).await,
        }
    }
}

impl RateLimiter for RedisRateLimiter {
    fn acquire<'a>(&'a self, limits: &'a [RateLimit]) -> DecisionFuture<'a> {
        Box::pin(self.decide(limits, true))
    }

    fn peek<'a>(&'a self, limits: &'a [RateLimit]) -> DecisionFuture<'a> {
        Box::pin(self.decide(limits, false))
    }

    fn backend(&self) -> RateLimitBackend {
        if self.client.is_connected() { RateLimitBackend::Redis } else { RateLimitBackend::MemoryFallback }
    }
}
