//! The keys that sign access tokens: made here, kept sealed, opened to sign.
//!
//! Neighbours: `domain` knows who signs when, `store` keeps them, `operations` rotate them and sign with them,
//! `sync` sends their public halves to the sidecars. The rule of the room: a private key leaves memory only under
//! the master key.

mod master;
mod signing;

pub use master::{MasterKey, MasterKeyError};
pub use signing::{FreshKeys, Keyring, KeyringError, Signer};
