//! Changes valid tokens and signs them again with the real key.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use countersign_tests::{ControlPlane, Database};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use p256::{
    SecretKey,
    ecdsa::{Signature, SigningKey, signature::Signer as _},
    pkcs8::{DecodePrivateKey, EncodePublicKey, LineEnding},
};
use serde_json::Value;

/// The header and claims of a valid token, and the key that signed it.
pub struct Signer {
    pub header: Value,
    pub claims: Value,
    key: SigningKey,
}

impl Signer {
    /// Uses the key that signs access tokens, from the database of the control plane.
    pub async fn with_access_token_key(control: &ControlPlane, token: &str) -> Self {
        let (kid, key) = Database::connect_to(control).await.signing_key(control).await;
        let signer = Self::new(key, token);
        assert_eq!(signer.header["kid"], kid);
        signer
    }

    /// Uses the operator key, from the data folder of the control plane.
    pub fn with_operator_key(control: &ControlPlane, token: &str) -> Self {
        let key = SecretKey::read_pkcs8_pem_file(control.folder().join("operator.key")).unwrap();
        Self::new(SigningKey::from(&key), token)
    }

    fn new(key: SigningKey, token: &str) -> Self {
        let decode = |part: &str| serde_json::from_slice(&BASE64.decode(part).unwrap()).unwrap();
        let [header, claims, _] = token.split('.').collect::<Vec<_>>().try_into().unwrap();
        Self { header: decode(header), claims: decode(claims), key }
    }

    /// Signs this header and payload, which need not be valid JSON.
    pub fn sign(&self, header: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> String {
        let message = format!("{}.{}", BASE64.encode(header), BASE64.encode(payload));
        let signature: Signature = self.key.sign(message.as_bytes());
        format!("{message}.{}", BASE64.encode(signature.to_bytes()))
    }

    /// A token with some claims replaced, or removed if the value is null.
    pub fn with_claims(&self, changes: &Value) -> String {
        self.sign(self.header.to_string(), with_changes(&self.claims, changes))
    }

    /// A token with this payload.
    pub fn with_payload(&self, payload: impl AsRef<[u8]>) -> String {
        self.sign(self.header.to_string(), payload)
    }

    /// A token with some header members replaced, or removed if the value is null.
    pub fn with_header(&self, changes: &Value) -> String {
        self.sign(with_changes(&self.header, changes), self.claims.to_string())
    }

    /// A token with the same claims and an HS256 signature with `secret` as key.
    pub fn hs256(&self, secret: &[u8]) -> String {
        let mut header = Header::new(Algorithm::HS256);
        header.typ = self.header["typ"].as_str().map(str::to_owned);
        header.kid = self.header["kid"].as_str().map(str::to_owned);
        jsonwebtoken::encode(&header, &self.claims, &EncodingKey::from_secret(secret)).unwrap()
    }

    /// The public key as PEM.
    pub fn public_pem(&self) -> String {
        self.key.verifying_key().to_public_key_pem(LineEnding::LF).unwrap()
    }
}

fn with_changes(object: &Value, changes: &Value) -> String {
    let mut object = object.as_object().unwrap().clone();
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(object.remove(name)),
            value => drop(object.insert(name.clone(), value.clone())),
        }
    }
    Value::Object(object).to_string()
}
