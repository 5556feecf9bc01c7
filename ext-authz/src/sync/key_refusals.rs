//! Whether the control plane does not know the API key, or only some of its addresses.
//!
//! An address that has another database, or is configured wrongly, does not know a key that the other addresses know. Invariant:
//! the key counts as unknown only if the last attempt at every address ended with this answer, and no stream was in use since.

use std::sync::Arc;
use tonic::metadata::{Ascii, MetadataValue};

/// The credentials of an attempt.
type Authorization = Arc<MetadataValue<Ascii>>;

/// How an attempt to follow the control plane at one address ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The address does not know the API key.
    KeyUnknown {
        /// Whether the stream had confirmed the view before.
        was_in_use: bool,
    },
    /// Another reason.
    Other,
}

/// Counts the attempts in a row whose address does not know the API key. The addresses are tried in a fixed order.
#[derive(Debug, Default)]
pub struct KeyRefusals {
    authorization: Option<Authorization>,
    in_a_row: usize,
}

impl KeyRefusals {
    /// Records the end of an attempt. Its credentials were `before` when it began, and are `now`. Returns whether each of `addresses`
    /// addresses does not know the API key.
    pub fn record(&mut self, end: AttemptEnd, before: &Authorization, now: &Authorization, addresses: usize) -> bool {
        let earlier = self.authorization.replace(Arc::clone(now));
        // A refusal of a key that was replaced says nothing about the new one.
        let is_of_this_key = before == now;
        let continues = earlier.is_some_and(|earlier| earlier == *now);
        self.in_a_row = match end {
            AttemptEnd::KeyUnknown { was_in_use } if is_of_this_key => {
                let earlier = if continues && !was_in_use { self.in_a_row } else { 0 };
                earlier.saturating_add(1)
            }
            AttemptEnd::KeyUnknown { .. } | AttemptEnd::Other => 0,
        };
        self.in_a_row >= addresses.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: AttemptEnd = AttemptEnd::KeyUnknown { was_in_use: false };
    const REVOKED: AttemptEnd = AttemptEnd::KeyUnknown { was_in_use: true };

    fn authorization(text: &'static str) -> Authorization {
        Arc::new(MetadataValue::from_static(text))
    }

    /// The answers after these attempts with one key.
    fn record(addresses: usize, ends: &[AttemptEnd]) -> Vec<bool> {
        let (key, mut refusals) = (authorization("Bearer a"), KeyRefusals::default());
        ends.iter().map(|end| refusals.record(*end, &key, &key, addresses)).collect()
    }

    #[test]
    fn key_is_unknown_when_every_address_in_a_row_refuses_it() {
        assert_eq!(record(1, &[REFUSED, AttemptEnd::Other, REVOKED]), [true, false, true]);
        assert_eq!(
            record(2, &[REFUSED, AttemptEnd::Other, REFUSED, REFUSED, REFUSED]),
            [false, false, false, true, true]
        );
        assert_eq!(record(3, &[REFUSED, REFUSED, REVOKED, REFUSED, REFUSED]), [false, false, false, false, true]);
    }

    #[test]
    fn refusals_of_a_replaced_key_do_not_count() {
        let (a, b, mut refusals) = (authorization("Bearer a"), authorization("Bearer b"), KeyRefusals::default());
        assert!(!refusals.record(REFUSED, &a, &a, 2));
        assert!(!refusals.record(REFUSED, &a, &b, 2), "the key was replaced within the attempt");
        assert!(!refusals.record(REFUSED, &b, &b, 2));
        assert!(refusals.record(REFUSED, &b, &authorization("Bearer b"), 2), "the file was read again");
        assert!(!refusals.record(REFUSED, &a, &a, 2));
    }
}
