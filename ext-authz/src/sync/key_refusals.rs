//! Decides whether the API key is unknown at every address of the control plane.
//!
//! An address with another database, or a wrong configuration, may not know a key that the others know. Invariant: the key counts as
//! unknown only if every address refused it at its last attempt, and no stream was in use since.

use std::sync::Arc;
use tonic::metadata::{Ascii, MetadataValue};

pub type Credentials = Arc<MetadataValue<Ascii>>;

/// Counts refusals of the API key in a row. The addresses are tried in turn, so as many refusals as there are addresses come from
/// all of them.
#[derive(Debug, Default)]
pub struct KeyRefusals {
    /// The credentials that were refused last.
    refused: Option<Credentials>,
    in_a_row: usize,
}

impl KeyRefusals {
    /// Records that an address does not know these credentials, if they were not replaced meanwhile. Returns whether all
    /// `addresses` addresses refused them in a row. `was_confirmed`: the stream had confirmed the view, so earlier refusals do not
    /// count.
    pub fn refused(&mut self, credentials: &Credentials, was_confirmed: bool, addresses: usize) -> bool {
        let earlier = self.refused.replace(Arc::clone(credentials));
        let continues = !was_confirmed && earlier.is_some_and(|earlier| earlier == *credentials);
        self.in_a_row = if continues { self.in_a_row.saturating_add(1) } else { 1 };
        self.in_a_row >= addresses
    }

    /// Records that an attempt ended for another reason than a refusal, or that the credentials were replaced meanwhile: a refusal
    /// of the old ones says nothing about the new ones.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(text: &'static str) -> Credentials {
        Arc::new(MetadataValue::from_static(text))
    }

    /// How an attempt ends. `Revoked` is a refusal after the stream had confirmed the view.
    #[derive(Clone, Copy)]
    enum End {
        Refused,
        Revoked,
        Other,
    }

    use End::{Other, Refused, Revoked};

    /// Whether the key counts as unknown after each of these attempts.
    fn record(addresses: usize, ends: &[End]) -> Vec<bool> {
        let (key, mut refusals) = (credentials("Bearer a"), KeyRefusals::default());
        let mut record = |end: &End| match end {
            Refused => refusals.refused(&key, false, addresses),
            Revoked => refusals.refused(&key, true, addresses),
            Other => {
                refusals.reset();
                false
            }
        };
        ends.iter().map(&mut record).collect()
    }

    #[test]
    fn key_is_unknown_when_every_address_in_a_row_refuses_it() {
        assert_eq!(record(1, &[Refused, Other, Revoked]), [true, false, true]);
        assert_eq!(record(2, &[Refused, Other, Refused, Refused, Refused]), [false, false, false, true, true]);
        assert_eq!(record(3, &[Refused, Refused, Revoked, Refused, Refused]), [false, false, false, false, true]);
    }

    #[test]
    fn refusals_of_a_replaced_key_do_not_count() {
        let (a, b, mut refusals) = (credentials("Bearer a"), credentials("Bearer b"), KeyRefusals::default());
        assert!(!refusals.refused(&a, false, 2));
        assert!(!refusals.refused(&b, false, 2));
        assert!(refusals.refused(&credentials("Bearer b"), false, 2), "the file was read again");
        assert!(!refusals.refused(&a, false, 2));
    }
}
