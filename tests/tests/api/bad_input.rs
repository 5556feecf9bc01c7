//! Tests that every interface responds to hostile input with a documented error or a denial, and never with a server
//! error or an allowed request.
//!
//! `routes` has the list of all routes, which the tests go through. `contract` reads the table in docs/use/api.md, which lists the
//! routes and their errors for users.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests panic on unexpected values")]

mod bodies;
mod cancelled;
mod checks;
mod claims;
mod contract;
mod credentials;
mod description;
pub(super) mod fixture;
mod logs;
mod paths;
mod refusals;
pub(super) mod routes;
mod signer;
mod streams;
mod wire;
