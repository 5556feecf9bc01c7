//! Property tests: only signed requests are accepted, and no input panics.

use super::{
    tests::{BODY, MESSAGE, OTHER, PUBLISHED, SENT, SIGNED, headers},
    *,
};
use countersign_mangle::{any_text, cases_divided_by, mutated_bytes, mutated_text};
use proptest::prelude::*;
use reqwest::header::HeaderValue;

const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The valid text, or one that is similar.
fn same_or_similar(valid: &str) -> impl Strategy<Value = String> + use<> {
    prop_oneof![Just(valid.to_owned()), mutated_text(valid)]
}

/// Whether the text can be the value of a header.
fn is_header_value(text: &str) -> bool {
    HeaderValue::from_str(text).is_ok()
}

/// Whether the text is the canonical Base64 of 24 to 64 bytes.
fn is_secret(rest: &str) -> bool {
    let digits = rest.trim_end_matches('=');
    let Some(bits) = digits.chars().map(|digit| DIGITS.find(digit)).collect::<Option<Vec<_>>>() else { return false };
    let (bytes, padding, surplus_bits) = (bits.len() * 6 / 8, rest.len() - digits.len(), bits.len() * 6 % 8);
    let canonical = bits.last().is_none_or(|last| last % (1 << surplus_bits) == 0);
    rest.len().is_multiple_of(4) && padding <= 2 && canonical && (24..=64).contains(&bytes)
}

proptest! {
    #![proptest_config(cases_divided_by(1))]

    #[test]
    fn verify_accepts_only_what_was_signed(
        id in same_or_similar(MESSAGE),
        sent in same_or_similar(&SENT.to_string()),
        signed in prop_oneof![same_or_similar(SIGNED), any_text()],
        body in prop_oneof![Just(BODY.to_vec()), mutated_bytes(BODY)],
    ) {
        if ![&id, &sent, &signed].into_iter().all(|text| is_header_value(text)) {
            return Ok(());
        }
        let verifier = Verifier::new(PUBLISHED.parse().unwrap());
        let headers = headers(&id, &sent, &signed);
        let accepted = verifier.verify(&headers, &body, Timestamp::from_seconds(SENT)).is_ok();
        let has_signature = signed.is_ascii() && signed.split(' ').any(|signature| signature == SIGNED);
        prop_assert_eq!(accepted, id == MESSAGE && sent == SENT.to_string() && body == BODY && has_signature);
    }

    #[test]
    fn secret_is_parsed_only_in_canonical_form(text in prop_oneof![any_text(), same_or_similar(PUBLISHED), same_or_similar(OTHER)]) {
        let valid = text.strip_prefix("whsec_").is_some_and(is_secret);
        prop_assert_eq!(text.parse::<WebhookSecret>().is_ok(), valid, "{}", text);
    }
}
