//! An agent's private key: generated, stored in a file of mode 0600 and used to sign.

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
        /// The file.
        path: String,
        /// The error of the system.
        error: io::Error,
    },
    /// The file contains something else.
    #[error("{0}: not a P-256 private key in PEM (PKCS #8 or SEC 1)")]
    Malformed(String),
    /// The external signer returns no valid signature.
    #[error("the signer `{program}` {problem}")]
    Signer {
        /// The first word of its command line. The rest may contain a PIN.
        program: String,
        /// What went wrong.
        problem: String,
    },
    /// The key cannot be encoded as PEM.
    #[error("the key cannot be encoded")]
    Encoding,
}

/// A P-256 private key.
pub struct PrivateKey(SecretKey);

impl PrivateKey {
    /// Generates a key from the random numbers of the operating system.
    pub fn generate() -> Self {
        Self(SecretKey::generate())
    }

    /// A random value in the form of a nonce.
    pub fn random_nonce() -> String {
        // A new private key that is used for nothing else has as much entropy as a nonce needs.
        hex::encode(SecretKey::generate().to_bytes())
    }

    /// Reads a key in PEM (PKCS #8 or SEC 1), as OpenSSL or [`Self::write`] writes it.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let pem = std::fs::read_to_string(path).map_err(failed(path))?;
        let key = SecretKey::from_pkcs8_pem(&pem).ok().or_else(|| SecretKey::from_sec1_pem(&pem).ok());
        key.map(Self).ok_or_else(|| KeyError::Malformed(path.display().to_string()))
    }

    /// Writes the key to a new file with mode 0600. It never overwrites a file.
    pub fn write(&self, path: &Path) -> Result<(), KeyError> {
        let pem = self.0.to_pkcs8_pem(LineEnding::LF).map_err(|_| KeyError::Encoding)?;
        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        file.and_then(|mut file| file.write_all(pem.as_bytes())).map_err(failed(path))
    }

    /// The public key in PEM, for registration.
    pub fn public_pem(&self) -> Result<String, KeyError> {
        self.0.public_key().to_public_key_pem(LineEnding::LF).map_err(|_| KeyError::Encoding)
    }

    /// Signs the text of a nonce. Returns the 64 bytes r‖s in hex.
    pub fn sign(&self, nonce: &str) -> String {
        let signature: Signature = SigningKey::from(&self.0).sign(nonce.as_bytes());
        hex::encode(signature.to_bytes())
    }
}

/// The mode of a file if group or others have any permission on it.
pub fn insecure_mode(path: &Path) -> Option<u32> {
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
