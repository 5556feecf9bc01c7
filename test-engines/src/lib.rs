//! Starts PostgreSQL and Redis for tests, and controls processes and clocks.
//!
//! The unit tests of the control plane and the test harness in `tests` use this crate. It depends on no server of the workspace, so
//! Cargo builds it early.

#![expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "the fixtures panic if they cannot start or use a server"
)]

mod manual_clock;
pub mod postgres;
pub mod process;
mod redis;
pub mod tools;

pub use manual_clock::ManualClock;
pub use postgres::Postgres;
pub use process::eventually;
pub use redis::{Redis, RedisCluster, Sentinel, TlsFiles};
