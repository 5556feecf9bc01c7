//! Test harness: starts the real control plane, sidecar, Envoy, PostgreSQL, Redis, Prometheus and test servers.
//!
//! The test harness depends on the binaries of the workspace. Every server that a test starts listens on a free loopback port,
//! keeps its files in a temporary folder and ends with the test. Helper functions wait for conditions and do not sleep.

#![expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "the harness panics if it cannot start or use a server"
)]

pub mod agent;
pub mod audiences;
pub mod bulk;
pub mod callgrind;
pub mod command_line;
pub mod control_plane;
pub mod database;
pub mod description;
pub mod engines;
pub mod environment;
pub mod envoy;
pub mod fault_libraries;
pub mod follower;
pub mod h2;
pub mod http;
pub mod in_process;
pub mod issuer;
pub mod jwt;
pub mod nginx;
pub mod oauth;
pub mod openssl;
pub mod patroni;
pub mod production_server;
pub mod prometheus;
pub mod quantiles;
pub mod raw;
pub mod receiver;
pub mod sidecar;
pub mod standard_webhooks;
pub mod target;
pub mod tcp_proxy;
pub mod tenant;
pub mod tls;
pub mod token_server;
pub mod upstream;
pub mod verifiers;
pub mod webhook_listener;

pub use countersign_test_engines::{
    ManualClock, Postgres, Redis, RedisCluster, Sentinel, TlsFiles, eventually, postgres, process, tools,
};

pub use agent::Agent;
pub use command_line::Shell;
pub use control_plane::ControlPlane;
pub use database::Database;
pub use environment::Environment;
pub use envoy::Envoy;
pub use fault_libraries::{FailingCalls, WrongClock};
pub use follower::Follower;
pub use http::{HttpClient, HttpResponse};
pub use in_process::{InProcessServer, Server};
pub use issuer::{Issuer, SigningKey};
pub use nginx::Nginx;
pub use patroni::PatroniCluster;
pub use production_server::ProductionServer;
pub use prometheus::Prometheus;
pub use raw::RawRequest;
pub use receiver::{Received, Receiver, RefusingPort, Reply};
pub use sidecar::Sidecar;
pub use standard_webhooks::StandardWebhooks;
pub use target::{EventSource, Target};
pub use tcp_proxy::TcpProxy;
pub use tenant::Tenant;
pub use token_server::TokenServer;
pub use upstream::Upstream;
pub use verifiers::{Verifiers, VerifyOutcome};
pub use webhook_listener::WebhookListener;
