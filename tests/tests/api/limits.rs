//! The default rate limits, tested with a manual clock.
//!
//! `auth` tests the limits of agents, `callers` the limits of services and human users, `clients` the command line and the client
//! library, `owners` the limits of owners of services and of agents at many addresses, `spellings` attempts to bypass limits,
//! `abandoned` clients that leave before the response. `fixture` runs the control plane in this process with real sockets, so that
//! tests can advance its clock.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

mod abandoned;
mod auth;
mod callers;
mod clients;
mod fixture;
mod owners;
mod spellings;
