//! API keys and refresh tokens, which are sent to the client once and stored as a hash.
//!
//! The plain credential and its hash are different types. The output of `Debug` contains neither the credential nor the hash.

use countersign_identity::{ApiKeyId, SessionId};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Length of the secret part of a credential, in bytes.
pub const SECRET_LEN: usize = 32;

/// Number of characters of an identifier after its prefix.
const ID_LEN: usize = 26;

/// An identifier that a credential contains in plain text. With it, the server finds the stored hash of the credential.
pub trait CredentialId: Copy + fmt::Display + std::str::FromStr {
    /// Prefix of the credential.
    const CREDENTIAL_PREFIX: &'static str;
    /// Prefix of the identifier.
    const ID_PREFIX: &'static str;
}

impl CredentialId for ApiKeyId {
    const CREDENTIAL_PREFIX: &'static str = "svc_sk_";
    const ID_PREFIX: &'static str = Self::PREFIX;
}

/// A refresh token has the identifier of its session.
impl CredentialId for SessionId {
    const CREDENTIAL_PREFIX: &'static str = "rf_";
    const ID_PREFIX: &'static str = Self::PREFIX;
}

/// A credential in plain text: an identifier and a secret.
pub struct Credential<Id> {
    id: Id,
    secret: Zeroizing<[u8; SECRET_LEN]>,
}

/// SHA-256 of a secret, in hex.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretHash(String);

impl<Id: CredentialId> Credential<Id> {
    /// Creates a credential from an identifier and random bytes.
    pub const fn new(id: Id, secret: Zeroizing<[u8; SECRET_LEN]>) -> Self {
        Self { id, secret }
    }

    /// The inverse of [`Self::reveal`]; `None` for any other text, such as one with upper-case hex digits.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(Id::CREDENTIAL_PREFIX)?;
        let (id, secret) = rest.split_at_checked(ID_LEN)?;
        let id = format!("{}{id}", Id::ID_PREFIX).parse().ok()?;
        let mut bytes = Zeroizing::new([0; SECRET_LEN]);
        let is_lower_case = !secret.bytes().any(|byte| byte.is_ascii_uppercase());
        hex::decode_to_slice(secret, bytes.as_mut()).ok().filter(|()| is_lower_case)?;
        Some(Self { id, secret: bytes })
    }

    /// The identifier of the credential, which is not secret.
    pub const fn id(&self) -> Id {
        self.id
    }

    /// The secret.
    pub(super) fn secret(&self) -> &[u8; SECRET_LEN] {
        &self.secret
    }

    /// The hash of the secret, to be stored.
    pub fn hash(&self) -> SecretHash {
        SecretHash::of(self.secret.as_ref())
    }

    /// The text of the credential, which is sent to the client only once.
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
    /// The hash of a secret.
    pub(super) fn of(secret: &[u8]) -> Self {
        Self(hex::encode(Sha256::digest(secret)))
    }

    /// Wraps a hash that was read from the database.
    pub const fn from_store(hex: String) -> Self {
        Self(hex)
    }

    /// The hash as stored in the database.
    pub fn to_store(&self) -> &str {
        &self.0
    }

    /// Whether a credential matches the stored hash.
    pub fn matches<Id: CredentialId>(&self, credential: &Credential<Id>) -> bool {
        self.is_of(credential.secret.as_ref())
    }

    /// Whether this is the hash of a secret. The comparison takes constant time.
    pub(super) fn is_of(&self, secret: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(Self::of(secret).0.as_bytes()).into()
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash(…)")
    }
}

/// Exposes a secret as text, for the response that contains it.
pub fn expose(secret: &SecretString) -> &str {
    secret.expose_secret()
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_only_the_exact_text_of_a_credential() {
        let credential = Credential::new(ApiKeyId::from_bits(77), Zeroizing::new([0xab; 32]));
        let text = expose(&credential.reveal()).to_owned();
        let parsed = Credential::<ApiKeyId>::parse(&text).unwrap();
        assert_eq!(parsed.id(), credential.id());
        assert!(credential.hash().matches(&parsed));
        assert!(Credential::<SessionId>::parse(&text).is_none());
        for bad in [&text[..text.len() - 1], &format!("{text}0"), &text.replace("ab", "AB"), "svc_sk_", ""] {
            assert!(Credential::<ApiKeyId>::parse(bad).is_none(), "{bad}");
        }
        let other = Credential::new(ApiKeyId::from_bits(77), Zeroizing::new([0xac; 32]));
        assert!(!credential.hash().matches(&other));
    }

    #[test]
    fn debug_output_contains_no_secret() {
        let credential = Credential::new(ApiKeyId::from_bits(77), Zeroizing::new([0xab; 32]));
        let printed = format!("{credential:?} {:?} {:?}", credential.hash(), credential.reveal());
        assert!(!printed.contains("abab") && !printed.contains(credential.hash().to_store()), "{printed}");
    }
}
