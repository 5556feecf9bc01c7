//! `[secrets]`: the master key.

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

/// Length of the master key in hex characters: 32 bytes.
const MASTER_KEY_HEX_LENGTH: usize = 64;

/// `[secrets]`
#[derive(Debug, Clone, Deserialize)]
pub struct SecretSettings {
    /// The master key as 64 hex characters. Empty: the key is read from a file in `data_dir`.
    pub master_key: SecretString,
}

impl SecretSettings {
    /// Describes the problem of the master key; `None` if it is valid or empty. The returned text never contains the master
    /// key.
    pub(super) fn problem(&self) -> Option<String> {
        let key = self.master_key.expose_secret().trim();
        let is_valid = key.len() == MASTER_KEY_HEX_LENGTH && key.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_set = !self.master_key.expose_secret().is_empty();
        (is_set && !is_valid).then(|| {
            "secrets.master_key: must be 32 bytes as 64 hex characters (`openssl rand -hex 32`), or empty".to_owned()
        })
    }
}
