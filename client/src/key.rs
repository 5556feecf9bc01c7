//! The private key of an agent: generation, storage in a file with mode 0600, and signatures.

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

/// Why a key cannot be read, written or used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or created.
    #[error("{path}: {error}")]
    File {
        /// The path of the file.
        path: String,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The file contains no P-256 private key.
    #[error("{0}: not a P-256 private key in PEM (PKCS #8 or SEC 1)")]
    Malformed(String),
    /// The external signer failed or returned no valid signature.
    #[error("the signer `{program}` {problem}")]
    Signer {
        /// The first word of the signer's command line. The other words may contain a PIN.
        program: String,
        /// Why the signer failed.
        problem: String,
    },
    /// The signer of a client assertion returned text that is no signature.
    #[error("the signer returned no P-256 signature (hex, r‖s or DER)")]
    Signature,
    /// The key cannot be encoded as PEM.
    #[error("the key cannot be encoded as PEM")]
    Encoding,
}

/// A P-256 private key.
pub struct PrivateKey(SecretKey);

impl PrivateKey {
    /// Generates a key with the random number generator of the operating system.
    pub fn generate() -> Self {
        Self(SecretKey::generate())
    }

    /// Generates a random value in the format of a nonce.
    pub fn random_nonce() -> String {
        // A nonce needs 32 random bytes, and the bytes of a new private key are random. This key is used for nothing else.
        hex::encode(SecretKey::generate().to_bytes())
    }

    /// Reads a key from a PEM file (PKCS #8 or SEC 1) that OpenSSL or [`Self::write`] created.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let pem = std::fs::read_to_string(path).map_err(file_error(path))?;
        let key = SecretKey::from_pkcs8_pem(&pem).ok().or_else(|| SecretKey::from_sec1_pem(&pem).ok());
        key.map(Self).ok_or_else(|| KeyError::Malformed(path.display().to_string()))
    }

    /// Writes the key to a new file with mode 0600. Fails if the file exists.
    pub fn write(&self, path: &Path) -> Result<(), KeyError> {
        let pem = self.0.to_pkcs8_pem(LineEnding::LF).map_err(|_| KeyError::Encoding)?;
        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        file.and_then(|mut file| file.write_all(pem.as_bytes())).map_err(file_error(path))
    }

    /// The public key as PEM, for registration.
    pub fn public_pem(&self) -> Result<String, KeyError> {
        self.0.public_key().to_public_key_pem(LineEnding::LF).map_err(|_| KeyError::Encoding)
    }

    /// Signs the bytes of a text. Returns the hex of the 64 bytes r‖s.
    pub fn sign(&self, text: &str) -> String {
        let signature: Signature = SigningKey::from(&self.0).sign(text.as_bytes());
        hex::encode(signature.to_bytes())
    }
}

/// The mode of a file if users other than its owner have any permission on it; otherwise, or if the mode cannot be read, `None`.
pub fn insecure_mode(path: &Path) -> Option<u32> {
    let mode = std::fs::metadata(path).ok()?.permissions().mode() & 0o777;
    Some(mode).filter(|mode| mode & 0o077 != 0)
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(…)")
    }
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> KeyError {
    let path = path.display().to_string();
    move |error| KeyError::File { path, error }
}
