//! An agent's private key: made, kept in a file for its owner only, and used to sign.

use p256::{
    SecretKey,
    ecdsa::{Signature, SigningKey, signature::Signer},
    elliptic_curve::Generate,
    pkcs8::{DecodePrivateKey, EncodePrivateKey, EncodePublicKey, LineEnding},
};
use std::{
    fmt, io,
    io::Write,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or made.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: String,
        /// What the system said.
        error: io::Error,
    },
    /// The file holds something else.
    #[error("{0}: not a P-256 private key in PEM (PKCS #8 or SEC 1)")]
    Malformed(String),
    /// The external signer gives no signature.
    #[error("the signer `{program}` {problem}")]
    Signer {
        /// The first word of its command line.
        program: String,
        /// What is wrong.
        problem: String,
    },
    /// The key cannot be written as PEM.
    #[error("the key cannot be encoded")]
    Encoding,
}

/// A P-256 private key.
pub struct PrivateKey(SecretKey);

impl PrivateKey {
    /// Makes a new key of the system's randomness.
    pub fn generate() -> Self {
        Self(SecretKey::generate())
    }

    /// Something that nobody has signed before, in the form of a nonce.
    pub fn fresh_nonce() -> String {
        // A private key is as good as random, and this one belongs to nobody.
        hex::encode(SecretKey::generate().to_bytes())
    }

    /// Reads a key that OpenSSL or [`Self::write`] wrote.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let pem = std::fs::read_to_string(path).map_err(failed(path))?;
        let key = SecretKey::from_pkcs8_pem(&pem).ok().or_else(|| SecretKey::from_sec1_pem(&pem).ok());
        key.map(Self).ok_or_else(|| KeyError::Malformed(path.display().to_string()))
    }

    /// Writes the key to a new file with mode 0600; a file that exists is left alone.
    pub fn write(&self, path: &Path) -> Result<(), KeyError> {
        let pem = self.0.to_pkcs8_pem(LineEnding::LF).map_err(|_| KeyError::Encoding)?;
        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        file.and_then(|mut file| file.write_all(pem.as_bytes())).map_err(failed(path))
    }

    /// The public half as PEM: what is registered.
    pub fn public_pem(&self) -> Result<String, KeyError> {
        self.0.public_key().to_public_key_pem(LineEnding::LF).map_err(|_| KeyError::Encoding)
    }

    /// Signs a nonce as it was sent; hex of the 64 bytes r‖s.
    pub fn sign(&self, nonce: &str) -> String {
        let signature: Signature = SigningKey::from(&self.0).sign(nonce.as_bytes());
        hex::encode(signature.to_bytes())
    }
}

/// The mode of a key's file, if others than its owner may read it.
pub fn open_to_others(path: &Path) -> Option<u32> {
    let mode = std::fs::metadata(path).ok()?.permissions().mode() & 0o777;
    Some(mode).filter(|mode| mode & 0o077 != 0)
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(…)")
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> KeyError {
    let path = path.display().to_string();
    move |error| KeyError::File { path, error }
}
