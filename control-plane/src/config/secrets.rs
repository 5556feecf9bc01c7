//! `[secrets]`: the master key, and the previous master keys during a rotation.

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

/// Length of a master key in hex characters: 32 bytes.
const MASTER_KEY_HEX_LENGTH: usize = 64;

#[derive(Debug, Clone, Deserialize)]
pub struct SecretSettings {
    /// The master key as 64 hex characters. Empty: the key is read from a file in `data_dir`.
    pub master_key: SecretString,
    previous_master_keys: SecretString,
}

impl SecretSettings {
    /// The previous master keys, each as 64 hex characters.
    pub fn previous(&self) -> impl Iterator<Item = &str> {
        let is_separator = |character: char| character == ',' || character.is_whitespace();
        self.previous_master_keys.expose_secret().split(is_separator).filter(|key| !key.is_empty())
    }

    /// Describes the problem of the master keys; `None` if they are valid or empty. The returned text never contains a master key.
    pub(super) fn problem(&self) -> Option<String> {
        let key = self.master_key.expose_secret();
        if !key.is_empty() && !is_valid(key.trim()) {
            return Some(
                "secrets.master_key: must be 32 bytes as 64 hex characters (`openssl rand -hex 32`), or empty"
                    .to_owned(),
            );
        }
        (!self.previous().all(is_valid)).then(|| {
            "secrets.previous_master_keys: each must be 64 hex characters, with a comma or a line break between two keys"
                .to_owned()
        })
    }
}

fn is_valid(key: &str) -> bool {
    key.len() == MASTER_KEY_HEX_LENGTH && key.bytes().all(|byte| byte.is_ascii_hexdigit())
}
