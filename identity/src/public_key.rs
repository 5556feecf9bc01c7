//! P-256 public keys and ECDSA signatures: parsing, fingerprints, verification.
//!
//! `p256` parses keys, because it checks that a point is on the curve. aws-lc verifies signatures, because it is five times
//! faster. Only this module combines them.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use base64::{Engine, engine::general_purpose::STANDARD};
use p256::{
    ecdsa::Signature,
    elliptic_curve::sec1::ToSec1Point,
    pkcs8::{DecodePublicKey, EncodePublicKey, LineEnding, SubjectPublicKeyInfoRef},
};
use sha2::{Digest, Sha256};
use std::fmt;

const PEM_BEGIN: &str = "-----BEGIN PUBLIC KEY-----";
const PEM_END: &str = "-----END PUBLIC KEY-----";

/// The maximum length of a PEM text in bytes.
pub const MAX_PEM_BYTES: usize = 4096;

/// Why a text is not accepted as a public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublicKeyError {
    /// The text is longer than [`MAX_PEM_BYTES`].
    #[error("must not be longer than 4096 bytes")]
    TooLong,
    /// The text contains a private key.
    #[error(
        "is a private key, which is no longer secret now that it was sent: generate a new key and send only its public key (`openssl pkey -in agent.key -pubout`)"
    )]
    Private,
    /// The text is not exactly one PEM block labelled `PUBLIC KEY`.
    #[error("must be exactly one PEM block `-----BEGIN PUBLIC KEY-----`")]
    NotOnePublicKey,
    /// The block is not a point on the curve P-256 with named parameters.
    #[error("must be a public key on the curve P-256 (`openssl ecparam -name prime256v1 -genkey`)")]
    NotP256,
}

/// Why a text is not accepted as a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be the hex of a P-256 signature, as 64 bytes r‖s or in DER")]
pub struct SignatureError;

/// A public key on the curve P-256.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct P256PublicKey(p256::PublicKey);

impl P256PublicKey {
    /// Parses one PEM block `PUBLIC KEY`. Its lines may end with CRLF, and its point may be compressed.
    pub fn from_pem(pem: &str) -> Result<Self, PublicKeyError> {
        if pem.len() > MAX_PEM_BYTES {
            return Err(PublicKeyError::TooLong);
        }
        if pem.contains("PRIVATE KEY") {
            return Err(PublicKeyError::Private);
        }
        let block = pem.trim();
        let is_one_block = block.starts_with(PEM_BEGIN)
            && block.ends_with(PEM_END)
            && block.len() >= PEM_BEGIN.len() + PEM_END.len()
            && block.matches("-----BEGIN").count() == 1;
        if !is_one_block {
            return Err(PublicKeyError::NotOnePublicKey);
        }
        Self::from_spki_base64(&block[PEM_BEGIN.len()..block.len() - PEM_END.len()]).ok_or(PublicKeyError::NotP256)
    }

    /// Accepts lines of any length, because libraries wrap PEM differently.
    fn from_spki_base64(text: &str) -> Option<Self> {
        let base64: String = text.split_ascii_whitespace().collect();
        let der = STANDARD.decode(base64).ok()?;
        let point = SubjectPublicKeyInfoRef::try_from(der.as_slice()).ok()?.subject_public_key.as_bytes()?;
        // The point must be compressed or uncompressed. p256 also parses the compact form, which no key format allows.
        let key = p256::PublicKey::from_public_key_der(&der).ok().filter(|_| matches!(point.first(), Some(2..=4)));
        key.map(Self)
    }

    /// Parses the 65 bytes of an uncompressed point; refuses the shorter forms that p256 also parses.
    pub fn from_sec1(bytes: &[u8]) -> Result<Self, PublicKeyError> {
        let uncompressed = Some(bytes).filter(|bytes| bytes.first() == Some(&4));
        let point = uncompressed.and_then(|bytes| p256::PublicKey::from_sec1_bytes(bytes).ok());
        point.map(Self).ok_or(PublicKeyError::NotP256)
    }

    /// The bytes of the uncompressed point: `04 ‖ x ‖ y`.
    pub fn to_sec1(self) -> [u8; 65] {
        let point = self.0.to_sec1_point(false);
        let mut bytes = [0; 65];
        bytes.copy_from_slice(point.as_bytes());
        bytes
    }

    /// The canonical PEM, which parses back to the same key.
    pub fn to_pem(self) -> Result<String, PublicKeyError> {
        self.0.to_public_key_pem(LineEnding::LF).map_err(|_| PublicKeyError::NotP256)
    }

    /// The fingerprint of the key: `sha256:` and the hex digest of its uncompressed SPKI DER.
    pub fn fingerprint(self) -> Result<String, PublicKeyError> {
        let der = self.0.to_public_key_der().map_err(|_| PublicKeyError::NotP256)?;
        Ok(format!("sha256:{}", hex::encode(Sha256::digest(der.as_bytes()))))
    }

