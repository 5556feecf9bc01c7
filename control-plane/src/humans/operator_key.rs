//! The operator key, which signs tokens of human users until an issuer is configured.

use crate::{
    domain::{agent::Owner, caller::Human},
    files,
};
use countersign_identity::{Reason, Refusal, Timestamp, evaluation::LEEWAY};
use countersign_process::{Rng, generate_p256_key};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use p256::{
    SecretKey,
    pkcs8::{DecodePrivateKey, EncodePrivateKey, LineEnding},
};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use std::{io, path::Path, time::Duration};
use zeroize::Zeroizing;

/// The `iss` of tokens that the operator key signs.
pub(super) const ISSUER: &str = "urn:countersign:operator";

/// The `aud` of tokens that the operator key signs, the same for every URL of the control plane.
const AUDIENCE: &str = "urn:countersign:control-plane";

#[derive(Debug, thiserror::Error)]
pub enum OperatorKeyError {
    #[error(
        "{0}: there is no operator key. The server creates it in its data_dir when it starts: run this command with the \
         settings of the server (--dev, --config, --set data_dir=...), and after its first start"
    )]
    Missing(String),
    #[error("{path}: {error}")]
    File { path: String, error: io::Error },
    #[error(
        "{0}: not a P-256 private key in PKCS #8 PEM. Restore the file, or delete it and start the server, which creates a new \
         key: the tokens that the old key signed are then refused"
    )]
    Malformed(String),
    /// The settings disable the operator key; the text says why.
    #[error("{0}")]
    Disabled(&'static str),
    #[error("the operator key cannot sign")]
    Crypto,
}

/// The operator key: a P-256 key pair from a file in the data directory.
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
    /// Reads the key. If the file does not exist, generates a key and creates the file with mode 0600.
    pub fn read_or_create(path: &Path, rng: &dyn Rng) -> Result<Self, OperatorKeyError> {
        match Self::read(path) {
            Err(OperatorKeyError::Missing(_)) => {}
            result => return result,
        }
        let secret = generate_p256_key(rng).ok_or(OperatorKeyError::Crypto)?;
        let pem = secret.to_pkcs8_pem(LineEnding::LF).map_err(|_| OperatorKeyError::Crypto)?;
        files::write_secret(path, pem.as_bytes())
            .map_err(|error| OperatorKeyError::File { path: path.display().to_string(), error })?;
        Self::read(path)
    }

    /// Reads the key. Fails if the file does not exist.
    pub fn read(path: &Path) -> Result<Self, OperatorKeyError> {
        let path_text = || std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
        let pem = std::fs::read_to_string(path).map(Zeroizing::new).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => OperatorKeyError::Missing(path_text()),
            io::ErrorKind::InvalidData => OperatorKeyError::Malformed(path_text()),
            _ => OperatorKeyError::File { path: path_text(), error },
        })?;
        let secret = SecretKey::from_pkcs8_pem(&pem).map_err(|_| OperatorKeyError::Malformed(path_text()))?;
        let private = secret.to_pkcs8_der().map_err(|_| OperatorKeyError::Crypto)?;
        Ok(Self {
            private: EncodingKey::from_ec_der(private.as_bytes()),
            public: DecodingKey::from_ec_der(&secret.public_key().to_sec1_bytes()),
        })
    }

    /// Issues a token for a human user, who is an administrator if `admin` is true.
    pub fn mint(
        &self,
        subject: &str,
        admin: bool,
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<SecretString, OperatorKeyError> {
        let claims = OperatorClaims {
            iss: ISSUER.into(),
            aud: AUDIENCE.into(),
            sub: subject.to_owned(),
            iat: now.seconds(),
            exp: now.saturating_add(lifetime).seconds(),
            admin,
        };
        let token = jsonwebtoken::encode(&Header::new(Algorithm::ES256), &claims, &self.private);
        token.map(SecretString::from).map_err(|_| OperatorKeyError::Crypto)
    }

    /// Verifies a token. Returns the human user that the token identifies.
    pub fn verify(&self, token: &str, now: Timestamp) -> Result<Human, Refusal> {
        let mut validation = Validation::new(Algorithm::ES256);
        validation.validate_exp = false; // checked below, with the injected clock
        validation.leeway = 0;
        validation.set_audience(&[AUDIENCE]);
        validation.set_issuer(&[ISSUER]);
        validation.set_required_spec_claims(&["iss", "aud", "sub", "exp"]);
        let token = jsonwebtoken::decode::<OperatorClaims>(token, &self.public, &validation)
            .map_err(|_| Reason::HumanTokenInvalid)?;
        let OperatorClaims { iss, aud: _, sub, iat, exp, admin } = token.claims;
        let (issued_at, expires_at) = (Timestamp::from_seconds(iat), Timestamp::from_seconds(exp));
        if issued_at > now.saturating_add(LEEWAY) || token.header.crit.is_some() || sub.is_empty() {
            return Err(Reason::HumanTokenInvalid.into());
        }
        if now >= expires_at {
            return Err(Refusal { reason: Reason::HumanTokenExpired, expired_at: Some(expires_at) });
        }
        Ok(Human { identity: Owner { issuer: iss, subject: sub }, is_admin: admin })
    }
}
