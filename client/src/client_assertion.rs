//! Client assertions (RFC 7523, section 2.2): JWTs with which an agent proves to the token endpoint that it holds its key.
//!
//! Depends on [`crate::signer`]. Invariant: an assertion is valid for one server only, names the agent, and has an id that no
//! other assertion has.

use crate::{KeyError, PrivateKey, Sign};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use countersign_identity::{Timestamp, public_key::EcdsaSignature};
use secrecy::SecretString;
use serde_json::{Value, json};
use std::time::Duration;

/// The value of the parameter `client_assertion_type`.
pub const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// How long an assertion is valid. An external signer may wait two minutes for a touch or a PIN, and the clocks may differ by a
/// minute. The control plane accepts a lifetime of at most five minutes.
const LIFETIME: Duration = Duration::from_mins(4);

/// Signs an assertion of an agent for the server with this issuer. The server accepts it once, until four minutes after `now`.
pub async fn sign(signer: &impl Sign, agent: &str, issuer: &str, now: Timestamp) -> Result<SecretString, KeyError> {
    // Because of this type, no server accepts the assertion as a JWT for another purpose.
    let header = json!({ "alg": "ES256", "typ": "client-authentication+jwt" });
    let claims = json!({
        "iss": agent,
        "sub": agent,
        "aud": issuer,
        "iat": now.seconds(),
        "exp": now.saturating_add(LIFETIME).seconds(),
        "jti": PrivateKey::random_nonce(),
    });
    let encode = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
    let signing_input = format!("{}.{}", encode(&header), encode(&claims));
    let signature = signer.sign_text(&signing_input).await?;
    let signature = EcdsaSignature::from_hex(&signature).ok().and_then(|signature| signature.to_jws());
    let signature = URL_SAFE_NO_PAD.encode(signature.ok_or(KeyError::Signature)?);
    Ok(format!("{signing_input}.{signature}").into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_identity::P256PublicKey;
    use secrecy::ExposeSecret;

    const AGENT: &str = "agent_01jyd3rqawfd15ypgw5mz4yjkb";

    /// A signer that returns DER, as many HSMs do.
    struct DerSigner(PrivateKey);

    impl Sign for DerSigner {
        async fn sign_text(&self, text: &str) -> Result<String, KeyError> {
            let raw = hex::decode(self.0.sign(text)).unwrap();
            Ok(hex::encode(p256::ecdsa::Signature::from_slice(&raw).unwrap().to_der().as_bytes()))
        }
    }

    /// A signer that signs nothing.
    struct NoSigner;

    impl Sign for NoSigner {
        async fn sign_text(&self, _: &str) -> Result<String, KeyError> {
            Ok("00".to_owned())
        }
    }

    async fn sign_now(signer: &impl Sign) -> Result<SecretString, KeyError> {
        sign(signer, AGENT, "https://issuer.example", Timestamp::from_seconds(1_800_000_000)).await
    }

    fn is_signed_by(assertion: &SecretString, public_key: P256PublicKey) -> bool {
        let (signed, signature) = assertion.expose_secret().rsplit_once('.').unwrap();
        let signature = EcdsaSignature::from_jws(&URL_SAFE_NO_PAD.decode(signature).unwrap()).unwrap();
        public_key.verifies(&[signed.as_bytes()], &signature)
    }

    #[tokio::test]
    async fn assertions_name_the_agent_and_the_server_and_are_used_once() {
        let key = PrivateKey::generate();
        let first = sign_now(&key).await.unwrap();
        let second = sign_now(&key).await.unwrap();
        let claims = |assertion: &SecretString| -> Value {
            let payload = assertion.expose_secret().split('.').nth(1).unwrap();
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap()
        };
        let first = claims(&first);
        let second = claims(&second);
        assert_ne!(first["jti"], second["jti"]);
        let expected = json!({
            "iss": AGENT, "sub": AGENT, "aud": "https://issuer.example",
            "iat": 1_800_000_000, "exp": 1_800_000_240, "jti": first["jti"],
        });
        assert_eq!(first, expected);
    }

    #[tokio::test]
    async fn signatures_have_the_form_of_a_jws_for_every_signer() {
        let key = PrivateKey::generate();
        let public_key = P256PublicKey::from_pem(&key.public_pem().unwrap()).unwrap();
        assert!(is_signed_by(&sign_now(&key).await.unwrap(), public_key));
        assert!(is_signed_by(&sign_now(&DerSigner(key)).await.unwrap(), public_key));
        assert!(!is_signed_by(&sign_now(&PrivateKey::generate()).await.unwrap(), public_key));
        assert!(matches!(sign_now(&NoSigner).await, Err(KeyError::Signature)));
    }
}
