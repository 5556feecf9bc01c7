//! `[secrets]`

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

/// Hex characters of 32 bytes.
const MASTER_KEY_LEN: usize = 64;

/// `[secrets]`
#[derive(Debug, Clone, Deserialize)]
pub struct Secrets {
    /// 64 hex characters, or empty.
    pub master_key: SecretString,
}

impl Secrets {
    /// What is wrong with them; never what they are.
    pub(super) fn problem(&self) -> Option<String> {
        let key = self.master_key.expose_secret().trim();
        let good = key.len() == MASTER_KEY_LEN && key.bytes().all(|byte| byte.is_ascii_hexdigit());
        let said = !self.master_key.expose_secret().is_empty();
        (said && !good).then(|| {
            "secrets.master_key: must be 32 bytes as 64 hex characters (`openssl rand -hex 32`), or empty".to_owned()
        })
    }
}
