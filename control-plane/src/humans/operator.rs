//! The operator key: it mints tokens for people until an issuer of the platform is configured.

use crate::domain::{agent::Owner, caller::Human};
use countersign_identity::{Reason, Refusal, Timestamp, evaluation::LEEWAY};
use countersign_process::{Rng, generate_p256_key};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use p256::{
    SecretKey,
    pkcs8::{DecodePrivateKey, EncodePrivateKey, LineEnding},
};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use std::{path::Path, time::Duration};
use zeroize::Zeroizing;

/// The `iss` of tokens minted with the operator key.
pub(super) const ISSUER: &str = "urn:countersign:operator";

/// Their `aud`: the control plane beside which the key lies, whatever its URL.
const AUDIENCE: &str = "urn:countersign:control-plane";

/// Why the operator key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The file that keeps it.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// The file holds no P-256 private key.
    #[error("{0}: not a P-256 private key in PKCS #8 PEM")]
    Malformed(String),
    /// The cryptographic library refused.
    #[error("the operator key cannot sign")]
    Crypto,
}

/// A key in a file beside the embedded database.
pub struct OperatorKey {
    private: EncodingKey,
    public: DecodingKey,
}

#[derive(Serialize, Deserialize)]
struct OperatorClaims {
    iss: String,
    aud: String,
    sub: String,
    iat: i64,
    exp: i64,
    admin: bool,
}

impl OperatorKey {
    /// Reads the key; makes its file, with mode 0600, if there is none.
    pub fn open(path: &Path, rng: &dyn Rng) -> Result<Self, OperatorError> {
        let named = || path.display().to_string();
        let failed = |error| OperatorError::File { path: named(), error };
        if !path.exists() {
            let pem = generate_pem(rng).ok_or(OperatorError::Crypto)?;
            crate::files::write_secret(path, pem.as_bytes()).map_err(failed)?;
        }
        let pem = Zeroizing::new(std::fs::read_to_string(path).map_err(failed)?);
        let secret = SecretKey::from_pkcs8_pem(&pem).map_err(|_| OperatorError::Malformed(named()))?;
        let private = secret.to_pkcs8_der().map_err(|_| OperatorError::Crypto)?;
        Ok(Self {
            private: EncodingKey::from_ec_der(private.as_bytes()),
            public: DecodingKey::from_ec_der(&secret.public_key().to_sec1_bytes()),
        })
    }

    /// Mints a token for a person.
    pub fn mint(
        &self,
        subject: &str,
        admin: bool,
        life: Duration,
        now: Timestamp,
    ) -> Result<SecretString, OperatorError> {
        let claims = OperatorClaims {
            iss: ISSUER.into(),
            aud: AUDIENCE.into(),
            sub: subject.to_owned(),
            iat: now.seconds(),
            exp: now.saturating_add(life).seconds(),
            admin,
        };
        let token = jsonwebtoken::encode(&Header::new(Algorithm::ES256), &claims, &self.private);
        token.map(SecretString::from).map_err(|_| OperatorError::Crypto)
    }

    /// The person whose token this is.
    pub fn verify(&self, token: &str, now: Timestamp) -> Result<Human, Refusal> {
        let mut validation = Validation::new(Algorithm::ES256);
        validation.validate_exp = false; // by our own clock, below
        validation.leeway = 0;
        validation.set_audience(&[AUDIENCE]);
        validation.set_issuer(&[ISSUER]);
        validation.set_required_spec_claims(&["iss", "aud", "sub", "exp"]);
        let token = jsonwebtoken::decode::<OperatorClaims>(token, &self.public, &validation)
            .map_err(|_| Reason::HumanTokenInvalid)?;
        let OperatorClaims { iss, aud: _, sub, iat, exp, admin } = token.claims;
        let (issued, expires) = (Timestamp::from_seconds(iat), Timestamp::from_seconds(exp));
        if issued > now.saturating_add(LEEWAY) || token.header.crit.is_some() || sub.is_empty() {
            return Err(Reason::HumanTokenInvalid.into());
        }
        if now >= expires {
            return Err(Refusal { reason: Reason::HumanTokenExpired, expired_at: Some(expires) });
        }
        Ok(Human { owner: Owner { issuer: iss, subject: sub }, admin })
    }
}

fn generate_pem(rng: &dyn Rng) -> Option<Zeroizing<String>> {
    generate_p256_key(rng)?.to_pkcs8_pem(LineEnding::LF).ok()
}
