//! The domain types and the rules that need no database: validation, state transitions, limits and formats.
//!
//! `store` persists the domain types, `operations` changes their values and `http` parses requests into them. The domain
//! depends on `countersign-identity` only. The domain does no I/O and uses neither a clock nor random numbers.

pub mod agent;
pub mod agent_hash_secret;
pub mod audit;
pub mod caller;
pub mod challenge;
pub mod change;
pub mod client_assertion;
pub mod credential;
pub mod derived_keys;
pub mod housekeeping;
pub mod idempotency;
pub mod netstrings;
pub mod page;
pub mod quota;
pub mod resource_uri;
pub mod role;
pub mod service;
pub mod session;
pub mod sidecar;
pub mod signing_key;
pub mod string_enum;
pub mod text;
pub mod total;
pub mod trust;
pub mod unbound_roles;
pub mod webhook;
