//! The default rate limits, tested with a manual clock.
//!
//! `auth` tests limits of agents, `callers` those of services and human users, `clients` the behaviour of the CLI and the
//! client library, `spellings` attempts to bypass limits. `fixture` runs the control plane in this process, so that its
//! clock can be advanced, with real sockets.

#![expect(clippy::unwrap_used, reason = "a test says what it expects")]

mod auth;
mod callers;
mod clients;
mod fixture;
mod spellings;
