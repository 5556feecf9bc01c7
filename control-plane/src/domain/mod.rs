//! The nouns of the product and the rules that need no database: what is valid, which transitions
//! exist, how secrets are told from their hashes.
//!
//! Neighbours: `store` keeps these, `operations` moves them, `http` parses into them. The rule of the
//! room: no I/O, no clock, no randomness; only `countersign-identity` is imported.

pub mod agent;
pub mod audit;
pub mod caller;
pub mod challenge;
pub mod change;
pub mod credential;
pub mod idempotency;
pub mod instant;
mod named;
pub mod netstrings;
pub mod page;
pub mod role;
pub mod service;
pub mod session;
pub mod signing_key;
pub mod text;
pub mod trust;
pub mod webhook;
