//! Digests that compare the rows of two tables, independent of their order.

use crate::domain::netstrings;
use sha2::{Digest as _, Sha256};

/// The number of rows and the sum of their SHA-256 hashes. Missing, duplicate and changed rows change the digest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableDigest {
    rows: u64,
    sum: [u64; 4],
}

impl TableDigest {
    pub fn add(&mut self, fields: &[Option<String>]) {
        let fields: Vec<_> = fields.iter().map(Option::as_deref).collect();
        let hash = Sha256::digest(netstrings::encode(&fields));
        for (sum, part) in self.sum.iter_mut().zip(hash.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_be_bytes(*part));
        }
        self.rows += 1;
    }

    /// Number of rows.
    pub const fn rows(&self) -> u64 {
        self.rows
    }

    /// The sum of the hashes, in hex.
    pub fn to_hex(&self) -> String {
        hex::encode(self.sum.map(u64::to_be_bytes).as_flattened())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(rows: &[&[Option<&str>]]) -> TableDigest {
        let mut digest = TableDigest::default();
        for row in rows {
            digest.add(&row.iter().map(|field| field.map(str::to_owned)).collect::<Vec<_>>());
        }
        digest
    }

    #[test]
    fn digest_depends_on_rows_but_not_on_their_order() {
        let (one, two): (&[_], &[_]) = (&[Some("a"), None], &[Some("b"), Some("")]);
        let both = digest(&[one, two]);
        assert_eq!(both, digest(&[two, one]));
        for other in [
            digest(&[one]),
            digest(&[one, one]),
            digest(&[one, two, two]),
            digest(&[one, &[Some("b"), None]]),
            digest(&[one, &[Some(""), Some("b")]]),
            digest(&[&[Some("a")], &[None, Some("b"), Some("")]]),
        ] {
            assert_ne!(both.to_hex(), other.to_hex());
        }
        assert_eq!((both.rows(), both.to_hex().len()), (2, 64));
    }
}
