//! The public keys that verify access tokens, by `kid`, and their JWK form (RFC 7517).

use crate::public_key::{P256PublicKey, PublicKeyError};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, ParsedPublicKey};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::{collections::HashMap, str::FromStr, sync::Arc};

/// The length of a SHA-256 digest in bytes.
const THUMBPRINT_LEN: usize = 32;

/// A key id: the RFC 7638 thumbprint of the key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(into = "String")]
pub struct Kid(Arc<str>);

impl Kid {
    /// Wraps a `kid` without checking that it is a thumbprint: with any other text, no key is found.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Computes the thumbprint of a key.
    pub fn from_key(key: P256PublicKey) -> Self {
        let (x, y) = coordinates(key);
        let canonical = format!(r#"{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}"#);
        Self(URL_SAFE_NO_PAD.encode(Sha256::digest(canonical)).into())
    }

    /// The `kid` as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The text is not a thumbprint of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be the thumbprint of a key: 43 characters of base64url")]
pub struct InvalidKid;

impl FromStr for Kid {
    type Err = InvalidKid;

    fn from_str(text: &str) -> Result<Self, InvalidKid> {
        let mut thumbprint = [0; THUMBPRINT_LEN];
        match URL_SAFE_NO_PAD.decode_slice(text, &mut thumbprint) {
            Ok(THUMBPRINT_LEN) => Ok(Self::new(text)),
            Ok(_) | Err(_) => Err(InvalidKid),
        }
    }
}

impl From<Kid> for String {
    fn from(kid: Kid) -> Self {
        kid.0.as_ref().to_owned()
    }
}

fn coordinates(key: P256PublicKey) -> (String, String) {
    let point = key.to_sec1();
    (URL_SAFE_NO_PAD.encode(&point[1..33]), URL_SAFE_NO_PAD.encode(&point[33..]))
}

/// A key as published at `/.well-known/jwks.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JsonWebKey {
    kty: &'static str,
    crv: &'static str,
    x: String,
    y: String,
    kid: Kid,
    #[serde(rename = "use")]
    usage: &'static str,
    alg: &'static str,
}

impl JsonWebKey {
    /// The JWK of an ES256 signing key.
    pub fn from_key(key: P256PublicKey) -> Self {
        let (x, y) = coordinates(key);
        Self { kty: "EC", crv: "P-256", x, y, kid: Kid::from_key(key), usage: "sig", alg: "ES256" }
    }
}

/// The public keys that verify access tokens, by `kid`.
#[derive(Debug, Clone, Default)]
pub struct KeySet(HashMap<Kid, VerificationKey>);

/// A key, and its parsed form, which verifies signatures. Parsing takes time, so it is done once.
#[derive(Debug, Clone)]
struct VerificationKey {
    parsed: ParsedPublicKey,
    public: P256PublicKey,
}

impl KeySet {
    /// Creates a set from uncompressed points. Fails if any point is invalid.
    pub fn from_points<P: AsRef<[u8]>>(points: impl IntoIterator<Item = P>) -> Result<Self, PublicKeyError> {
        points.into_iter().map(|point| P256PublicKey::from_sec1(point.as_ref())).collect()
    }

    /// The key with this `kid`.
    pub fn get(&self, kid: &Kid) -> Option<&ParsedPublicKey> {
        self.0.get(kid).map(|key| &key.parsed)
    }

    /// The keys, in no order.
    pub fn public_keys(&self) -> impl Iterator<Item = P256PublicKey> {
        self.0.values().map(|key| key.public)
    }
}

impl FromIterator<P256PublicKey> for KeySet {
    fn from_iter<I: IntoIterator<Item = P256PublicKey>>(keys: I) -> Self {
        // Every `P256PublicKey` is a point on the curve, so aws-lc accepts all. If it refused a key, we would refuse its tokens.
        let verification_key = |public: P256PublicKey| {
            let parsed = ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, public.to_sec1()).ok()?;
            Some((Kid::from_key(public), VerificationKey { parsed, public }))
        };
        Self(keys.into_iter().filter_map(verification_key).collect())
    }
}
