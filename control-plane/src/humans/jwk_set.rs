//! A JWKS (RFC 7517): the keys of an issuer that can verify what we accept, and which of them a token means.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::DecodingKey;
use serde::Deserialize;
use serde_json::Value;
use std::{ops::RangeInclusive, sync::Arc};

/// Bits of an RSA modulus: fewer are too weak (RFC 7518, section 3.3), more are a burden.
const RSA_BITS: RangeInclusive<usize> = 2048..=8192;

/// Bytes of an RSA exponent. It is 65537 nearly always.
const RSA_EXPONENT: RangeInclusive<usize> = 1..=4;

/// What a person's token may be signed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// Ed25519.
    EdDsa,
}

/// The keys of an issuer.
#[derive(Debug, Default)]
pub struct KeySet(Vec<Key>);

/// A key, good for one algorithm.
#[derive(Debug)]
struct Key {
    kid: Option<String>,
    algorithm: Algorithm,
    material: Material,
    verifier: Arc<DecodingKey>,
}

#[derive(Debug, PartialEq, Eq)]
enum Material {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// Which key a token means.
#[derive(Debug)]
pub enum Pick {
    /// This one.
    Found(Arc<DecodingKey>),
    /// One that is not in the set.
    Unknown,
    /// One that is for something else, or any of several: no other set will make it good.
    Unfit,
}

/// Not a JSON object with a list `keys`.
#[derive(Debug, thiserror::Error)]
#[error("is no JWKS: a JSON object with a list `keys`")]
pub struct NoKeySet;

#[derive(Deserialize)]
struct Jwks {
    keys: Vec<Value>,
}

/// What we look at in a key; members that we do not know change nothing.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(rename = "use")]
    intended: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    kid: Option<String>,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
    n: Option<String>,
    e: Option<String>,
    d: Option<Value>,
}

impl Algorithm {
    /// The algorithm of a token's header, if it is one of ours.
    pub const fn of(algorithm: jsonwebtoken::Algorithm) -> Option<Self> {
        match algorithm {
            jsonwebtoken::Algorithm::RS256 => Some(Self::Rs256),
            jsonwebtoken::Algorithm::ES256 => Some(Self::Es256),
            jsonwebtoken::Algorithm::EdDSA => Some(Self::EdDsa),
            _ => None,
        }
    }

    /// As the library says it.
    pub const fn in_library(self) -> jsonwebtoken::Algorithm {
        match self {
            Self::Rs256 => jsonwebtoken::Algorithm::RS256,
            Self::Es256 => jsonwebtoken::Algorithm::ES256,
            Self::EdDsa => jsonwebtoken::Algorithm::EdDSA,
        }
    }

    /// What a key for it may say in `alg`; RFC 9864 has another name for the last.
    const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Rs256 => &["RS256"],
            Self::Es256 => &["ES256"],
            Self::EdDsa => &["EdDSA", "Ed25519"],
        }
    }
}

impl KeySet {
    /// Reads a JWKS. A key that we cannot use is passed over, as RFC 7517 wants it, and does not spoil the others.
    pub fn read(json: &[u8]) -> Result<Self, NoKeySet> {
        let Jwks { keys } = serde_json::from_slice(json).map_err(|_| NoKeySet)?;
        let mut usable: Vec<Key> = Vec::new();
        for key in keys.into_iter().filter_map(|jwk| serde_json::from_value(jwk).ok()).filter_map(Key::read) {
            // The same key said twice is one key.
            if !usable.iter().any(|other| other.kid == key.kid && other.material == key.material) {
                usable.push(key);
            }
        }
        Ok(Self(usable))
    }

    /// How many keys can be used.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// The one key that a token with this `kid` and algorithm can mean.
    pub fn pick(&self, kid: Option<&str>, algorithm: Algorithm) -> Pick {
        let named = || self.0.iter().filter(|key| kid.is_none() || key.kid.as_deref() == kid);
        let mut fitting = named().filter(|key| key.algorithm == algorithm);
        match (fitting.next(), fitting.next()) {
            (Some(key), None) => Pick::Found(key.verifier.clone()),
            (None, _) if kid.is_none() || named().next().is_none() => Pick::Unknown,
            _ => Pick::Unfit,
        }
    }
}

impl Key {
    fn read(jwk: Jwk) -> Option<Self> {
        let Jwk { kty, intended, key_ops, alg, kid, crv, x, y, n, e, d } = jwk;
        // A private key that is published is everybody's.
        if d.is_some() || intended.is_some_and(|intended| intended != "sig") {
            return None;
        }
        if key_ops.is_some_and(|operations| !operations.iter().any(|operation| operation == "verify")) {
            return None;
        }
        let (algorithm, material) = match (kty.as_str(), crv.as_deref()) {
            ("RSA", _) => (Algorithm::Rs256, Material::rsa(&n?, &e?)?),
            ("EC", Some("P-256")) => (Algorithm::Es256, Material::p256(&x?, &y?)?),
            ("OKP", Some("Ed25519")) => (Algorithm::EdDsa, Material::ed25519(&x?)?),
            _ => return None,
        };
        let fits = alg.is_none_or(|alg| algorithm.names().contains(&alg.as_str()));
        fits.then(|| Self { kid, algorithm, verifier: Arc::new(material.verifier()), material })
    }
}

impl Material {
    fn rsa(n: &str, e: &str) -> Option<Self> {
        let (n, e) = (number(n)?, number(e)?);
        let bits = n.len() * 8 - usize::try_from(n.first()?.leading_zeros()).ok()?;
        let odd = |number: &[u8]| number.last().is_some_and(|byte| byte % 2 == 1);
        let sound = RSA_BITS.contains(&bits) && RSA_EXPONENT.contains(&e.len()) && odd(&n) && odd(&e) && e != [1];
        sound.then_some(Self::Rsa { n, e })
    }

    fn p256(x: &str, y: &str) -> Option<Self> {
        let (x, y) = (URL_SAFE_NO_PAD.decode(x).ok()?, URL_SAFE_NO_PAD.decode(y).ok()?);
        let point = [&[4], x.as_slice(), y.as_slice()].concat();
        let on_curve = x.len() == 32 && y.len() == 32 && p256::PublicKey::from_sec1_bytes(&point).is_ok();
        on_curve.then_some(Self::P256(point))
    }

    fn ed25519(x: &str) -> Option<Self> {
        URL_SAFE_NO_PAD.decode(x).ok().filter(|x| x.len() == 32).map(Self::Ed25519)
    }

    fn verifier(&self) -> DecodingKey {
        match self {
            Self::Rsa { n, e } => DecodingKey::from_rsa_raw_components(n, e),
            Self::P256(point) => DecodingKey::from_ec_der(point),
            Self::Ed25519(x) => DecodingKey::from_ed_der(x),
        }
    }
}

/// A `Base64urlUInt`, without the zeros that some issuers put before it.
fn number(text: &str) -> Option<Vec<u8>> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let first = bytes.iter().position(|byte| *byte != 0)?;
    Some(bytes[first..].to_vec())
}

#[cfg(test)]
mod tests;
