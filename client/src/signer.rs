//! Signers of challenges and client assertions: a private key from a file, or an external command.
//!
//! An external command connects to a TPM, an HSM or a key agent. It reads a text from standard input: the nonce of a challenge, or the
//! first two parts of a JWT. It writes the signature (ECDSA P-256 with SHA-256) to standard output, as hex or as bytes, in the form
//! r‖s or DER. It inherits standard error, so that it can prompt the user.

use crate::{KeyError, PrivateKey};
use countersign_identity::{P256PublicKey, public_key::EcdsaSignature};
use std::{fmt, process::Stdio, sync::Arc, time::Duration};
use tokio::{io::AsyncWriteExt, process::Command, time::timeout};

/// The timeout of an external command, long enough for the user to touch a security key or to type a PIN.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(2);

/// What can sign as an agent, such as [`Signer`].
pub trait Sign {
    /// Signs the bytes of a text with ECDSA P-256 and SHA-256: the nonce of a challenge, or the signing input of a client
    /// assertion (RFC 7515, section 5.1). Returns the signature in hex, as the 64 bytes r‖s or as DER.
    fn sign_text(&self, text: &str) -> impl Future<Output = Result<String, KeyError>> + Send;
}

/// A signer with an agent's private key.
#[derive(Debug)]
pub enum Signer {
    /// A private key from a file.
    Key(PrivateKey),
    /// An external command.
    Command(SignerCommand),
}

/// An external command: a command line for `sh -c`. Messages show only the first word of the command line, because the
/// other words may contain a PIN.
#[derive(Clone)]
pub struct SignerCommand(String);

impl Sign for PrivateKey {
    async fn sign_text(&self, text: &str) -> Result<String, KeyError> {
        Ok(self.sign(text))
    }
}

/// Several sessions can share a signer.
impl<S: Sign + Send + Sync> Sign for Arc<S> {
    async fn sign_text(&self, text: &str) -> Result<String, KeyError> {
        self.as_ref().sign_text(text).await
    }
}

impl Sign for Signer {
    async fn sign_text(&self, text: &str) -> Result<String, KeyError> {
        match self {
            Self::Key(key) => key.sign_text(text).await,
            Self::Command(command) => command.sign_text(text).await,
        }
    }
}

impl SignerCommand {
    /// Wraps a command line.
    pub fn new(line: impl Into<String>) -> Self {
        Self(line.into())
    }

    /// The first word of the command line, to show in messages.
    pub fn program(&self) -> &str {
        self.0.split_whitespace().next().unwrap_or_default()
    }

    /// Whether the command signs with the private key of this public key. Lets it sign a random nonce to find out.
    pub async fn holds(&self, public_key: P256PublicKey) -> Result<bool, KeyError> {
        let nonce = PrivateKey::random_nonce();
        Ok(verifies(public_key, &nonce, &self.sign_text(&nonce).await?))
    }

    fn error(&self, problem: impl Into<String>) -> KeyError {
        KeyError::Signer { program: self.program().to_owned(), problem: problem.into() }
    }

    async fn run(&self, text: &str) -> std::io::Result<std::process::Output> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(&self.0).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // A write error is ignored, because a command that returns a valid signature need not read its input.
            let _ignored = stdin.write_all(text.as_bytes()).await;
        }
        child.wait_with_output().await
    }
}

impl Sign for SignerCommand {
    async fn sign_text(&self, text: &str) -> Result<String, KeyError> {
        let output = timeout(COMMAND_TIMEOUT, self.run(text)).await.map_err(|_| self.error("timed out"))?;
        let output = output.map_err(|error| self.error(error.to_string()))?;
        if !output.status.success() {
            return Err(self.error(format!("failed: {}", output.status)));
        }
        parse_signature(&output.stdout)
            .ok_or_else(|| self.error("printed no P-256 signature (hex or bytes, r‖s or DER)"))
    }
}

/// Whether the signature is over the text of the nonce, or over the bytes that this text encodes in hex. The control plane accepts both.
fn verifies(public_key: P256PublicKey, nonce: &str, signature: &str) -> bool {
    let bytes = hex::decode(nonce).unwrap_or_default();
    EcdsaSignature::from_hex(signature).is_ok_and(|parsed| public_key.verifies(&[nonce.as_bytes(), &bytes], &parsed))
}

/// Parses the output of a command, which is a signature as hex text or as bytes. Returns the signature in hex.
fn parse_signature(output: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(output).ok().map(|text| text.trim().to_ascii_lowercase());
    let candidates = [text, Some(hex::encode(output))];
    candidates.into_iter().flatten().find(|text| EcdsaSignature::from_hex(text).is_ok())
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
    fn parse_signature_accepts_hex_and_bytes() {
        let bytes = hex::decode(PrivateKey::generate().sign("nonce")).unwrap();
        let text = hex::encode(&bytes);
        assert_eq!(parse_signature(&bytes), Some(text.clone()));
        assert_eq!(parse_signature(format!("{}\n", text.to_uppercase()).as_bytes()), Some(text));
        for invalid in [&b""[..], b"hello", &[0; 64], b"00"] {
            assert_eq!(parse_signature(invalid), None);
        }
    }

    #[test]
    fn verifies_accepts_signatures_over_the_text_and_over_its_bytes() {
        let key = PrivateKey::generate();
        let other = PrivateKey::generate();
        let public_key = P256PublicKey::from_pem(&key.public_pem().unwrap()).unwrap();
        // In this test, the nonce is the hex of a text, so that `PrivateKey::sign`, which signs only texts, can also
        // sign the bytes of the nonce.
        let nonce = hex::encode("sixteen letters.");
        for (signature, is_valid) in [
            (key.sign(&nonce), true),
            (key.sign("sixteen letters."), true),
            (key.sign("another"), false),
            (other.sign(&nonce), false),
        ] {
            assert_eq!(verifies(public_key, &nonce, &signature), is_valid);
        }
        assert_ne!(PrivateKey::random_nonce(), PrivateKey::random_nonce());
    }

    #[test]
    fn debug_and_errors_show_only_the_first_word_of_a_command() {
        let command = SignerCommand::new("hsm-sign --pin 1234");
        assert!(!format!("{command:?} {}", command.error("failed")).contains("1234"));
    }
}
