//! Splits a valid token and builds forged tokens from its parts.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use countersign_tests::ControlPlane;
use p256::{
    SecretKey,
    ecdsa::{Signature, SigningKey, signature::Signer},
    elliptic_curve::Generate,
};
use serde_json::Value;

/// Name, token and expected reason.
pub type Case = (String, String, &'static str);

/// The parts of a valid token, and the key of an attacker.
pub struct Forger {
    pub header: Value,
    pub parts: [String; 3],
    pub attacker: SecretKey,
    pub jwk: Value,
}

impl Forger {
    pub async fn new(control: &ControlPlane, token: &str) -> Self {
        let parts: [String; 3] = token.split('.').map(str::to_owned).collect::<Vec<_>>().try_into().unwrap();
        let header: Value = serde_json::from_slice(&BASE64.decode(&parts[0]).unwrap()).unwrap();
        let jwk = control.api.get("/.well-known/jwks.json").await.expect(200)["keys"][0].clone();
        Self { header, parts, attacker: SecretKey::generate(), jwk }
    }

    /// The header with some members replaced, or removed if the value is null.
    pub fn header(&self, changes: &Value) -> String {
        let mut header = self.header.clone();
        for (name, value) in changes.as_object().unwrap() {
            match value {
                Value::Null => drop(header.as_object_mut().unwrap().remove(name)),
                value => header[name] = value.clone(),
            }
        }
        header.to_string()
    }

    /// A token with this header and payload, signed with the attacker's key.
    pub fn sign_as_attacker(&self, header: &str, payload: &[u8]) -> String {
        let message = format!("{}.{}", BASE64.encode(header), BASE64.encode(payload));
        let signature: Signature = SigningKey::from(&self.attacker).sign(message.as_bytes());
        format!("{message}.{}", BASE64.encode(signature.to_bytes()))
    }

    pub fn payload(&self) -> Vec<u8> {
        BASE64.decode(&self.parts[1]).unwrap()
    }

    pub fn claims(&self, changes: &Value) -> Vec<u8> {
        let mut claims: Value = serde_json::from_slice(&self.payload()).unwrap();
        claims.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        claims.to_string().into_bytes()
    }

    /// A token with another header and the unchanged signature of the issuer.
    pub fn with_header(&self, header: &str) -> String {
        format!("{}.{}.{}", BASE64.encode(header), self.parts[1], self.parts[2])
    }

    pub fn with_signature(&self, signature: &str) -> String {
        format!("{}.{}.{signature}", self.parts[0], self.parts[1])
    }

    pub fn point(&self) -> Vec<u8> {
        let coordinate = |name: &str| BASE64.decode(self.jwk[name].as_str().unwrap()).unwrap();
        [vec![4], coordinate("x"), coordinate("y")].concat()
    }
}

pub fn case(name: impl Into<String>, token: String, reason: &'static str) -> Case {
    (name.into(), token, reason)
}
