//! Signing keys and webhook secrets: generation, encryption under the master key, decryption.

use super::{MasterKeyRing, Resealed, SealedSecret};
use crate::{
    domain::{
        signing_key::{SigningKey, SigningKeyRing},
        webhook::secret::WebhookSecret,
    },
    store::{
        Conn, StoreError, StoreFailure,
        sealed_secrets::{SecretOwner, StoredSecret},
        signing_keys,
    },
};
use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use countersign_identity::{Claims, Kid, P256PublicKey, Timestamp, WebhookId};
use countersign_process::{Rng, generate_p256_key};
use jsonwebtoken::{Algorithm, Header};
use p256::pkcs8::EncodePrivateKey;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};
use zeroize::Zeroizing;

/// How many new signing keys one transaction needs at most: in a new deployment, the current and the next key.
const KEYS_PER_TRANSACTION: usize = 2;

/// Maximum number of attempts to load the signing key. An attempt fails if the key is revoked between two reads.
const LOAD_ATTEMPTS: usize = 3;

/// Why a signing key cannot be generated, loaded or used.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("signing key {0} cannot be decrypted with this master key")]
    Undecryptable(String),
    #[error("there is no active signing key")]
    NoKey,
    #[error("signing failed")]
    Crypto,
}

impl StoreFailure for KeyringError {
    fn store_error(&self) -> Option<&StoreError> {
        match self {
            Self::Store(error) => Some(error),
            Self::Undecryptable(_) | Self::NoKey | Self::Crypto => None,
        }
    }
}

/// Generates and decrypts signing keys. For each token, we ask the database which key is current, so that all replicas sign with
/// the same key.
pub struct Keyring {
    master: MasterKeyRing,
    /// The most recently used key, so that it is not decrypted for each token.
    cached: Mutex<Option<Arc<TokenSigner>>>,
    lacks_current_master_key: AtomicBool,
}

/// A decrypted signing key. We keep it parsed, because parsing and checking a key takes as long as a signature.
pub struct TokenSigner {
    kid: Kid,
    /// The encoded header of each token, with the dot after it (RFC 7515, section 7.1).
    header: String,
    private: EcdsaKeyPair,
}

/// New signing keys. We generate them before a transaction, which uses as many as it needs.
pub struct GeneratedKeys(Vec<GeneratedKey>);

struct GeneratedKey {
    public: P256PublicKey,
    sealed_private: SealedSecret,
}

impl Keyring {
    /// A keyring that encrypts with the master keys `master`.
    pub fn new(master: MasterKeyRing) -> Self {
        Self { master, cached: Mutex::default(), lacks_current_master_key: AtomicBool::new(false) }
    }

    pub const fn master_keys(&self) -> &MasterKeyRing {
        &self.master
    }

    /// Records the fingerprint of the current master key of the database. Returns whether that key is configured.
    pub fn check_current_master_key(&self, fingerprint: &str) -> bool {
        let is_configured = self.master.contains(fingerprint);
        self.lacks_current_master_key.store(!is_configured, Ordering::Relaxed);
        is_configured
    }

    /// Whether the last check found that the current master key of the database is not configured.
    pub fn lacks_current_master_key(&self) -> bool {
        self.lacks_current_master_key.load(Ordering::Relaxed)
    }

    /// Encrypts a stored secret with the master key of the settings.
    pub fn reseal(&self, stored: &StoredSecret, rng: &dyn Rng) -> Result<Resealed, KeyringError> {
        let label = match &stored.owner {
            SecretOwner::SigningKey(kid) => signing_key_label(kid),
            SecretOwner::Webhook(webhook) | SecretOwner::PreviousOfWebhook(webhook) => webhook_label(*webhook),
        };
        self.master.reseal(&label, &stored.sealed, rng).ok_or(KeyringError::Crypto)
    }

    /// The key that signs at `now` according to a key ring; `None` if it is not in memory, so that [`Self::current_signer`] must load it.
    pub fn cached_signer(&self, ring: &SigningKeyRing, now: Timestamp) -> Option<Arc<TokenSigner>> {
        let key = ring.signing_key(now)?;
        self.lock_cache().as_ref().filter(|cached| cached.kid == key.kid).cloned()
    }