    /// True if the signature, read as r‖s or as DER, is valid for any of the messages.
    pub fn verifies(self, messages: &[&[u8]], signature: &EcdsaSignature) -> bool {
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.to_sec1());
        let mut interpretations = signature.0.iter().flatten();
        interpretations
            .any(|signature| messages.iter().any(|message| key.verify(message, &signature.to_bytes()).is_ok()))
    }
}

impl fmt::Debug for P256PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.fingerprint().as_deref().unwrap_or("P256PublicKey"))
    }
}

/// An ECDSA signature as an agent sends it: the hex of 64 bytes r‖s, or of strict DER.
///
/// In rare cases, the same 64 bytes are valid in both forms. Then we keep both, and accept the one that verifies.
#[derive(Debug, Clone, Copy)]
pub struct EcdsaSignature([Option<Signature>; 2]);

impl EcdsaSignature {
    /// Parses the hex of a signature. Accepts a high `s`, because HSMs produce it, and refuses a zero or out-of-range `r` or `s`.
    pub fn from_hex(text: &str) -> Result<Self, SignatureError> {
        // A DER signature has at most 72 bytes: two integers of 33 bytes and 6 bytes of tags and lengths.
        if text.len() > 144 {
            return Err(SignatureError);
        }
        let bytes = hex::decode(text).map_err(|_| SignatureError)?;
        let interpretations = [Signature::from_slice(&bytes).ok(), Signature::from_der(&bytes).ok()];
        if interpretations.iter().all(Option::is_none) { Err(SignatureError) } else { Ok(Self(interpretations)) }
    }

    /// The signature of a JWS: 64 bytes r‖s (RFC 7518, section 3.4).
    pub fn from_jws(bytes: &[u8]) -> Result<Self, SignatureError> {
        let signature = Signature::from_slice(bytes).map_err(|_| SignatureError)?;
        Ok(Self([Some(signature), None]))
    }

    /// The signature in the form of a JWS: 64 bytes r‖s (RFC 7518, section 3.4). A signature that was valid in both forms is taken
    /// as r‖s.
    pub fn to_jws(&self) -> Option<Vec<u8>> {
        let [raw, der] = self.0;
        raw.or(der).map(|signature| signature.to_bytes().to_vec())
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;
    use p256::{SecretKey, ecdsa::signature::Signer, pkcs8::EncodePrivateKey};

    fn secret_key() -> SecretKey {
        SecretKey::from_slice(&[7; 32]).unwrap()
    }

    fn pem() -> String {
        secret_key().public_key().to_public_key_pem(LineEnding::LF).unwrap()
    }

    #[test]
    fn from_pem_reports_why_a_key_is_refused() {
        let private = secret_key().to_pkcs8_pem(LineEnding::LF).unwrap();
        assert_eq!(P256PublicKey::from_pem(&private), Err(PublicKeyError::Private));
        assert_eq!(P256PublicKey::from_pem(&format!("{}{}", pem(), *private)), Err(PublicKeyError::Private));
        assert_eq!(P256PublicKey::from_pem(&pem().repeat(2)), Err(PublicKeyError::NotOnePublicKey));
        assert_eq!(P256PublicKey::from_pem(&format!("{}x", pem())), Err(PublicKeyError::NotOnePublicKey));
        assert_eq!(
            P256PublicKey::from_pem(&pem().replace("PUBLIC KEY", "CERTIFICATE")),
            Err(PublicKeyError::NotOnePublicKey)
        );
        assert_eq!(P256PublicKey::from_pem(&" ".repeat(MAX_PEM_BYTES + 1)), Err(PublicKeyError::TooLong));
        assert_eq!(P256PublicKey::from_pem(&pem().replacen("MF", "MG", 1)), Err(PublicKeyError::NotP256));
        assert_eq!(P256PublicKey::from_sec1(&[0]), Err(PublicKeyError::NotP256), "the point at infinity");
        let mut off_curve = P256PublicKey::from_pem(&pem()).unwrap().to_sec1();
        off_curve[64] ^= 1;
        assert_eq!(P256PublicKey::from_sec1(&off_curve), Err(PublicKeyError::NotP256));
    }

    #[test]
    fn signature_of_one_of_the_messages_verifies() {
        let key = P256PublicKey::from_pem(&pem()).unwrap();
        let signature: Signature = p256::ecdsa::SigningKey::from(secret_key()).sign(b"nonce");
        let signature = EcdsaSignature::from_hex(&hex::encode(signature.to_bytes())).unwrap();
        assert!(key.verifies(&[b"other", b"nonce"], &signature));
        assert!(!key.verifies(&[b"other"], &signature));
    }
}
