//! The public half of a P-256 key: how it is read, named and used to verify.
//!
//! `p256` parses, since it checks that a point lies on the curve; aws-lc verifies, since it is five
//! times faster. This is the only place where the two meet.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use base64::{Engine, engine::general_purpose::STANDARD};
use p256::{
    ecdsa::Signature,
    elliptic_curve::sec1::ToSec1Point,
    pkcs8::{DecodePublicKey, EncodePublicKey, LineEnding, SubjectPublicKeyInfoRef},
};
use sha2::{Digest, Sha256};
use std::fmt;

const BEGIN: &str = "-----BEGIN PUBLIC KEY-----";
const END: &str = "-----END PUBLIC KEY-----";

/// The longest PEM that is read, in bytes.
pub const MAX_PEM_BYTES: usize = 4096;

/// Why a text is not accepted as an agent's public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublicKeyError {
    /// Longer than [`MAX_PEM_BYTES`].
    #[error("must not be longer than 4096 bytes")]
    TooLong,
    /// A secret was sent where a public key belongs.
    #[error(
        "is a private key: never send it; send the public half (`openssl pkey -in agent.key -pubout`) and make a new key, since this one has left its holder"
    )]
    Private,
    /// Not exactly one PEM block labelled `PUBLIC KEY`.
    #[error("must be exactly one PEM block `-----BEGIN PUBLIC KEY-----`")]
    NotOnePublicKey,
    /// The block does not hold a point on the curve P-256 with named parameters.
    #[error("must be a public key on the curve P-256 (`openssl ecparam -name prime256v1 -genkey`)")]
    NotP256,
}

/// Why a text is not accepted as a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be the hex of a P-256 signature, as 64 bytes r‖s or in DER")]
pub struct SignatureError;

/// An agent's public key on P-256.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct P256PublicKey(p256::PublicKey);

impl P256PublicKey {
    /// Reads one PEM block `PUBLIC KEY`. Line ends may be CRLF, the point may be compressed.
    pub fn from_pem(pem: &str) -> Result<Self, PublicKeyError> {
        if pem.len() > MAX_PEM_BYTES {
            return Err(PublicKeyError::TooLong);
        }
        if pem.contains("PRIVATE KEY") {
            return Err(PublicKeyError::Private);
        }
        let block = pem.trim();
        let one_block = block.starts_with(BEGIN)
            && block.ends_with(END)
            && block.len() >= BEGIN.len() + END.len()
            && block.matches("-----BEGIN").count() == 1;
        if !one_block {
            return Err(PublicKeyError::NotOnePublicKey);
        }
        Self::from_spki_base64(&block[BEGIN.len()..block.len() - END.len()]).ok_or(PublicKeyError::NotP256)
    }

    /// Lines may be of any length: keys come out of many libraries.
    fn from_spki_base64(text: &str) -> Option<Self> {
        let compact: String = text.split_ascii_whitespace().collect();
        let der = STANDARD.decode(compact).ok()?;
        let point = SubjectPublicKeyInfoRef::try_from(der.as_slice()).ok()?.subject_public_key.as_bytes()?;
        // Compressed or whole; p256 would read the compact form too, which no standard for keys knows.
        matches!(point.first(), Some(2..=4)).then(|| p256::PublicKey::from_public_key_der(&der).ok())?.map(Self)
    }

    /// Reads the 65 bytes of an uncompressed point, and none of the shorter forms that p256 knows.
    pub fn from_sec1(bytes: &[u8]) -> Result<Self, PublicKeyError> {
        let whole = Some(bytes).filter(|bytes| bytes.first() == Some(&4));
        let point = whole.and_then(|bytes| p256::PublicKey::from_sec1_bytes(bytes).ok());
        point.map(Self).ok_or(PublicKeyError::NotP256)
    }

    /// The uncompressed point: `04 ‖ x ‖ y`.
    pub fn to_sec1(self) -> [u8; 65] {
        let point = self.0.to_sec1_point(false);
        let mut bytes = [0; 65];
        bytes.copy_from_slice(point.as_bytes());
        bytes
    }

    /// The canonical PEM, which reads back as the same key.
    pub fn to_pem(self) -> Result<String, PublicKeyError> {
        self.0.to_public_key_pem(LineEnding::LF).map_err(|_| PublicKeyError::NotP256)
    }

    /// The key's fingerprint, `sha256:<hex>` over its canonical uncompressed SPKI DER.
    pub fn fingerprint(self) -> Result<String, PublicKeyError> {
        let der = self.0.to_public_key_der().map_err(|_| PublicKeyError::NotP256)?;
        Ok(format!("sha256:{}", hex::encode(Sha256::digest(der.as_bytes()))))
    }

