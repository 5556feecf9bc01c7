//! Bad input at every door: the answer is the error of the specification or a denial, never a fault of ours,
//! never an allow.
//!
//! `routes` says what doors there are, so a new one is tried in every way by one more entry there; docs/use/api.md says
//! the same to people, and which errors may come: `contract` reads it.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a bad input that cannot be made ends the test")]

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
