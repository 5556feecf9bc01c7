//! A JWK set (RFC 7517): parses the keys of an issuer and selects the key for a token.
//!
//! `jsonwebtoken` parses and decodes each JWK, but checks the key itself only when it verifies a signature. So this module decides
//! which keys are usable.

use countersign_identity::Reason;
use jsonwebtoken::{
    Algorithm, DecodingKey, DecodingKeyKind,
    jwk::{AlgorithmParameters, CommonParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse},
};
use serde::Deserialize;
use serde_json::Value;
use std::{ops::RangeInclusive, sync::Arc};

/// Size of an RSA modulus in bits. RSA keys below 2048 bits are too weak (RFC 7518, section 3.3); keys above 8192 bits make
/// verification too slow.
const RSA_MODULUS_BITS: RangeInclusive<usize> = 2048..=8192;

/// Size of an RSA exponent in bytes: enough for 65537, which nearly all RSA keys have.
const RSA_EXPONENT_BYTES: RangeInclusive<usize> = 1..=4;

/// The algorithms that tokens of human users may be signed with.
pub const ACCEPTED_ALGORITHMS: [Algorithm; 3] = [Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];

#[derive(Debug, Default)]
pub struct JwkSet(Vec<VerificationKey>);

/// A public key for one of the [`ACCEPTED_ALGORITHMS`].
#[derive(Debug)]
struct VerificationKey {
    kid: Option<String>,
    algorithm: Algorithm,
    parameters: AlgorithmParameters,
    decoding_key: Arc<DecodingKey>,
}

#[derive(Debug)]
pub enum KeyMatch {
    Unique(Arc<DecodingKey>),
    /// The set does not contain the key. A newer set of the issuer may contain it.
    Unknown,
    /// The key is for another algorithm than the token, or several keys match. Fetching the set again would not help.
    Unusable,
}

/// A JWK set whose keys are parsed one by one, so that an invalid key does not make the others unusable.
#[derive(Deserialize)]
struct RawJwkSet {
    keys: Vec<Value>,
}

impl JwkSet {
    /// Parses a JWK set. Unusable keys are ignored, as RFC 7517 requires.
    pub fn parse(json: &[u8]) -> Result<Self, &'static str> {
        let RawJwkSet { keys } =
            serde_json::from_slice(json).map_err(|_| "not a JWK set: must be a JSON object with an array `keys`")?;
        let mut usable: Vec<VerificationKey> = Vec::new();
        for key in keys.into_iter().filter_map(VerificationKey::from_jwk) {
            // Ignore repeated keys, because `find` refuses a `kid` with two matching keys.
            if !usable.iter().any(|other| other.kid == key.kid && other.parameters == key.parameters) {
                usable.push(key);
            }
        }
        Ok(Self(usable))
    }

    /// Fails if a set, which an operator keeps in a file, has no usable key. Such a file more likely comes from a failed write than
    /// from an issuer without keys, so the old keys stay in use.
    pub fn require_usable_key(self) -> Result<Self, &'static str> {
        if self.0.is_empty() { Err("contains no usable key: the keys in use stay in use") } else { Ok(self) }
    }

    /// Logs that an issuer has no usable key.
    pub fn warn_if_empty(&self, issuer: &str) {
        if self.0.is_empty() {
            tracing::warn!(issuer, "the issuer publishes no usable key: all its tokens are rejected");
        }
    }

    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Like [`Self::find`], for a set that cannot be fetched again, so an unknown key makes the token invalid.
    pub fn find_final(&self, kid: Option<&str>, algorithm: Algorithm) -> Result<Arc<DecodingKey>, Reason> {
        match self.find(kid, algorithm) {
            KeyMatch::Unique(key) => Ok(key),
            KeyMatch::Unknown | KeyMatch::Unusable => Err(Reason::HumanTokenInvalid),
        }
    }

    /// Finds the key for a token with the given `kid` and algorithm.
    pub fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> KeyMatch {
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
    fn from_jwk(mut json: Value) -> Option<Self> {
        // Ignore a JWK with a private key (`d`): a published private key is compromised.
        if !json["d"].is_null() {
            return None;
        }
        // RFC 9864 renames `EdDSA` with Ed25519 to `Ed25519`, a name that the library does not know.
        if json["alg"] == "Ed25519" {
            json["alg"] = "EdDSA".into();
        }
        let jwk: Jwk = serde_json::from_value(json).ok()?;
        let algorithm = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => Algorithm::RS256,
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => Algorithm::ES256,
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => Algorithm::EdDSA,
            _ => return None,
        };
        if !is_for_verification(&jwk.common, algorithm) {
            return None;
        }
        let decoding_key = Arc::new(valid_key(DecodingKey::from_jwk(&jwk).ok()?, algorithm)?);
        Some(Self { kid: jwk.common.key_id, algorithm, parameters: jwk.algorithm, decoding_key })
    }
}

/// Whether the issuer intends a key for verifying signatures of this algorithm. A member that the JWK lacks restricts nothing.
fn is_for_verification(common: &CommonParameters, algorithm: Algorithm) -> bool {
    common.public_key_use.as_ref().is_none_or(|usage| *usage == PublicKeyUse::Signature)
        && common.key_operations.as_ref().is_none_or(|operations| operations.contains(&KeyOperations::Verify))
        && common.key_algorithm.is_none_or(|stated| stated == algorithm.into())
}

/// Returns the key if it is well-formed and of an accepted size; else `None`.
fn valid_key(key: DecodingKey, algorithm: Algorithm) -> Option<DecodingKey> {
    match key.kind() {
        DecodingKeyKind::RsaModulusExponent { n, e } => {
            valid_rsa_key(without_leading_zeros(n), without_leading_zeros(e))
        }
        DecodingKeyKind::SecretOrDer(point) if algorithm == Algorithm::ES256 => {
            p256::PublicKey::from_sec1_bytes(point).is_ok().then_some(key)
        }
        DecodingKeyKind::SecretOrDer(point) => (point.len() == 32).then_some(key), // Ed25519
    }
}

fn valid_rsa_key(n: &[u8], e: &[u8]) -> Option<DecodingKey> {
    let bits = n.len() * 8 - usize::try_from(n.first()?.leading_zeros()).ok()?;
    let is_odd = |number: &[u8]| number.last().is_some_and(|byte| byte % 2 == 1);
    let is_valid =
        RSA_MODULUS_BITS.contains(&bits) && RSA_EXPONENT_BYTES.contains(&e.len()) && is_odd(n) && is_odd(e) && e != [1];
    is_valid.then(|| DecodingKey::from_rsa_raw_components(n, e))
}

/// Removes the zeros with which some issuers begin the numbers of an RSA key, because the cryptography library would refuse them.
fn without_leading_zeros(number: &[u8]) -> &[u8] {
    &number[number.iter().take_while(|byte| **byte == 0).count()..]
}

#[cfg(test)]
mod tests;
