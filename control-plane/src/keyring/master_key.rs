//! The master key, which encrypts private keys and secrets at rest, and from which challenge keys and audit keys are derived.

use crate::files::{create_secret, with_suffix};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use countersign_process::Rng;
use sha2::{Digest, Sha256};
use std::{fmt, path::Path};
use zeroize::Zeroizing;

/// Length of the master key in bytes.
const MASTER_KEY_LENGTH: usize = 32;

/// Why the master key cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum MasterKeyError {
    #[error(
        "{0}: the master key must be 32 bytes as 64 hex characters. Copy it again from where you keep it; only a new deployment \
         can use a new one (`openssl rand -hex 32`)"
    )]
    Malformed(String),
    /// The command needs an existing master key, and the file of the master key does not exist.
    #[error(
        "{0}: there is no master key. Copy the master key of this database to that file (data_dir sets its directory), or \
         set secrets.master_key (COUNTERSIGN_SECRETS__MASTER_KEY_FILE names a file that contains it)"
    )]
    Missing(String),
    #[error("{path}: {error}")]
    File { path: String, error: std::io::Error },
}

/// The 32 secret bytes of the master key. Dropping the key overwrites its memory.
pub struct MasterKey(Zeroizing<[u8; MASTER_KEY_LENGTH]>);

impl MasterKey {
    /// Parses the value of `secrets.master_key`: 64 hex characters.
    pub fn from_hex(text: &str) -> Result<Self, MasterKeyError> {
        Self::parse(text, || "secrets.master_key".to_owned())
    }

    /// Parses one key of `secrets.previous_master_keys`: 64 hex characters.
    pub fn from_previous_hex(text: &str) -> Result<Self, MasterKeyError> {
        Self::parse(text, || "secrets.previous_master_keys".to_owned())
    }

    fn parse(text: &str, source: impl FnOnce() -> String) -> Result<Self, MasterKeyError> {
        let mut bytes = Zeroizing::new([0; MASTER_KEY_LENGTH]);
        hex::decode_to_slice(text.trim(), bytes.as_mut()).map_err(|_| MasterKeyError::Malformed(source()))?;
        Ok(Self(bytes))
    }

    /// Reads the key from a file; `None` if the file does not exist.
    pub fn from_file(path: &Path) -> Result<Option<Self>, MasterKeyError> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&Zeroizing::new(text), || path.display().to_string()).map(Some),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            // The file is not text.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                Err(MasterKeyError::Malformed(path.display().to_string()))
            }
            Err(error) => Err(MasterKeyError::File { path: path.display().to_string(), error }),
        }
    }

    pub fn generate(rng: &dyn Rng) -> Self {
        let mut bytes = Zeroizing::new([0; MASTER_KEY_LENGTH]);
        rng.fill(bytes.as_mut());
        Self(bytes)
    }

    /// Creates a file with the key, with mode 0600. Fails if the file exists.
    pub fn create_file(&self, path: &Path) -> Result<(), MasterKeyError> {
        let text = Zeroizing::new(hex::encode(self.0.as_ref()));
        // Each process that starts at the same time has generated a key of its own, so it needs a temporary file of its own.
        let temporary = with_suffix(path, &format!("-{}", self.fingerprint()));
        let file_error = |error| MasterKeyError::File { path: path.display().to_string(), error };
        create_secret(path, &temporary, text.as_bytes()).map_err(file_error)
    }

    /// A hash that identifies the key and does not reveal it.
    pub fn fingerprint(&self) -> String {
        let digest = Sha256::new().chain_update(b"countersign master key v1").chain_update(self.0.as_ref()).finalize();
        hex::encode(&digest[..16])
    }

    /// Passes the bytes of the key to a function that derives other keys from them.
    pub(super) fn derive<K>(&self, derive: fn(&[u8]) -> K) -> K {
        derive(self.0.as_ref())
    }

    /// Encrypts `plain`. To decrypt, [`Self::open`] needs the same `label`, which the result does not contain.
    pub fn seal(&self, label: &str, plain: &[u8], rng: &dyn Rng) -> Option<Vec<u8>> {
        let mut nonce_bytes = [0; NONCE_LEN];
        rng.fill(&mut nonce_bytes);
        let mut sealed = plain.to_vec();
        let key = self.cipher()?;
        let nonce = Nonce::assume_unique_for_key(nonce_bytes);
        key.seal_in_place_append_tag(nonce, Aad::from(label.as_bytes()), &mut sealed).ok()?;
        Some([&nonce_bytes[..], &sealed].concat())
    }

    /// Decrypts the output of [`Self::seal`]; `None` if the key or the label differs, or the data is damaged.
    pub fn open(&self, label: &str, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let (nonce, sealed) = sealed.split_at_checked(NONCE_LEN)?;
        let mut buffer = Zeroizing::new(sealed.to_vec());
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let plain = self.cipher()?.open_in_place(nonce, Aad::from(label.as_bytes()), &mut buffer).ok()?.len();
        buffer.truncate(plain);
        Some(buffer)
    }

    fn cipher(&self) -> Option<LessSafeKey> {
        UnboundKey::new(&AES_256_GCM, self.0.as_ref()).ok().map(LessSafeKey::new)
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterKey({})", self.fingerprint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_process::SystemRng;

    #[test]
    fn open_requires_the_key_and_label_of_seal() {
        let key = MasterKey::from_hex(&"ab".repeat(32)).unwrap();
        let sealed = key.seal("label", b"secret", &SystemRng).unwrap();
        assert_eq!(key.open("label", &sealed).unwrap().as_slice(), b"secret");
        assert!(key.open("other", &sealed).is_none());
        assert!(MasterKey::from_hex(&"ac".repeat(32)).unwrap().open("label", &sealed).is_none());
        assert!(key.open("label", &sealed[..NONCE_LEN + 3]).is_none());
        assert!(!sealed.windows(6).any(|window| window == b"secret"));
    }
}