    /// The key that signs at `now`, according to the database.
    pub async fn current_signer(&self, conn: &mut Conn, now: Timestamp) -> Result<Arc<TokenSigner>, KeyringError> {
        for _ in 0..LOAD_ATTEMPTS {
            let ring = signing_keys::load_ring(conn).await?;
            if let Some(cached) = self.cached_signer(&ring, now) {
                return Ok(cached);
            }
            let key = ring.signing_key(now).ok_or(KeyringError::NoKey)?;
            // If somebody revokes the key after we read the key ring, its private key is missing: at READ COMMITTED, PostgreSQL
            // shows a concurrent commit within the running transaction. In this case, we read the ring again.
            if let Some(sealed) = signing_keys::find_sealed_private(conn, &key.kid).await? {
                let signer = Arc::new(self.open(key, &sealed)?);
                *self.lock_cache() = Some(signer.clone());
                return Ok(signer);
            }
        }
        Err(KeyringError::NoKey)
    }

    /// Generates as many keys as one transaction can need.
    pub fn generate_keys(&self, rng: &dyn Rng) -> Result<GeneratedKeys, KeyringError> {
        let generate_key = || {
            let (private, public) = generate_key_pair(rng)?;
            let sealed_private = self.master.seal(&signing_key_label(&Kid::from_key(public)), &private, rng)?;
            Some(GeneratedKey { public, sealed_private })
        };
        (0..KEYS_PER_TRANSACTION)
            .map(|_| generate_key())
            .collect::<Option<_>>()
            .map(GeneratedKeys)
            .ok_or(KeyringError::Crypto)
    }

    pub fn seal_webhook_secret(
        &self,
        webhook: WebhookId,
        secret: &WebhookSecret,
        rng: &dyn Rng,
    ) -> Result<SealedSecret, KeyringError> {
        self.master.seal(&webhook_label(webhook), secret.bytes(), rng).ok_or(KeyringError::Crypto)
    }

    /// Decrypts the output of [`Self::seal_webhook_secret`] for the same webhook.
    pub fn open_webhook_secret(&self, webhook: WebhookId, sealed: &str) -> Option<WebhookSecret> {
        WebhookSecret::from_bytes(&self.master.open(&webhook_label(webhook), sealed)?)
    }

    fn open(&self, key: &SigningKey, sealed: &str) -> Result<TokenSigner, KeyringError> {
        let undecryptable = || KeyringError::Undecryptable(key.kid.as_str().to_owned());
        let private = self.master.open(&signing_key_label(&key.kid), sealed).ok_or_else(undecryptable)?;
        let mut header = Header::new(Algorithm::ES256);
        header.typ = Some("at+jwt".into());
        header.kid = Some(key.kid.as_str().to_owned());
        let header = serde_json::to_vec(&header).map_err(|_| KeyringError::Crypto)?;
        let header = URL_SAFE_NO_PAD.encode(header) + ".";
        let private = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &private);
        let private = private.map_err(|_| KeyringError::Crypto)?;
        Ok(TokenSigner { kid: key.kid.clone(), header, private })
    }

    fn lock_cache(&self) -> MutexGuard<'_, Option<Arc<TokenSigner>>> {
        // The cached key is replaced as a whole, so it is valid even if a thread panicked while holding the lock.
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TokenSigner {
    /// Signs an access token.
    pub fn sign(&self, claims: &Claims) -> Result<String, KeyringError> {
        let claims = serde_json::to_vec(claims).map_err(|_| KeyringError::Crypto)?;
        let mut token = self.header.clone();
        URL_SAFE_NO_PAD.encode_string(claims, &mut token);
        let signature = self.private.sign(&SystemRandom::new(), token.as_bytes()).map_err(|_| KeyringError::Crypto)?;
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        Ok(token)
    }
}

impl GeneratedKeys {
    pub fn public_keys(&self) -> impl Iterator<Item = P256PublicKey> {
        self.0.iter().map(|key| key.public)
    }

    /// The encrypted private key that belongs to one of the new public keys; `None` for any other public key.
    pub fn sealed_private(&self, public: P256PublicKey) -> Option<&SealedSecret> {
        self.0.iter().find(|key| key.public == public).map(|key| &key.sealed_private)
    }
}

/// Binds an encrypted private key to its public key, so that swapped database rows cannot be decrypted.
fn signing_key_label(kid: &Kid) -> String {
    format!("signing key {}", kid.as_str())
}

/// Binds an encrypted secret to its webhook.
fn webhook_label(webhook: WebhookId) -> String {
    format!("webhook secret {webhook}")
}

/// Generates a P-256 key pair; the private key as PKCS #8 DER.
fn generate_key_pair(rng: &dyn Rng) -> Option<(Zeroizing<Vec<u8>>, P256PublicKey)> {
    let secret = generate_p256_key(rng)?;
    let public = P256PublicKey::from_sec1(&secret.public_key().to_sec1_bytes()).ok()?;
    Some((Zeroizing::new(secret.to_pkcs8_der().ok()?.as_bytes().to_vec()), public))
}
