//! Encrypts and authenticates the copy of a view on disk with AES-256-GCM.
//!
//! The key of a file is derived from the API key and the random salt of the file by HKDF-SHA256, so each key seals one file.

use crate::sync::Authorization;
use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    error::Unspecified,
    hkdf::{HKDF_SHA256, KeyType, Prk, Salt},
};
use std::fmt;

pub const ID_LEN: usize = 16;
pub const SALT_LEN: usize = 32;

/// The length of the authentication tag at the end of a file.
pub const TAG_LEN: usize = 16;

/// Separates the keys of copies from keys that are derived from the same API key for another purpose.
const PURPOSE: &[u8] = b"countersign view copy v1";

/// The secret from which the key of each copy of one API key is derived, and the id in the name of its file.
#[derive(Clone)]
pub struct CopyKey {
    derived: Prk,
    id: [u8; ID_LEN],
}

/// Tells HKDF how many bytes an id has.
struct IdLen;

impl KeyType for IdLen {
    fn len(&self) -> usize {
        ID_LEN
    }
}

impl CopyKey {
    /// The keys for the current API key: its file may have changed while the sidecar runs. `None` if they cannot be derived.
    pub fn of(authorization: &Authorization) -> Option<Self> {
        Self::derive(authorization.load().as_bytes().strip_prefix(b"Bearer ")?).ok()
    }

    pub fn derive(api_key: &[u8]) -> Result<Self, Unspecified> {
        // The salt of HKDF is a constant. The random salt of a file is part of `info`, so that one extraction serves all files.
        let derived = Salt::new(HKDF_SHA256, PURPOSE).extract(api_key);
        let mut id = [0; ID_LEN];
        derived.expand(&[b"file name"], IdLen)?.fill(&mut id)?;
        Ok(Self { derived, id })
    }

    /// A hash of the API key that names the file. It does not disclose the API key.
    pub const fn id(&self) -> [u8; ID_LEN] {
        self.id
    }

    /// Encrypts the content of the file that has this salt. The tag at its end also authenticates `header`.
    pub fn seal(&self, salt: &[u8; SALT_LEN], header: &[u8], content: &mut Vec<u8>) -> Result<(), Unspecified> {
        self.key_of_file(salt)?.seal_in_place_append_tag(only_nonce(), Aad::from(header), content)
    }

    /// Decrypts the content of the file that has this salt. Fails if the content or the header is not what was sealed.
    pub fn open<'a>(
        &self,
        salt: &[u8; SALT_LEN],
        header: &[u8],
        sealed: &'a mut [u8],
    ) -> Result<&'a mut [u8], Unspecified> {
        self.key_of_file(salt)?.open_in_place(only_nonce(), Aad::from(header), sealed)
    }

    fn key_of_file(&self, salt: &[u8; SALT_LEN]) -> Result<LessSafeKey, Unspecified> {
        let info: [&[u8]; 2] = [b"seal", salt];
        let key = self.derived.expand(&info, &AES_256_GCM)?;
        Ok(LessSafeKey::new(UnboundKey::from(key)))
    }
}

/// Any nonce is safe, because each key seals one file.
fn only_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

impl fmt::Debug for CopyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CopyKey")
    }
}
