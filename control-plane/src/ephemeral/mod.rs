//! State that may be lost: rate-limit counters, and notifications between replicas that the database has changed.
//!
//! `http` counts callers here; `app` connects the notifications to the store. No correct answer depends on this module: if
//! its state is lost, a few more calls than the limit pass for one minute, or a replica reads a change up to a quarter of
//! a second later. Nothing is kept longer than its window, and a call that cannot be counted is refused.
//! [`MemoryRateLimiter`] serves one process, [`RedisRateLimiter`] several; both pass the tests in `conformance`.

#[cfg(test)]
mod conformance;
mod memory;
mod rate_limit;
mod redis;

pub use memory::MemoryRateLimiter;
pub use rate_limit::{
    CallerKind, Quota, QuotaStatus, RateLimit, RateLimitBackend, RateLimitDecision, RateLimitKey, RateLimiter,
};
pub use redis::{RedisClient, RedisEndpoint, RedisRateLimiter, RedisServers, SentinelTarget};
