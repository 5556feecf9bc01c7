//! The keys that sign access tokens: made here, kept sealed, published at the JWKS.
//!
//! Neighbours: `store` keeps them, `operations` sign with them, `sync` sends their public halves to
//! the sidecars. The rule of the room: a private key leaves memory only under the master key.

mod master;
mod signing;

pub use master::{MasterKey, MasterKeyError};
pub use signing::{Keyring, KeyringError};
