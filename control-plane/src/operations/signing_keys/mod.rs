//! Signing keys: reading, rotation and revocation of the key ring.

mod list;
mod revoke;
pub(super) mod ring;
mod rotate;

pub use list::{SigningKeyPosition, list_signing_keys, published_keys};
pub use revoke::revoke_signing_key;
pub use rotate::rotate_signing_key;
