//! What talks to Countersign: an agent's key, and the calls that turn it into tokens.
//!
//! Neighbours: the control plane's HTTP API on the other side; the command line `countersign` on this
//! one. The rule of the room: a private key never leaves [`key::PrivateKey`], tokens are never printed
//! unless asked for.

pub mod api;
pub mod key;

pub use api::{Api, ApiError, Tokens};
pub use key::{KeyError, PrivateKey};
