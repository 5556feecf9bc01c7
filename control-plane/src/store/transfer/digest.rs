//! What the rows of a table come to, in whatever order they are read.

use crate::domain::netstrings;
use sha2::{Digest as _, Sha256};

/// How many rows there are, and the sum of their hashes. A row that is missing, twice there or changed changes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Digest {
    rows: u64,
    sum: [u64; 4],
}

impl Digest {
    /// Adds a row, by its fields.
    pub fn add(&mut self, fields: &[Option<String>]) {
        let fields: Vec<_> = fields.iter().map(Option::as_deref).collect();
        let hash = Sha256::digest(netstrings::encode(&fields));
        for (sum, part) in self.sum.iter_mut().zip(hash.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_be_bytes(*part));
        }
        self.rows += 1;
    }

    /// How many rows there are.
    pub const fn rows(&self) -> u64 {
        self.rows
    }

    /// As people compare it.
    pub fn text(&self) -> String {
        hex::encode(self.sum.map(u64::to_be_bytes).as_flattened())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(rows: &[&[Option<&str>]]) -> Digest {
        let mut digest = Digest::default();
        for row in rows {
            digest.add(&row.iter().map(|field| field.map(str::to_owned)).collect::<Vec<_>>());
        }
        digest
    }

    #[test]
    fn order_does_not_matter_and_everything_else_does() {
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
            assert_ne!(both.text(), other.text());
        }
        assert_eq!((both.rows(), both.text().len()), (2, 64));
    }
}
