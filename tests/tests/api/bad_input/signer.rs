//! A real key of ours in the wrong hands: a good token in parts, changed and signed again.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use countersign_tests::{ControlPlane, Database};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use p256::{
    SecretKey,
    ecdsa::{Signature, SigningKey, signature::Signer as _},
    pkcs8::{DecodePrivateKey, EncodePublicKey, LineEnding},
};
use serde_json::Value;

/// A good token's header and claims, and the key that signed it.
pub struct Signer {
    pub header: Value,
    pub claims: Value,
    key: SigningKey,
}

impl Signer {
    /// With the key that signs access tokens, out of the database of `at`.
    pub async fn access(at: &ControlPlane, token: &str) -> Self {
        let (kid, key) = Database::of(at).await.signing_key(at).await;
        let signer = Self::new(key, token);
        assert_eq!(signer.header["kid"], kid);
        signer
    }

    /// With the key that signs people's tokens, out of the folder of `at`.
    pub fn operator(at: &ControlPlane, token: &str) -> Self {
        let key = SecretKey::read_pkcs8_pem_file(at.folder().join("operator.key")).unwrap();
        Self::new(SigningKey::from(&key), token)
    }

    fn new(key: SigningKey, token: &str) -> Self {
        let part = |part: &str| serde_json::from_slice(&BASE64.decode(part).unwrap()).unwrap();
        let [header, claims, _] = token.split('.').collect::<Vec<_>>().try_into().unwrap();
        Self { header: part(header), claims: part(claims), key }
    }

    /// Header and payload as they are, signed.
    pub fn sign(&self, header: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> String {
        let message = format!("{}.{}", BASE64.encode(header), BASE64.encode(payload));
        let signature: Signature = self.key.sign(message.as_bytes());
        format!("{message}.{}", BASE64.encode(signature.to_bytes()))
    }

    /// With some claims replaced, or left out where the value is null.
    pub fn with_claims(&self, changes: &Value) -> String {
        self.sign(self.header.to_string(), changed(&self.claims, changes))
    }

    /// With the claims as this text.
    pub fn with_payload(&self, payload: impl AsRef<[u8]>) -> String {
        self.sign(self.header.to_string(), payload)
    }

    /// With some members of the header replaced, or left out where the value is null.
    pub fn with_header(&self, changes: &Value) -> String {
        self.sign(changed(&self.header, changes), self.claims.to_string())
    }

    /// The same claims under HS256, keyed with `secret`.
    pub fn hs256(&self, secret: &[u8]) -> String {
        let mut header = Header::new(Algorithm::HS256);
        header.typ = self.header["typ"].as_str().map(str::to_owned);
        header.kid = self.header["kid"].as_str().map(str::to_owned);
        jsonwebtoken::encode(&header, &self.claims, &EncodingKey::from_secret(secret)).unwrap()
    }

    /// What everybody may read of the key.
    pub fn public_pem(&self) -> String {
        self.key.verifying_key().to_public_key_pem(LineEnding::LF).unwrap()
    }
}

fn changed(object: &Value, changes: &Value) -> String {
    let mut object = object.as_object().unwrap().clone();
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(object.remove(name)),
            value => drop(object.insert(name.clone(), value.clone())),
        }
    }
    Value::Object(object).to_string()
}
