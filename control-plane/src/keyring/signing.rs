//! Signing keys: loaded or made at the start, then signing from memory.

use super::MasterKey;
use crate::{
    domain::change::Change,
    store::{Store, StoreError, Transient, Write, signing_keys},
};
use countersign_identity::{AgentKey, Claims, KeySet, Kid, key_set::PublishedKey};
use countersign_process::Chance;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use p256::{SecretKey, pkcs8::EncodePrivateKey};
use std::sync::Arc;
use zeroize::Zeroizing;

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

impl Transient for KeyringError {
    fn is_transient(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_transient())
    }
}

/// All published keys, and the one that signs.
#[derive(Clone)]
pub struct Keyring(Arc<Ring>);

struct Ring {
    signer: EncodingKey,
    header: Header,
    published: Vec<PublishedKey>,
    set: KeySet,
}

impl Keyring {
    /// Loads the keys; makes the first one if there is none.
    pub async fn open(store: &Store, master: &MasterKey, chance: &dyn Chance) -> Result<Self, KeyringError> {
        let stored = signing_keys::published(store.read().await?.conn()).await?;
        if !stored.is_empty() {
            return Self::load(&stored, master);
        }
        let (private, public) = generate(chance).ok_or(KeyringError::Crypto)?;
        let (kid, label) = (Kid::of(public), public_label(public));
        let sealed = master.seal(&label, &private, chance).ok_or(KeyringError::Crypto)?;
        let first = &signing_keys::StoredKey {
            kid: kid.into(),
            public_point: hex::encode(public.to_sec1()),
            sealed_private: hex::encode(sealed),
            signs_from: countersign_identity::Timestamp::from_micros(0),
        };
        let stored = store.write("first_signing_key", |tx| publish_first(tx, first)).await?;
        Self::load(&stored, master)
    }

    fn load(stored: &[signing_keys::StoredKey], master: &MasterKey) -> Result<Self, KeyringError> {
        let publics = stored.iter().map(public_of).collect::<Result<Vec<_>, _>>()?;
        let (current, public) = stored.last().zip(publics.last()).ok_or(KeyringError::NoKey)?;
        let sealed = hex::decode(&current.sealed_private).map_err(|_| KeyringError::Sealed(current.kid.clone()))?;
        let private = master.open(&public_label(*public), &sealed);
        let private = private.ok_or_else(|| KeyringError::Sealed(current.kid.clone()))?;
        let mut header = Header::new(Algorithm::ES256);
        header.typ = Some("at+jwt".into());
        header.kid = Some(current.kid.clone());
        Ok(Self(Arc::new(Ring {
            signer: EncodingKey::from_ec_der(&private),
            header,
            published: publics.iter().copied().map(PublishedKey::of).collect(),
            set: publics.into_iter().collect(),
        })))
    }

    /// Signs an access token.
    pub fn sign(&self, claims: &Claims) -> Result<String, KeyringError> {
        jsonwebtoken::encode(&self.0.header, claims, &self.0.signer).map_err(|_| KeyringError::Crypto)
    }

    /// The keys whose tokens are believed.
    pub fn set(&self) -> &KeySet {
        &self.0.set
    }

    /// The same keys as published (RFC 7517).
    pub fn published(&self) -> &[PublishedKey] {
        &self.0.published
    }
}

/// Publishes the first key, unless another replica was faster; gives what is published then.
async fn publish_first(
    mut tx: Write,
    first: &signing_keys::StoredKey,
) -> Result<crate::store::Committed<Vec<signing_keys::StoredKey>>, KeyringError> {
    if signing_keys::published(tx.conn()).await?.is_empty() {
        let now = tx.now();
        signing_keys::insert(tx.conn(), first, now).await?;
        tx.changed(Change::Keys);
    }
    let stored = signing_keys::published(tx.conn()).await?;
    Ok(tx.commit(stored).await?)
}

fn public_of(key: &signing_keys::StoredKey) -> Result<AgentKey, KeyringError> {
    let point = hex::decode(&key.public_point).map_err(|_| StoreError::Corrupt("public_point"))?;
    Ok(AgentKey::from_sec1(&point).map_err(|_| StoreError::Corrupt("public_point"))?)
}

/// Binds a sealed private key to its public half: a swapped row does not open.
fn public_label(public: AgentKey) -> String {
    format!("signing key {}", Kid::of(public).as_str())
}

/// A new key: the private half as PKCS #8 DER.
fn generate(chance: &dyn Chance) -> Option<(Zeroizing<Vec<u8>>, AgentKey)> {
    // One candidate in 2^32 is not below the order of the curve; eight in a row are broken dice.
    (0..8).find_map(|_| {
        let mut bytes = Zeroizing::new([0; 32]);
        chance.fill(bytes.as_mut());
        let secret = SecretKey::from_slice(bytes.as_ref()).ok()?;
        let public = AgentKey::from_sec1(&secret.public_key().to_sec1_bytes()).ok()?;
        Some((Zeroizing::new(secret.to_pkcs8_der().ok()?.as_bytes().to_vec()), public))
    })
}
