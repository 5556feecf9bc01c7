//! Cryptographic keys at rest: generation, encryption and decryption of signing keys and webhook secrets.
//!
//! `domain` decides which key signs when, `store` stores the encrypted keys, `operations` rotate them and sign tokens with
//! them, `sync` sends the public keys to sidecars. Invariant: a private key leaves memory only encrypted under the master
//! key.

mod master_key;
mod signing;

pub use master_key::{MasterKey, MasterKeyError};
pub use signing::{GeneratedKeys, Keyring, KeyringError, TokenSigner};
