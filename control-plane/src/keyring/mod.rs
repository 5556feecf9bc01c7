//! Cryptographic keys at rest: generation, encryption and decryption of signing keys and webhook secrets.
//!
//! `domain` decides which key signs at which time, and `store` stores the encrypted keys. `operations` rotates the keys, and signs
//! tokens. `sync` sends the public keys to sidecars. Invariant: a private key leaves memory only encrypted with the master key.

mod master_key;
mod ring;
mod signing;

pub use master_key::{MasterKey, MasterKeyError};
pub use ring::{MasterKeyRing, Resealed, SealedSecret};
pub use signing::{GeneratedKeys, Keyring, KeyringError, TokenSigner};
