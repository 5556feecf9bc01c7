//! Keys that are derived from the master keys in `secrets.master_key` and `secrets.previous_master_keys`.

use aws_lc_rs::hmac;

/// The fingerprint of each of these master keys, and the keys `K` that are derived from it.
pub struct DerivedKeys<K>(Vec<(String, K)>);

impl<K> DerivedKeys<K> {
    /// Each item has a fingerprint and the derived keys. The master key in `secrets.master_key` comes first.
    pub const fn new(keys: Vec<(String, K)>) -> Self {
        Self(keys)
    }

    /// The fingerprint of the master key in `secrets.master_key`; empty if there are no keys.
    pub fn configured(&self) -> &str {
        self.0.first().map_or("", |(fingerprint, _)| fingerprint)
    }

    /// The keys of the master key with a fingerprint; `None` if the settings do not contain this master key.
    pub fn find(&self, fingerprint: &str) -> Option<&K> {
        self.0.iter().find(|(name, _)| name == fingerprint).map(|(_, keys)| keys)
    }

    /// The keys of all master keys.
    pub fn iter(&self) -> impl Iterator<Item = &K> {
        self.0.iter().map(|(_, keys)| keys)
    }
}

pub fn derive_key(master: &[u8], purpose: &str) -> hmac::Key {
    let master = hmac::Key::new(hmac::HMAC_SHA256, master);
    hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&master, purpose.as_bytes()).as_ref())
}
