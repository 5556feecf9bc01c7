//! The configured master keys: `secrets.master_key`, and `secrets.previous_master_keys`.
//!
//! The database decides which of them is current ([`crate::store::master_keys`]). So replicas whose settings differ during a
//! rolling restart encrypt with the same key.

use super::MasterKey;
use crate::{
    domain::{
        audit::keys::{AuditKeyRing, AuditKeys},
        challenge::{ChallengeKeyRing, ChallengeKeys},
        derived_keys::DerivedKeys,
    },
    store::{Conn, StoreError, deployment, master_keys},
};
use countersign_process::Rng;
use zeroize::Zeroizing;

/// The configured master keys.
#[derive(Debug)]
pub struct MasterKeyRing {
    configured: MasterKey,
    previous: Vec<MasterKey>,
}

/// A secret, encrypted with each configured master key: pairs of the key's fingerprint and the encrypted secret, as hex. We encrypt
/// with all keys, because only the later transaction that stores the secret knows which master key is current.
pub struct SealedSecret(Vec<(String, String)>);

/// The result of encrypting a stored secret with the key of `secrets.master_key`.
#[derive(Debug, PartialEq, Eq)]
pub enum Resealed {
    /// The secret was already encrypted with the key of `secrets.master_key`.
    Unchanged,
    /// The secret was encrypted with a previous master key. Contains the new encryption with the key of `secrets.master_key`, as
    /// hex.
    Changed(String),
    /// No configured master key decrypts the secret.
    Unreadable,
}

impl MasterKeyRing {
    /// A ring with the keys of `secrets.master_key` and `secrets.previous_master_keys`.
    pub fn new(configured: MasterKey, previous: Vec<MasterKey>) -> Self {
        Self { configured, previous }
    }

    /// The key of `secrets.master_key`.
    pub const fn configured(&self) -> &MasterKey {
        &self.configured
    }

    /// The fingerprints of `secrets.previous_master_keys`.
    pub fn previous_fingerprints(&self) -> Vec<String> {
        self.previous.iter().map(MasterKey::fingerprint).collect()
    }

    /// Whether a master key with this fingerprint is configured.
    pub fn contains(&self, fingerprint: &str) -> bool {
        self.keys().any(|key| key.fingerprint() == fingerprint)
    }

    pub fn challenge_keys(&self) -> ChallengeKeyRing {
        self.derive(ChallengeKeys::derive)
    }

    /// The keys of the audit log.
    pub fn audit_keys(&self) -> AuditKeyRing {
        self.derive(AuditKeys::derive)
    }

    fn derive<K>(&self, derive: fn(&[u8]) -> K) -> DerivedKeys<K> {
        DerivedKeys::new(self.keys().map(|key| (key.fingerprint(), key.derive(derive))).collect())
    }

    /// Encrypts a secret with each master key.
    pub(super) fn seal(&self, label: &str, plain: &[u8], rng: &dyn Rng) -> Option<SealedSecret> {
        let seal = |key: &MasterKey| Some((key.fingerprint(), hex::encode(key.seal(label, plain, rng)?)));
        self.keys().map(seal).collect::<Option<_>>().map(SealedSecret)
    }

    /// Decrypts a secret in hex with whichever master key has encrypted it.
    pub(super) fn open(&self, label: &str, sealed: &str) -> Option<Zeroizing<Vec<u8>>> {
        let sealed = hex::decode(sealed).ok()?;
        self.keys().find_map(|key| key.open(label, &sealed))
    }

    /// Encrypts a stored secret with the key of `secrets.master_key`; `None` if the encryption fails.
    pub(super) fn reseal(&self, label: &str, sealed: &str, rng: &dyn Rng) -> Option<Resealed> {
        let Ok(bytes) = hex::decode(sealed) else { return Some(Resealed::Unreadable) };
        if self.configured.open(label, &bytes).is_some() {
            return Some(Resealed::Unchanged);
        }
        let Some(plain) = self.previous.iter().find_map(|key| key.open(label, &bytes)) else {
            return Some(Resealed::Unreadable);
        };
        Some(Resealed::Changed(hex::encode(self.configured.seal(label, &plain, rng)?)))
    }

    fn keys(&self) -> impl Iterator<Item = &MasterKey> {
        std::iter::once(&self.configured).chain(&self.previous)
    }
}

impl SealedSecret {
    /// The secret, encrypted with the current master key, as hex. Locks the row of the deployment until the transaction ends, so
    /// that a rotation of the master key waits for the transaction, and finds the stored secret.
    pub async fn for_current_master_key(&self, conn: &mut Conn) -> Result<&str, StoreError> {
        deployment::lock(conn).await?;
        let current = master_keys::find(conn).await?.current;
        let sealed = self.0.iter().find(|(fingerprint, _)| *fingerprint == current);
        sealed.map(|(_, sealed)| sealed.as_str()).ok_or(StoreError::MissingMasterKey(current))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_process::SystemRng;

    fn key(digits: &str) -> MasterKey {
        MasterKey::from_hex(&digits.repeat(32)).unwrap()
    }

    #[test]
    fn opens_what_any_key_has_sealed_and_seals_again_under_the_configured_key() {
        let (old, both, new) = (
            MasterKeyRing::new(key("aa"), Vec::new()),
            MasterKeyRing::new(key("bb"), vec![key("aa")]),
            MasterKeyRing::new(key("bb"), Vec::new()),
        );
        let sealed = old.seal("label", b"secret", &SystemRng).unwrap().0.remove(0).1;
        assert!(new.open("label", &sealed).is_none());
        assert_eq!(both.open("label", &sealed).unwrap().as_slice(), b"secret");
        let Some(Resealed::Changed(resealed)) = both.reseal("label", &sealed, &SystemRng) else {
            panic!("the secret is not sealed again")
        };
        assert_eq!(new.open("label", &resealed).unwrap().as_slice(), b"secret");
        assert!(old.open("label", &resealed).is_none());
        assert_eq!(both.reseal("label", &resealed, &SystemRng), Some(Resealed::Unchanged));
        for unreadable in [resealed.as_str(), "", "not hex"] {
            assert_eq!(old.reseal("label", unreadable, &SystemRng), Some(Resealed::Unreadable));
        }
        assert_eq!(both.reseal("another label", &sealed, &SystemRng), Some(Resealed::Unreadable));
    }

    #[test]
    fn seals_with_every_key() {
        let both = MasterKeyRing::new(key("bb"), vec![key("aa")]);
        let sealed = both.seal("label", b"secret", &SystemRng).unwrap();
        for (digits, (fingerprint, sealed)) in ["bb", "aa"].into_iter().zip(sealed.0) {
            assert_eq!(fingerprint, key(digits).fingerprint());
            assert!(both.contains(&fingerprint));
            let alone = MasterKeyRing::new(key(digits), Vec::new());
            assert_eq!(alone.open("label", &sealed).unwrap().as_slice(), b"secret");
        }
    }
}
