//! What answers a challenge: a key in a file, or a command that asks whatever holds the key.
//!
//! The command is how a TPM, an HSM or an agent of the platform plugs in: it gets the nonce on standard
//! input and writes the signature (ECDSA P-256 with SHA-256) to standard output, as hex or as bytes,
//! r‖s or DER. Standard error is left to it, for a prompt.

use crate::{KeyError, PrivateKey};
use countersign_identity::{P256PublicKey, public_key::EcdsaSignature};
use std::{fmt, process::Stdio, time::Duration};
use tokio::{io::AsyncWriteExt, process::Command, time::timeout};

/// How long a command may take: somebody may have to touch a token or type a PIN.
const PATIENCE: Duration = Duration::from_mins(2);

/// Signs nonces.
pub trait Sign {
    /// The signature over the nonce as it was sent, in hex.
    fn sign_nonce(&self, nonce: &str) -> impl Future<Output = Result<String, KeyError>> + Send;
}

/// Whatever holds an agent's private key.
#[derive(Debug)]
pub enum Signer {
    /// A key in a file.
    Key(PrivateKey),
    /// A command.
    Command(SignerCommand),
}

/// A command line for `sh -c`. It may contain a PIN, so only its first word is ever shown.
#[derive(Clone)]
pub struct SignerCommand(String);

impl Sign for PrivateKey {
    async fn sign_nonce(&self, nonce: &str) -> Result<String, KeyError> {
        Ok(self.sign(nonce))
    }
}

impl Sign for Signer {
    async fn sign_nonce(&self, nonce: &str) -> Result<String, KeyError> {
        match self {
            Self::Key(key) => key.sign_nonce(nonce).await,
            Self::Command(command) => command.sign_nonce(nonce).await,
        }
    }
}

impl SignerCommand {
    /// Wraps a command line.
    pub fn new(line: impl Into<String>) -> Self {
        Self(line.into())
    }

    /// The first word: enough to recognise it by.
    pub fn program(&self) -> &str {
        self.0.split_whitespace().next().unwrap_or_default()
    }

    /// Whether it holds the private half of this key, which it shows by signing a nonce.
    pub async fn holds(&self, public: P256PublicKey) -> Result<bool, KeyError> {
        let nonce = PrivateKey::fresh_nonce();
        Ok(fits(public, &nonce, &self.sign_nonce(&nonce).await?))
    }

    fn failed(&self, problem: impl Into<String>) -> KeyError {
        KeyError::Signer { program: self.program().to_owned(), problem: problem.into() }
    }

    async fn run(&self, nonce: &str) -> std::io::Result<std::process::Output> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(&self.0).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // A command that does not read its input is judged by its signature, not by a broken pipe.
            let _closed_early = stdin.write_all(nonce.as_bytes()).await;
        }
        child.wait_with_output().await
    }
}

impl Sign for SignerCommand {
    async fn sign_nonce(&self, nonce: &str) -> Result<String, KeyError> {
        let output = timeout(PATIENCE, self.run(nonce)).await.map_err(|_| self.failed("did not answer in time"))?;
        let output = output.map_err(|error| self.failed(error.to_string()))?;
        if !output.status.success() {
            return Err(self.failed(format!("ended with {}", output.status)));
        }
        signature(&output.stdout).ok_or_else(|| self.failed("printed no P-256 signature (hex or bytes, r‖s or DER)"))
    }
}

/// As the control plane has it: over the text of the nonce, or over the bytes that the text stands for.
fn fits(public: P256PublicKey, nonce: &str, signature: &str) -> bool {
    let bytes = hex::decode(nonce).unwrap_or_default();
    EcdsaSignature::from_hex(signature).is_ok_and(|read| public.verifies(&[nonce.as_bytes(), &bytes], &read))
}

/// Hex as it is, bytes as hex; nothing that is no signature.
fn signature(output: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(output).ok().map(|text| text.trim().to_ascii_lowercase());
    let readings = [text, Some(hex::encode(output))];
    readings.into_iter().flatten().find(|text| EcdsaSignature::from_hex(text).is_ok())
}

impl fmt::Debug for SignerCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SignerCommand({} …)", self.program())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_read_as_hex_and_as_bytes() {
        let bytes = hex::decode(PrivateKey::generate().sign("nonce")).unwrap();
        let text = hex::encode(&bytes);
        assert_eq!(signature(&bytes), Some(text.clone()));
        assert_eq!(signature(format!("{}\n", text.to_uppercase()).as_bytes()), Some(text));
        for wrong in [&b""[..], b"hello", &[0; 64], b"00"] {
            assert_eq!(signature(wrong), None);
        }
    }

    #[test]
    fn a_signature_fits_over_the_nonces_text_and_over_its_bytes() {
        let (key, other) = (PrivateKey::generate(), PrivateKey::generate());
        let public = P256PublicKey::from_pem(&key.public_pem().unwrap()).unwrap();
        // The bytes of a text, so that a key that signs texts signs these.
        let nonce = hex::encode("sixteen letters.");
        for (signature, good) in [
            (key.sign(&nonce), true),
            (key.sign("sixteen letters."), true),
            (key.sign("another"), false),
            (other.sign(&nonce), false),
        ] {
            assert_eq!(fits(public, &nonce, &signature), good);
        }
        assert_ne!(PrivateKey::fresh_nonce(), PrivateKey::fresh_nonce());
    }

    #[test]
    fn nothing_but_the_first_word_of_a_command_is_shown() {
        let command = SignerCommand::new("hsm-sign --pin 1234");
        assert!(!format!("{command:?} {}", command.failed("failed")).contains("1234"));
    }
}
