//! A JWK set (RFC 7517): parses the keys of an issuer and selects the key for a token.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::DecodingKey;
use serde::Deserialize;
use serde_json::Value;
use std::{ops::RangeInclusive, sync::Arc};

/// Size of an RSA modulus in bits. RSA keys below 2048 bits are too weak (RFC 7518, section 3.3); keys above 8192 bits make
/// verification too slow.
const RSA_MODULUS_BITS: RangeInclusive<usize> = 2048..=8192;

/// Size of an RSA exponent in bytes. Nearly all RSA keys have the exponent 65537.
const RSA_EXPONENT_BYTES: RangeInclusive<usize> = 1..=4;

/// A signature algorithm accepted in tokens of human users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JwsAlgorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// Ed25519.
    EdDsa,
}

/// The usable keys of an issuer.
#[derive(Debug, Default)]
pub struct JwkSet(Vec<VerificationKey>);

/// A public key for one algorithm.
#[derive(Debug)]
struct VerificationKey {
    kid: Option<String>,
    algorithm: JwsAlgorithm,
    public: PublicKey,
    decoding_key: Arc<DecodingKey>,
}

#[derive(Debug, PartialEq, Eq)]
enum PublicKey {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// The result of a key lookup.
#[derive(Debug)]
pub enum KeyMatch {
    /// Exactly one key matches.
    Unique(Arc<DecodingKey>),
    /// The set does not contain the key. A newer set may contain the key.
    Unknown,
    /// The algorithm of the key is not that of the token, or several keys match. Fetching the JWK set again would not help.
    Unusable,
}

/// Why a document cannot replace the keys of an issuer.
#[derive(Debug, thiserror::Error)]
pub enum InvalidJwkSet {
    /// The document is not a JWK set.
    #[error("not a JWK set: must be a JSON object with an array `keys`")]
    Malformed,
    /// No token could be verified. A program that fails to write the file is more likely than an issuer without keys.
    #[error("contains no usable key: the keys in use stay in use")]
    NoUsableKey,
}

#[derive(Deserialize)]
struct RawJwkSet {
    keys: Vec<Value>,
}

/// The members of a JWK that are evaluated; all further members are ignored.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(rename = "use")]
    usage: Option<String>,
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

/// The algorithm of a token is not accepted.
#[derive(Debug)]
pub struct UnsupportedAlgorithm;

impl TryFrom<jsonwebtoken::Algorithm> for JwsAlgorithm {
    type Error = UnsupportedAlgorithm;

    fn try_from(algorithm: jsonwebtoken::Algorithm) -> Result<Self, UnsupportedAlgorithm> {
        match algorithm {
            jsonwebtoken::Algorithm::RS256 => Ok(Self::Rs256),
            jsonwebtoken::Algorithm::ES256 => Ok(Self::Es256),
            jsonwebtoken::Algorithm::EdDSA => Ok(Self::EdDsa),
            _ => Err(UnsupportedAlgorithm),
        }
    }
}

impl From<JwsAlgorithm> for jsonwebtoken::Algorithm {
    fn from(algorithm: JwsAlgorithm) -> Self {
        match algorithm {
            JwsAlgorithm::Rs256 => Self::RS256,
            JwsAlgorithm::Es256 => Self::ES256,
            JwsAlgorithm::EdDsa => Self::EdDSA,
        }
    }
}

impl JwsAlgorithm {
    /// Values of `alg` in a JWK for the algorithm. RFC 9864 renames `EdDSA` with Ed25519 to `Ed25519`.
    const fn jwk_names(self) -> &'static [&'static str] {
        match self {
            Self::Rs256 => &["RS256"],
            Self::Es256 => &["ES256"],
            Self::EdDsa => &["EdDSA", "Ed25519"],
        }
    }
}

impl JwkSet {
    /// Parses a JWK set. Unusable keys are ignored, as RFC 7517 requires.
    pub fn parse(json: &[u8]) -> Result<Self, InvalidJwkSet> {
        let RawJwkSet { keys } = serde_json::from_slice(json).map_err(|_| InvalidJwkSet::Malformed)?;
        let mut usable: Vec<VerificationKey> = Vec::new();
        let jwks = keys.into_iter().filter_map(|jwk| serde_json::from_value(jwk).ok());
        for key in jwks.filter_map(VerificationKey::from_jwk) {
            // Ignore repeated keys, because `find` refuses a `kid` with two matching keys.
            if !usable.iter().any(|other| other.kid == key.kid && other.public == key.public) {
                usable.push(key);
            }
        }
        Ok(Self(usable))
    }

