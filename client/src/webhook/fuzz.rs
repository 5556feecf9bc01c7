//! What is not signed is not believed, whatever it looks like, and nothing panics.

use super::{
    tests::{BODY, MESSAGE, OTHER, PUBLISHED, SENT, SIGNED, headers},
    *,
};
use countersign_mangle::{any_text, cases_divided_by, mutated_bytes, mutated_text};
use proptest::prelude::*;
use reqwest::header::HeaderValue;

const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The good text, or almost.
fn near(good: &str) -> impl Strategy<Value = String> + use<> {
    prop_oneof![Just(good.to_owned()), mutated_text(good)]
}

/// Whether it is a text that a header can hold: another never arrives.
fn fits_header(text: &str) -> bool {
    HeaderValue::from_str(text).is_ok()
}

/// Whether what stands behind the prefix is 24 to 64 bytes in Base64, written in the one way there is.
fn is_secret(rest: &str) -> bool {
    let digits = rest.trim_end_matches('=');
    let Some(bits) = digits.chars().map(|digit| DIGITS.find(digit)).collect::<Option<Vec<_>>>() else { return false };
    let (bytes, padding, over) = (bits.len() * 6 / 8, rest.len() - digits.len(), bits.len() * 6 % 8);
    let nothing_over = bits.last().is_none_or(|last| last % (1 << over) == 0);
    rest.len().is_multiple_of(4) && padding <= 2 && nothing_over && (24..=64).contains(&bytes)
}

proptest! {
    #![proptest_config(cases_divided_by(1))]

    #[test]
    fn nothing_is_believed_but_what_was_signed(
        id in near(MESSAGE),
        sent in near(&SENT.to_string()),
        signed in prop_oneof![near(SIGNED), any_text()],
        body in prop_oneof![Just(BODY.to_vec()), mutated_bytes(BODY)],
    ) {
        if ![&id, &sent, &signed].into_iter().all(|text| fits_header(text)) {
            return Ok(());
        }
        let verifier = Verifier::new(PUBLISHED.parse().unwrap());
        let headers = headers(&id, &sent, &signed);
        let believed = verifier.verify(&headers, &body, Timestamp::from_seconds(SENT)).is_ok();
        let found = signed.is_ascii() && signed.split(' ').any(|one| one == SIGNED);
        prop_assert_eq!(believed, id == MESSAGE && sent == SENT.to_string() && body == BODY && found);
    }

    #[test]
    fn a_secret_is_read_in_its_one_form(given in prop_oneof![any_text(), near(PUBLISHED), near(OTHER)]) {
        let good = given.strip_prefix("whsec_").is_some_and(is_secret);
        prop_assert_eq!(given.parse::<WebhookSecret>().is_ok(), good, "{}", given);
    }
}
