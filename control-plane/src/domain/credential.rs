//! Secrets that we hand out once and keep only as a hash.
//!
//! A plain credential and its hash are different types; neither prints its content.

use countersign_identity::{ApiKeyId, RefreshId};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Bytes of secret in every credential: 256 bits.
pub const SECRET_LEN: usize = 32;

/// Characters of an identifier after its prefix.
const ID_LEN: usize = 26;

/// Identifiers that credentials carry in the open, so that the right hash is found.
pub trait CredentialId: Copy + fmt::Display + std::str::FromStr {
    /// What the credential begins with.
    const CREDENTIAL_PREFIX: &'static str;
    /// What the identifier begins with.
    const ID_PREFIX: &'static str;
}

impl CredentialId for ApiKeyId {
    const CREDENTIAL_PREFIX: &'static str = "svc_sk_";
    const ID_PREFIX: &'static str = Self::PREFIX;
}

impl CredentialId for RefreshId {
    const CREDENTIAL_PREFIX: &'static str = "rf_";
    const ID_PREFIX: &'static str = Self::PREFIX;
}

/// A credential in plain text: an identifier and a secret.
pub struct Credential<Id> {
    id: Id,
    secret: Zeroizing<[u8; SECRET_LEN]>,
}

/// What is kept of a credential.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretHash(String);

impl<Id: CredentialId> Credential<Id> {
    /// A new credential of fresh random bytes.
    pub const fn new(id: Id, secret: Zeroizing<[u8; SECRET_LEN]>) -> Self {
        Self { id, secret }
    }

    /// Reads what [`Self::reveal`] gave; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(Id::CREDENTIAL_PREFIX)?;
        let (id, secret) = rest.split_at_checked(ID_LEN)?;
        let id = format!("{}{id}", Id::ID_PREFIX).parse().ok()?;
        let mut bytes = Zeroizing::new([0; SECRET_LEN]);
        let lower_case = !secret.bytes().any(|byte| byte.is_ascii_uppercase());
        hex::decode_to_slice(secret, bytes.as_mut()).ok().filter(|()| lower_case)?;
        Some(Self { id, secret: bytes })
    }

    /// The identifier, which is no secret.
    pub const fn id(&self) -> Id {
        self.id
    }

    /// What is kept.
    pub fn hash(&self) -> SecretHash {
        SecretHash(hex::encode(Sha256::digest(self.secret.as_ref())))
    }

    /// The text to hand out, once.
    pub fn reveal(&self) -> SecretString {
        let id = self.id.to_string();
        let digits = id.strip_prefix(Id::ID_PREFIX).unwrap_or(&id);
        let secret = Zeroizing::new(hex::encode(self.secret.as_ref()));
        format!("{}{digits}{}", Id::CREDENTIAL_PREFIX, *secret).into()
    }
}

impl<Id> fmt::Debug for Credential<Id> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(…)")
    }
}

impl SecretHash {
    /// Wraps a hash from the database.
    pub const fn from_store(hex: String) -> Self {
        Self(hex)
    }

    /// The hash as it is kept.
    pub fn to_store(&self) -> &str {
        &self.0
    }

    /// True if the credential is the one that was hashed; takes the same time either way.
    pub fn is_of<Id: CredentialId>(&self, credential: &Credential<Id>) -> bool {
        self.0.as_bytes().ct_eq(credential.hash().0.as_bytes()).into()
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash(…)")
    }
}

/// Gives a secret to the one place that sends it to its holder.
pub fn expose(secret: &SecretString) -> &str {
    secret.expose_secret()
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_reads_back_and_nothing_near_it_does() {
        let made = Credential::new(ApiKeyId::from_bits(77), Zeroizing::new([0xab; 32]));
        let text = expose(&made.reveal()).to_owned();
        let read = Credential::<ApiKeyId>::parse(&text).unwrap();
        assert_eq!(read.id(), made.id());
        assert!(made.hash().is_of(&read));
        assert!(Credential::<RefreshId>::parse(&text).is_none());
        for bad in [&text[..text.len() - 1], &format!("{text}0"), &text.replace("ab", "AB"), "svc_sk_", ""] {
            assert!(Credential::<ApiKeyId>::parse(bad).is_none(), "{bad}");
        }
        let other = Credential::new(ApiKeyId::from_bits(77), Zeroizing::new([0xac; 32]));
        assert!(!made.hash().is_of(&other));
    }

    #[test]
    fn neither_side_prints_its_content() {
        let made = Credential::new(ApiKeyId::from_bits(77), Zeroizing::new([0xab; 32]));
        let printed = format!("{made:?} {:?} {:?}", made.hash(), made.reveal());
        assert!(!printed.contains("abab") && !printed.contains(made.hash().to_store()), "{printed}");
    }
}