    /// Fails if the set has no usable key.
    pub fn require_usable_key(self) -> Result<Self, InvalidJwkSet> {
        if self.0.is_empty() { Err(InvalidJwkSet::NoUsableKey) } else { Ok(self) }
    }

    /// The number of usable keys.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Finds the key for a token with the given `kid` and algorithm.
    pub fn find(&self, kid: Option<&str>, algorithm: JwsAlgorithm) -> KeyMatch {
        let with_kid = || self.0.iter().filter(|key| kid.is_none() || key.kid.as_deref() == kid);
        let mut matching = with_kid().filter(|key| key.algorithm == algorithm);
        match (matching.next(), matching.next()) {
            (Some(key), None) => KeyMatch::Unique(key.decoding_key.clone()),
            (None, _) if kid.is_none() || with_kid().next().is_none() => KeyMatch::Unknown,
            _ => KeyMatch::Unusable,
        }
    }
}

impl VerificationKey {
    fn from_jwk(jwk: Jwk) -> Option<Self> {
        let Jwk { kty, usage, key_ops, alg, kid, crv, x, y, n, e, d } = jwk;
        // Ignore a JWK with a private key (`d`): a published private key is compromised.
        if d.is_some() || usage.is_some_and(|usage| usage != "sig") {
            return None;
        }
        if key_ops.is_some_and(|operations| !operations.iter().any(|operation| operation == "verify")) {
            return None;
        }
        let (algorithm, public) = match (kty.as_str(), crv.as_deref()) {
            ("RSA", _) => (JwsAlgorithm::Rs256, PublicKey::rsa(&n?, &e?)?),
            ("EC", Some("P-256")) => (JwsAlgorithm::Es256, PublicKey::p256(&x?, &y?)?),
            ("OKP", Some("Ed25519")) => (JwsAlgorithm::EdDsa, PublicKey::ed25519(&x?)?),
            _ => return None,
        };
        let matches_alg = alg.is_none_or(|alg| algorithm.jwk_names().contains(&alg.as_str()));
        matches_alg.then(|| Self { kid, algorithm, decoding_key: Arc::new(public.decoding_key()), public })
    }
}

impl PublicKey {
    fn rsa(n: &str, e: &str) -> Option<Self> {
        let (n, e) = (base64url_uint(n)?, base64url_uint(e)?);
        let bits = n.len() * 8 - usize::try_from(n.first()?.leading_zeros()).ok()?;
        let is_odd = |number: &[u8]| number.last().is_some_and(|byte| byte % 2 == 1);
        let is_valid = RSA_MODULUS_BITS.contains(&bits)
            && RSA_EXPONENT_BYTES.contains(&e.len())
            && is_odd(&n)
            && is_odd(&e)
            && e != [1];
        is_valid.then_some(Self::Rsa { n, e })
    }

    fn p256(x: &str, y: &str) -> Option<Self> {
        let (x, y) = (URL_SAFE_NO_PAD.decode(x).ok()?, URL_SAFE_NO_PAD.decode(y).ok()?);
        let point = [&[4], x.as_slice(), y.as_slice()].concat();
        let is_valid = x.len() == 32 && y.len() == 32 && p256::PublicKey::from_sec1_bytes(&point).is_ok();
        is_valid.then_some(Self::P256(point))
    }

    fn ed25519(x: &str) -> Option<Self> {
        URL_SAFE_NO_PAD.decode(x).ok().filter(|x| x.len() == 32).map(Self::Ed25519)
    }

    fn decoding_key(&self) -> DecodingKey {
        match self {
            Self::Rsa { n, e } => DecodingKey::from_rsa_raw_components(n, e),
            Self::P256(point) => DecodingKey::from_ec_der(point),
            Self::Ed25519(x) => DecodingKey::from_ed_der(x),
        }
    }
}

/// Decodes a `Base64urlUInt` (RFC 7518), and removes the leading zeros that some issuers add.
fn base64url_uint(text: &str) -> Option<Vec<u8>> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let first = bytes.iter().position(|byte| *byte != 0)?;
    Some(bytes[first..].to_vec())
}

#[cfg(test)]
mod tests;
