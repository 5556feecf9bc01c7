//! The default rate limits, tested with a manual clock.
//!
//! - `auth`: limits of agents
//! - `callers`: limits of services and of human users
//! - `clients`: what the command line and the client library do when they reach a limit
//! - `owners`: limits of the owners of services, and of one agent at many addresses
//! - `spellings`: attempts to get around a limit with another spelling of a path
//! - `abandoned`: clients that disconnect before the response
//! - `fixture`: a control plane in this process with real sockets, whose clock a test can advance

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

mod abandoned;
mod auth;
mod callers;
mod clients;
mod fixture;
mod owners;
mod spellings;
