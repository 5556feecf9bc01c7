//! The stage for end-to-end tests: the real control plane, the real sidecar, a real Envoy and a service
//! that says what it saw.
//!
//! Neighbours: the binaries of this workspace, which it starts as a user would; the tests in this
//! folder, which say what must be true. The rule of the room: everything listens on loopback on free
//! ports, lives in a temporary folder, and ends with the test. Nothing sleeps: it waits for conditions.

#![expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a stage that cannot be set ends the test, and says why"
)]

pub mod agent;
pub mod command_line;
pub mod control_plane;
pub mod database;
pub mod description;
pub mod engines;
pub mod envoy;
pub mod follower;
pub mod hand;
pub mod issuer;
pub mod judges;
pub mod listening;
pub mod openssl;
pub mod postgres;
pub mod process;
pub mod production;
pub mod prometheus;
pub mod raw;
pub mod receiver;
pub mod redis;
pub mod sidecar;
pub mod standard_webhooks;
pub mod stepped;
pub mod target;
mod tls;
pub mod tools;
pub mod upstream;
pub mod web;
pub mod world;

pub use agent::Agent;
pub use command_line::Shell;
pub use control_plane::ControlPlane;
pub use database::Database;
pub use envoy::Envoy;
pub use follower::Follower;
pub use hand::Hand;
pub use issuer::{Issuer, SigningKey};
pub use judges::{Judges, Opinion};
pub use listening::Listening;
pub use postgres::Postgres;
pub use process::eventually;
pub use production::Production;
pub use prometheus::Prometheus;
pub use raw::RawRequest;
pub use receiver::{Received, Receiver, Refusal, Reply};
pub use redis::{Papers, Redis, RedisCluster, Sentinel};
pub use sidecar::Sidecar;
pub use standard_webhooks::StandardWebhooks;
pub use stepped::{Server, SteppedPlane};
pub use target::{Cause, Target};
pub use upstream::Upstream;
pub use web::{Answer, Site};
pub use world::World;