    /// True if any of the signature's readings fits any of the messages.
    pub fn verifies(self, messages: &[&[u8]], signature: &EcdsaSignature) -> bool {
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.to_sec1());
        let readings = signature.0.iter().flatten();
        readings
            .into_iter()
            .any(|reading| messages.iter().any(|message| key.verify(message, &reading.to_bytes()).is_ok()))
    }
}

impl fmt::Debug for P256PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.fingerprint().as_deref().unwrap_or("P256PublicKey"))
    }
}

/// A signature as an agent sends it: hex of 64 bytes r‖s, or of strict DER.
///
/// 64 bytes can in rare cases be read both ways, so both readings are kept.
#[derive(Debug, Clone, Copy)]
pub struct EcdsaSignature([Option<Signature>; 2]);

impl EcdsaSignature {
    /// Reads either form. High-S is accepted, since HSMs produce it; zero and out-of-range are not.
    pub fn from_hex(text: &str) -> Result<Self, SignatureError> {
        // The longest DER of two 33-byte integers has 72 bytes.
        if text.len() > 144 {
            return Err(SignatureError);
        }
        let bytes = hex::decode(text).map_err(|_| SignatureError)?;
        let readings = [Signature::from_slice(&bytes).ok(), Signature::from_der(&bytes).ok()];
        if readings.iter().all(Option::is_none) { Err(SignatureError) } else { Ok(Self(readings)) }
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;
    use p256::{SecretKey, ecdsa::signature::Signer, pkcs8::EncodePrivateKey};

    fn secret() -> SecretKey {
        SecretKey::from_slice(&[7; 32]).unwrap()
    }

    fn pem() -> String {
        secret().public_key().to_public_key_pem(LineEnding::LF).unwrap()
    }

    #[test]
    fn one_key_has_one_fingerprint_in_every_spelling() {
        let plain = P256PublicKey::from_pem(&pem()).unwrap();
        let crlf = P256PublicKey::from_pem(&pem().replace('\n', "\r\n")).unwrap();
        let sec1 = P256PublicKey::from_sec1(&plain.to_sec1()).unwrap();
        assert_eq!(plain.fingerprint().unwrap(), crlf.fingerprint().unwrap());
        assert_eq!(plain, sec1);
        assert_eq!(P256PublicKey::from_pem(&plain.to_pem().unwrap()).unwrap(), plain);
    }

    #[test]
    fn what_is_not_one_public_key_is_refused_by_name() {
        let private = secret().to_pkcs8_pem(LineEnding::LF).unwrap();
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
        assert_eq!(P256PublicKey::from_sec1(&[0]), Err(PublicKeyError::NotP256), "infinity");
        let mut off_curve = P256PublicKey::from_pem(&pem()).unwrap().to_sec1();
        off_curve[64] ^= 1;
        assert_eq!(P256PublicKey::from_sec1(&off_curve), Err(PublicKeyError::NotP256));
    }

    #[test]
    fn a_point_that_is_compressed_or_compact_is_not_taken_for_a_whole_one() {
        let point = P256PublicKey::from_pem(&pem()).unwrap().to_sec1();
        for tag in [2 + (point[64] & 1), 5] {
            assert_eq!(
                P256PublicKey::from_sec1(&[&[tag], &point[1..33]].concat()),
                Err(PublicKeyError::NotP256),
                "{tag}"
            );
        }
    }

    #[test]
    fn both_forms_verify_and_a_changed_bit_does_not() {
        let key = P256PublicKey::from_pem(&pem()).unwrap();
        let signature: Signature = p256::ecdsa::SigningKey::from(secret()).sign(b"nonce");
        let high_s = Signature::from_scalars(signature.r().to_bytes(), (-*signature.s()).to_bytes()).unwrap();
        for good in [
            hex::encode(signature.to_bytes()),
            hex::encode(signature.to_der().as_bytes()),
            hex::encode(high_s.to_bytes()),
        ] {
            let read = EcdsaSignature::from_hex(&good).unwrap();
            assert!(key.verifies(&[b"other", b"nonce"], &read));
            assert!(!key.verifies(&[b"other"], &read));
        }
        let mut bent = signature.to_bytes();
        bent[40] ^= 1;
        assert!(!EcdsaSignature::from_hex(&hex::encode(bent)).is_ok_and(|read| key.verifies(&[b"nonce"], &read)));
    }

    #[test]
    fn what_is_no_signature_is_refused() {
        let der = "3006020101020101";
        assert!(EcdsaSignature::from_hex(der).is_ok());
        let order = "ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551";
        for bad in [
            String::new(),
            "zz".into(),
            "00".repeat(64),
            format!("{order}{order}"),
            format!("{der}00"),
            "308106020101020101".into(),
            "300702020001020101".into(),
            "ab".repeat(500),
        ] {
            assert!(EcdsaSignature::from_hex(&bad).is_err(), "{bad}");
        }
    }
}
