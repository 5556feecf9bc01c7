//! Signing keys: made, sealed, opened; and the secrets of webhooks: sealed, opened.

use super::MasterKey;
use crate::{
    domain::{signing_key::SigningKey, webhook::secret::WebhookSecret},
    store::{Conn, StoreError, StoreFailure, signing_keys},
};
use countersign_identity::{Claims, Kid, P256PublicKey, Timestamp, WebhookId};
use countersign_process::{Rng, generate_p256_key};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use p256::pkcs8::EncodePrivateKey;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zeroize::Zeroizing;

/// Keys that one transaction can need: the first of a deployment and its next.
const FRESH: usize = 2;

/// How often the ring is read again if the key that signs is revoked meanwhile.
const TRIES: usize = 3;

/// Why there is no key to sign with.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A stored key does not open under the master key.
    #[error("signing key {0} does not open under this master key")]
    Sealed(String),
    /// No key may sign yet.
    #[error("no signing key is due")]
    NoKey,
    /// The cryptographic library refused.
    #[error("signing failed")]
    Crypto,
}

impl StoreFailure for KeyringError {
    fn store_error(&self) -> Option<&StoreError> {
        match self {
            Self::Store(error) => Some(error),
            Self::Sealed(_) | Self::NoKey | Self::Crypto => None,
        }
    }
}

/// Opens and makes signing keys. It knows nothing of who signs when: that is read from the database for each token,
/// so that any number of processes agree.
pub struct Keyring {
    master: MasterKey,
    /// The one that signed last, so that it is not opened for each token.
    opened: Mutex<Option<Arc<Signer>>>,
}

/// A key that is ready to sign.
pub struct Signer {
    kid: Kid,
    header: Header,
    private: EncodingKey,
}

/// Keys that nobody has seen yet. Made before a transaction, which takes as many as it needs.
pub struct FreshKeys(Vec<Fresh>);

struct Fresh {
    public: P256PublicKey,
    sealed_private: String,
}

impl Keyring {
    /// Opens with this master key.
    pub fn new(master: MasterKey) -> Self {
        Self { master, opened: Mutex::default() }
    }

    /// What tells the master key from others, and says nothing of it.
    pub fn fingerprint(&self) -> String {
        self.master.fingerprint()
    }

    /// The key that signs now, by what the database says now.
    pub async fn signer(&self, conn: &mut Conn, now: Timestamp) -> Result<Arc<Signer>, KeyringError> {
        for _ in 0..TRIES {
            let ring = signing_keys::ring(conn).await?;
            let key = ring.signer(now).ok_or(KeyringError::NoKey)?;
            if let Some(opened) = self.opened().as_ref().filter(|opened| opened.kid == key.kid) {
                return Ok(opened.clone());
            }
            // Absent if it was revoked just now, which PostgreSQL shows within a transaction.
            if let Some(sealed) = signing_keys::sealed_private(conn, &key.kid).await? {
                let signer = Arc::new(self.open(key, &sealed)?);
                *self.opened() = Some(signer.clone());
                return Ok(signer);
            }
        }
        Err(KeyringError::NoKey)
    }

    /// As many keys as any one transaction can need.
    pub fn make_fresh(&self, rng: &dyn Rng) -> Result<FreshKeys, KeyringError> {
        let make = || {
            let (private, public) = generate(rng)?;
            let sealed = self.master.seal(&label(&Kid::from_key(public)), &private, rng)?;
            Some(Fresh { public, sealed_private: hex::encode(sealed) })
        };
        (0..FRESH).map(|_| make()).collect::<Option<_>>().map(FreshKeys).ok_or(KeyringError::Crypto)
    }

    /// Seals the secret of a webhook, as hex.
    pub fn seal_webhook_secret(
        &self,
        webhook: WebhookId,
        secret: &WebhookSecret,
        rng: &dyn Rng,
    ) -> Result<String, KeyringError> {
        let sealed = self.master.seal(&webhook_label(webhook), secret.bytes(), rng).ok_or(KeyringError::Crypto)?;
        Ok(hex::encode(sealed))
    }

    /// Opens what [`Self::seal_webhook_secret`] sealed for the same webhook.
    pub fn open_webhook_secret(&self, webhook: WebhookId, sealed: &str) -> Option<WebhookSecret> {
        let sealed = hex::decode(sealed).ok()?;
        WebhookSecret::from_bytes(&self.master.open(&webhook_label(webhook), &sealed)?)
    }

    fn open(&self, key: &SigningKey, sealed: &str) -> Result<Signer, KeyringError> {
        let broken = || KeyringError::Sealed(key.kid.as_str().to_owned());
        let sealed = hex::decode(sealed).map_err(|_| broken())?;
        let private = self.master.open(&label(&key.kid), &sealed).ok_or_else(broken)?;
        let mut header = Header::new(Algorithm::ES256);
        header.typ = Some("at+jwt".into());
        header.kid = Some(key.kid.as_str().to_owned());
        Ok(Signer { kid: key.kid.clone(), header, private: EncodingKey::from_ec_der(&private) })
    }

    fn opened(&self) -> MutexGuard<'_, Option<Arc<Signer>>> {
        // Whoever panicked has left a key or none, and either is whole.
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Signer {
    /// Signs an access token.
    pub fn sign(&self, claims: &Claims) -> Result<String, KeyringError> {
        jsonwebtoken::encode(&self.header, claims, &self.private).map_err(|_| KeyringError::Crypto)
    }
}

impl FreshKeys {
    /// Their public halves.
    pub fn publics(&self) -> impl Iterator<Item = P256PublicKey> {
        self.0.iter().map(|fresh| fresh.public)
    }

    /// The sealed private half of one of them, hex; `None` if it is none of them.
    pub fn sealed_private(&self, public: P256PublicKey) -> Option<&str> {
        self.0.iter().find(|fresh| fresh.public == public).map(|fresh| fresh.sealed_private.as_str())
    }
}

/// Binds a sealed private key to its public half: a swapped row does not open.
fn label(kid: &Kid) -> String {
    format!("signing key {}", kid.as_str())
}

/// Binds a sealed secret to its webhook.
fn webhook_label(webhook: WebhookId) -> String {
    format!("webhook secret {webhook}")
}

/// A new key: the private half as PKCS #8 DER.
fn generate(rng: &dyn Rng) -> Option<(Zeroizing<Vec<u8>>, P256PublicKey)> {
    let secret = generate_p256_key(rng)?;
    let public = P256PublicKey::from_sec1(&secret.public_key().to_sec1_bytes()).ok()?;
    Some((Zeroizing::new(secret.to_pkcs8_der().ok()?.as_bytes().to_vec()), public))
}
