//! Valid tokens whose text was modified.

use super::{
    BAD_SIGNATURE, MALFORMED,
    forger::{Case, Forger, case},
};
use base64::{
    Engine,
    engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD as BASE64},
};

const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Modifications of the token's text.
pub fn modified_texts(forger: &Forger, token: &str) -> Vec<Case> {
    let [header, payload, signature] = &forger.parts;
    let padded = URL_SAFE.encode(BASE64.decode(signature).unwrap());
    let mut cases = vec![
        case("leading dot", format!(".{token}"), MALFORMED),
        case("trailing dot", format!("{token}."), MALFORMED),
        case("two dots", token.replacen('.', "..", 1), MALFORMED),
        case("four parts", format!("{token}.{signature}"), MALFORMED),
        case("five parts", format!("{header}.{payload}.{signature}.{payload}.{signature}"), MALFORMED),
        case("two parts", format!("{header}.{payload}"), MALFORMED),
        case("one part", header.clone(), MALFORMED),
        case("dots only", "..".into(), MALFORMED),
        case("signature padded", forger.with_signature(&padded), MALFORMED),
        case("header padded", format!("{header}=.{payload}.{signature}"), MALFORMED),
        case("payload padded", format!("{header}.{payload}=.{signature}"), BAD_SIGNATURE),
        case("white space inside", token.replacen('.', ". ", 1), MALFORMED),
        case("a tab inside", token.replacen('.', "\t.", 1), MALFORMED),
        case("plus instead of minus", format!("{header}.{payload}.+{}", &signature[1..]), MALFORMED),
        case("40 KiB of signature", forger.with_signature(&"A".repeat(40 * 1024)), MALFORMED),
        case("40 KiB of payload", format!("{header}.{}.{signature}", "A".repeat(40 * 1024)), MALFORMED),
        case("plain text", "not-a-token".into(), MALFORMED),
        case("a JSON object", r#"{"alg":"ES256"}"#.into(), MALFORMED),
        case("percent-encoded", token.replace('.', "%2E"), MALFORMED),
        case("quoted", format!("\"{token}\""), MALFORMED),
    ];
    cases.extend(unused_bits(forger));
    cases
}

/// The last base64url character has unused bits, of which only zeros are canonical.
fn unused_bits(forger: &Forger) -> Vec<Case> {
    let signature = &forger.parts[2];
    let (head, last) = signature.split_at(signature.len() - 1);
    let value = ALPHABET.iter().position(|character| *character == last.as_bytes()[0]).unwrap();
    assert_eq!((signature.len(), value % 16), (86, 0), "64 bytes leave four bits unused");
    (1..16)
        .map(|bits| format!("{head}{}", char::from(ALPHABET[value + bits])))
        .map(|signature| case(format!("unused bits: {signature}"), forger.with_signature(&signature), MALFORMED))
        .collect()
}

/// Tokens with one character replaced, at about 200 positions, and with every other character at the end of each part.
pub fn changed_characters(token: &str) -> Vec<(String, String)> {
    let replace_at = |position: usize, character: u8| {
        let character = char::from(character);
        let modified = format!("{}{character}{}", &token[..position], &token[position + 1..]);
        (format!("{character:?} at {position} of {}", token.len()), modified)
    };
    let next = |position: usize| {
        let value = ALPHABET.iter().position(|character| *character == token.as_bytes()[position]);
        ALPHABET[value.map_or(0, |value| (value + 1) % 64)]
    };
    let sample = (0..token.len()).step_by(token.len() / 200).map(|position| replace_at(position, next(position)));
    let dots = token.match_indices('.').map(|(position, _)| position);
    let ends = dots.chain([token.len()]).flat_map(|end| {
        let others = ALPHABET.iter().filter(move |other| **other != token.as_bytes()[end - 1]);
        others.map(move |other| replace_at(end - 1, *other))
    });
    sample.chain(ends).collect()
}

/// The token truncated to about 100 lengths, including the eight greatest.
pub fn truncated_tokens(token: &str) -> Vec<(String, String)> {
    let lengths = (1..token.len()).step_by(token.len() / 100).chain(token.len() - 8..token.len());
    lengths.map(|length| (format!("{length} of {}", token.len()), token[..length].to_owned())).collect()
}
