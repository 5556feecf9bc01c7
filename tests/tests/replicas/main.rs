//! Tests of several control planes that share a PostgreSQL and a Redis.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]
#![expect(clippy::print_stdout, reason = "prints measurements")]

mod fleet;
mod redis;
