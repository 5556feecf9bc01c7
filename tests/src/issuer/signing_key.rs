//! Key pairs of an issuer, and the tokens that they sign.

use super::with;
use crate::openssl::pem;
use aws_lc_rs::{
    hmac,
    rand::SystemRandom,
    rsa::KeySize,
    signature::{Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use p256::ecdsa::{Signature, signature::Signer};
use serde_json::{Value, json};

/// A key pair of the issuer that signs tokens.
pub struct SigningKey {
    kid: Option<String>,
    key: KeyMaterial,
}

enum KeyMaterial {
    Rsa(Box<RsaKeyPair>),
    P256(p256::ecdsa::SigningKey),
    Ed25519(Ed25519KeyPair),
}

impl SigningKey {
    /// A new RSA key of 2048 bits.
    pub fn rsa(kid: &str) -> Self {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).expect("the key can be generated");
        Self::new(kid, KeyMaterial::Rsa(Box::new(pair)))
    }

    /// A new P-256 key.
    pub fn p256(kid: &str) -> Self {
        let mut bytes = [0; 32];
        let key = std::iter::repeat_with(|| {
            aws_lc_rs::rand::SecureRandom::fill(&SystemRandom::new(), &mut bytes).expect("random bytes are available");
            p256::ecdsa::SigningKey::from_slice(&bytes).ok()
        });
        Self::new(kid, KeyMaterial::P256(key.flatten().next().expect("a valid key is generated")))
    }

    /// A new Ed25519 key.
    pub fn ed25519(kid: &str) -> Self {
        Self::new(kid, KeyMaterial::Ed25519(Ed25519KeyPair::generate().expect("the key can be generated")))
    }

    fn new(kid: &str, key: KeyMaterial) -> Self {
        Self { kid: Some(kid.to_owned()), key }
    }

    /// The same key without a `kid`.
    pub fn without_kid(self) -> Self {
        Self { kid: None, ..self }
    }

    /// The `alg` value.
    pub const fn algorithm(&self) -> &'static str {
        match self.key {
            KeyMaterial::Rsa(_) => "RS256",
            KeyMaterial::P256(_) => "ES256",
            KeyMaterial::Ed25519(_) => "EdDSA",
        }
    }

    /// The public key as JWK.
    pub fn jwk(&self) -> Value {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let mut jwk = match &self.key {
            KeyMaterial::Rsa(pair) => {
                let (n, e) = (pair.public_key().modulus(), pair.public_key().exponent());
                let (n, e) = (n.big_endian_without_leading_zero(), e.big_endian_without_leading_zero());
                json!({ "kty": "RSA", "n": encode(n), "e": encode(e) })
            }
            KeyMaterial::P256(key) => {
                let point = key.verifying_key().to_sec1_point(false);
                let (x, y) = point.as_bytes()[1..].split_at(32);
                json!({ "kty": "EC", "crv": "P-256", "x": encode(x), "y": encode(y) })
            }
            KeyMaterial::Ed25519(pair) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": encode(pair.public_key().as_ref()) })
            }
        };
        jwk["use"] = "sig".into();
        if let Some(kid) = &self.kid {
            jwk["kid"] = kid.as_str().into();
        }
        jwk
    }

    /// A token with these claims.
    pub fn token(&self, claims: &Value) -> String {
        let header = json!({ "alg": self.algorithm(), "typ": "JWT" });
        self.signed(&with(header, "kid", json!(self.kid)), claims)
    }

    /// A token with any header and claims, signed with this key.
    pub fn signed(&self, header: &Value, claims: &Value) -> String {
        let signing_input = signing_input(header, claims);
        let signature = match &self.key {
            KeyMaterial::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                let signed =
                    pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signing_input.as_bytes(), &mut signature);
                signed.expect("the key signs");
                signature
            }
            KeyMaterial::P256(key) => Signer::<Signature>::sign(key, signing_input.as_bytes()).to_bytes().to_vec(),
            KeyMaterial::Ed25519(pair) => pair.sign(signing_input.as_bytes()).as_ref().to_vec(),
        };
        compact_jws(signing_input, &signature)
    }

    /// The public key as PEM, for tests of algorithm confusion: a vulnerable verifier uses it as HMAC secret.
    pub fn public_pem(&self) -> String {
        use aws_lc_rs::encoding::AsDer;
        use p256::pkcs8::{EncodePublicKey, LineEnding};
        match &self.key {
            KeyMaterial::Rsa(pair) => {
                pem("PUBLIC KEY", pair.public_key().as_der().expect("the key can be encoded").as_ref())
            }
            KeyMaterial::Ed25519(pair) => {
                pem("PUBLIC KEY", pair.public_key().as_der().expect("the key can be encoded").as_ref())
            }
            KeyMaterial::P256(key) => {
                key.verifying_key().to_public_key_pem(LineEnding::LF).expect("the key can be encoded")
            }
        }
    }
}

/// A token with an HMAC-SHA256 signature.
pub fn hs256(secret: &[u8], header: &Value, claims: &Value) -> String {
    let signing_input = signing_input(header, claims);
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signing_input.as_bytes());
    compact_jws(signing_input, tag.as_ref())
}

/// A token with an empty signature.
pub fn unsigned(header: &Value, claims: &Value) -> String {
    compact_jws(signing_input(header, claims), b"")
}

fn signing_input(header: &Value, claims: &Value) -> String {
    let [header, claims] = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
    format!("{header}.{claims}")
}

fn compact_jws(signing_input: String, signature: &[u8]) -> String {
    signing_input + "." + &URL_SAFE_NO_PAD.encode(signature)
}
