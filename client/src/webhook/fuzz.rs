//! Property tests of webhook verification: only signed requests are accepted, and no input causes a panic.

use super::{
    tests::{MESSAGE_ID, OTHER_SECRET, SENT_AT, VECTOR_BODY, VECTOR_SECRET, VECTOR_SIGNATURE, headers},
    *,
};
use countersign_mangle::{any_text, cases_divided_by, mutated_bytes, mutated_text};
use proptest::prelude::*;
use reqwest::header::HeaderValue;

const BASE64_DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Generates the text `valid` or a mutation of it.
fn valid_or_mutated(valid: &str) -> impl Strategy<Value = String> + use<> {
    prop_oneof![Just(valid.to_owned()), mutated_text(valid)]
}

/// Returns whether the text is a valid header value.
fn is_header_value(text: &str) -> bool {
    HeaderValue::from_str(text).is_ok()
}

/// Returns whether the text is the canonical Base64 of 24 to 64 bytes.
fn is_encoded_secret(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    let Some(digit_values) = digits.chars().map(|digit| BASE64_DIGITS.find(digit)).collect::<Option<Vec<_>>>() else {
        return false;
    };
    let bytes = digit_values.len() * 6 / 8;
    let padding = text.len() - digits.len();
    let unused_bits = digit_values.len() * 6 % 8;
    let is_canonical = digit_values.last().is_none_or(|last| last % (1 << unused_bits) == 0);
    text.len().is_multiple_of(4) && padding <= 2 && is_canonical && (24..=64).contains(&bytes)
}

proptest! {
    #![proptest_config(cases_divided_by(1))]

    #[test]
    fn verify_accepts_only_the_signed_id_time_and_body(
        id in valid_or_mutated(MESSAGE_ID),
        sent_at in valid_or_mutated(&SENT_AT.to_string()),
        signatures in prop_oneof![valid_or_mutated(VECTOR_SIGNATURE), any_text()],
        body in prop_oneof![Just(VECTOR_BODY.to_vec()), mutated_bytes(VECTOR_BODY)],
    ) {
        if ![&id, &sent_at, &signatures].into_iter().all(|text| is_header_value(text)) {
            return Ok(());
        }
        let verifier = Verifier::new(VECTOR_SECRET.parse().unwrap());
        let headers = headers(&id, &sent_at, &signatures);
        let accepted = verifier.verify(&headers, &body, Timestamp::from_seconds(SENT_AT)).is_ok();
        let has_signature = signatures.is_ascii() && signatures.split(' ').any(|signature| signature == VECTOR_SIGNATURE);
        prop_assert_eq!(accepted, id == MESSAGE_ID && sent_at == SENT_AT.to_string() && body == VECTOR_BODY && has_signature);
    }

    #[test]
    fn only_canonical_secrets_are_parsed(text in prop_oneof![any_text(), valid_or_mutated(VECTOR_SECRET), valid_or_mutated(OTHER_SECRET)]) {
        let is_valid = text.strip_prefix("whsec_").is_some_and(is_encoded_secret);
        prop_assert_eq!(text.parse::<WebhookSecret>().is_ok(), is_valid, "{}", text);
    }
}
