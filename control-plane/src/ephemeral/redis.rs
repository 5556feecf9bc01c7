//! The Redis client that all replicas use for shared rate limits and for notifications that the database has changed.
//!
//! A request waits for Redis at most [`client::REQUEST_TIMEOUT`]. While Redis fails or does not respond, this replica counts
//! calls in its own memory, and a background task reconnects ([`RedisClient::maintain_connection`]); requests never reconnect.
//! Invariant: no call is allowed without being counted.

mod client;
mod cluster;
mod connection;
mod endpoint;
mod limiter;
mod notifications;
mod reconnect;
mod script;
#[cfg(test)]
mod tests;

pub use client::RedisClient;
pub use endpoint::{RedisEndpoint, RedisServers, SentinelTarget};
pub use limiter::RedisRateLimiter;
