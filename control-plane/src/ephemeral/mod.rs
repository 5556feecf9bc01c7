//! State that may be lost: rate-limit counters, and notifications between replicas that the database has changed.
//!
//! `http` and `sync` limit callers with this module; `app` connects the notifications to the store. If the counters are lost, callers
//! get a few more calls for one minute. If a notification is lost, a replica reads a change up to a quarter of a second later.
//! Invariants: a counted call expires with its window, and no call is allowed without being counted.
//! [`MemoryRateLimiter`] serves one process, [`RedisRateLimiter`] several; both pass the tests in `conformance`.

#[cfg(test)]
mod conformance;
mod failures;
mod memory;
mod rate_limit;
mod redis;

pub use failures::Failures;
pub use memory::MemoryRateLimiter;
pub use rate_limit::{
    CallerKind, Quota, QuotaStatus, RateLimit, RateLimitBackend, RateLimitDecision, RateLimitKey, RateLimiter,
};
pub use redis::{RedisClient, RedisEndpoint, RedisRateLimiter, RedisServers, SentinelTarget};
