//! Property tests: a changed or reassembled token is refused.
//!
//! One changed token is accepted: ECDSA is malleable, so anyone can turn the signature (r, s) into (r, −s). That gains an attacker
//! nothing, because the token has the same claims, and revocation is by `jti`.

use super::*;
use crate::{AgentHashKey, AgentId, P256PublicKey, Scope, ServiceId, TokenId};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use countersign_mangle::{any_bytes, any_json, any_text, cases_divided_by, mutated_text};
use jsonwebtoken::{EncodingKey, Header};
use p256::{SecretKey, ecdsa::Signature, pkcs8::EncodePrivateKey};
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value, json};
use std::sync::LazyLock;

/// Two tokens signed with the trusted key, and one with an untrusted key.
static VALID_TOKEN: LazyLock<String> = LazyLock::new(|| sign(7, &claims(1)));
static OTHER_VALID_TOKEN: LazyLock<String> = LazyLock::new(|| sign(7, &claims(2)));
static UNTRUSTED_TOKEN: LazyLock<String> = LazyLock::new(|| sign(8, &claims(1)));
static TRUSTED_KEYS: LazyLock<KeySet> = LazyLock::new(|| [public_key(7)].into_iter().collect());

fn secret_key(seed: u8) -> SecretKey {
    SecretKey::from_slice(&[seed; 32]).unwrap()
}

fn public_key(seed: u8) -> P256PublicKey {
    P256PublicKey::from_sec1(&secret_key(seed).public_key().to_sec1_bytes()).unwrap()
}

fn claims(token: u128) -> Value {
    let padding = AgentHashKey::derive(&[7; 32], ServiceId::from_bits(0));
    let claims = Claims {
        client_id: Some(AgentId::from_bits(7)),
        jti: TokenId::from_bits(token),
        until: [("reader".try_into().unwrap(), 1_000_100)].into(),
        scope: Some("read".into()),
        requested_scope: Scope::try_from("read write").ok(),
        ..crate::claims::tests::claims()
    };
    json!(claims.with_grants([], &padding))
}

fn sign(seed: u8, claims: &Value) -> String {
    let mut header = Header::new(Algorithm::ES256);
    header.typ = Some("at+jwt".into());
    // The token that is signed with the untrusted key names the trusted key in its `kid`.
    header.kid = Some(Kid::from_key(public_key(7)).as_str().to_owned());
    let key = EncodingKey::from_ec_der(secret_key(seed).to_pkcs8_der().unwrap().as_bytes());
    jsonwebtoken::encode(&header, claims, &key).unwrap()
}

fn is_accepted(text: &str) -> bool {
    UnverifiedToken::parse(text).and_then(|token| token.verify(&TRUSTED_KEYS)).is_ok()
}

fn segments(token: &str) -> [&str; 3] {
    token.split('.').collect::<Vec<_>>().try_into().unwrap()
}

/// Generates non-canonical base64url encodings of the bytes of a token segment, or encodings of similar bytes.
fn reencoded(segment: &'static str) -> impl Strategy<Value = String> {
    let last = segment.len() - 1;
    prop_oneof![
        4 => Just(segment.to_owned()),
        1 => Just(format!("{segment}=")),
        1 => Just(format!("{segment}==")),
        1 => Just(segment.replace('-', "+").replace('_', "/")),
        1 => select(&[" ", "\n", "\t", "%3D", "\u{a0}"][..]).prop_map(move |end| format!("{segment}{end}")),
        2 => select(&BASE64_ALPHABET[..]).prop_map(move |end| format!("{}{}", &segment[..last], char::from(end))),
        1 => Just(segment.to_ascii_lowercase()),
        1 => Just(String::new()),
    ]
}

const BASE64_ALPHABET: [u8; 64] = *b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Generates texts with the JSON of a token segment in a different format, or with similar JSON.
fn other_encodings(segment: &'static str) -> impl Strategy<Value = String> {
    let json = String::from_utf8(URL_SAFE_NO_PAD.decode(segment).unwrap()).unwrap();
    let value: Value = serde_json::from_str(&json).unwrap();
    let duplicate_first_member =
        value.as_object().unwrap().iter().next().map(|(name, value)| format!("{{\"{name}\":{value},")).unwrap();
    prop_oneof![
        Just(json.clone()),
        Just(value.to_string()),
        Just(serde_json::to_string_pretty(&value).unwrap()),
        Just(format!(" {json}")),
        Just(format!("{json}\n")),
        Just(json.replacen('{', &duplicate_first_member, 1)),
        Just(json.replacen('{', r#"{"more":1,"#, 1)),
        Just(json.replacen('a', r"\u0061", 1)),
        mutated_text(&json),
    ]
    .prop_map(|json| URL_SAFE_NO_PAD.encode(json))
}

proptest! {
    #![proptest_config(cases_divided_by(1))]

    #[test]
    fn mutated_token_is_refused(other in mutated_text(&VALID_TOKEN)) {
        prop_assert_eq!(is_accepted(&other), other == *VALID_TOKEN);
    }

    #[test]
    fn tokens_assembled_from_segments_are_refused(
        parts in vec(select([&*VALID_TOKEN, &*OTHER_VALID_TOKEN, &*UNTRUSTED_TOKEN].iter().flat_map(|token| segments(token)).chain(["", "."]).collect::<Vec<_>>()), 0..6)
    ) {
        let token = parts.join(".");
        prop_assert_eq!(is_accepted(&token), token == *VALID_TOKEN || token == *OTHER_VALID_TOKEN, "{}", token);
    }

    #[test]
    fn other_base64_encodings_are_refused(
        header in reencoded(segments(&VALID_TOKEN)[0]),
        claims in reencoded(segments(&VALID_TOKEN)[1]),
        signature in reencoded(segments(&VALID_TOKEN)[2]),
    ) {
        let token = [header, claims, signature].join(".");
        prop_assert_eq!(is_accepted(&token), token == *VALID_TOKEN, "{}", token);
    }

    #[test]
    fn other_json_encodings_are_refused(
        header in other_encodings(segments(&VALID_TOKEN)[0]),
        claims in other_encodings(segments(&VALID_TOKEN)[1]),
    ) {
        let token = [&header, &claims, segments(&VALID_TOKEN)[2]].join(".");
        prop_assert_eq!(is_accepted(&token), token == *VALID_TOKEN, "{}", token);
    }

    #[test]
    fn unsigned_tokens_are_refused(
        anything in any_text(),
        header in any_json(),
        claims in any_json(),
        signature in any_bytes(),
    ) {
        prop_assert!(!is_accepted(&anything));
        let encoded = [header.to_string().into_bytes(), claims.to_string().into_bytes(), signature].map(|part| URL_SAFE_NO_PAD.encode(part));
        prop_assert!(!is_accepted(&encoded.join(".")));
        prop_assert!(!is_accepted(&[segments(&VALID_TOKEN)[0], &encoded[1], &encoded[2]].join(".")));
    }
}

proptest! {
    #![proptest_config(cases_divided_by(2))]

    #[test]
    fn signed_tokens_with_any_claims_are_parsed_or_refused(field in select(claim_names()), value in any_json()) {
        let mut changed = claims(1);
        changed[&field] = value;
        let token = sign(7, &changed);
        let verified = UnverifiedToken::parse(&token).and_then(|token| token.verify(&TRUSTED_KEYS));
        match serde_json::from_value::<Claims>(changed) {
            Ok(claims) => prop_assert_eq!(verified.map(|token| token.claims().clone()), Ok(claims)),
            Err(_) if token.len() > MAX_TOKEN_BYTES => prop_assert_eq!(verified.unwrap_err().reason, Reason::TokenMalformed),
            Err(_) => prop_assert_eq!(verified.unwrap_err().reason, Reason::TokenClaimsInvalid),
        }
    }
}

fn claim_names() -> Vec<String> {
    claims(1).as_object().unwrap().keys().cloned().chain(["more".to_owned()]).collect()
}

#[test]
fn token_with_negated_s_has_the_same_claims() {
    let [header, claims, signature] = segments(&VALID_TOKEN);
    let signature = Signature::from_slice(&URL_SAFE_NO_PAD.decode(signature).unwrap()).unwrap();
    let negated_s = Signature::from_scalars(signature.r().to_bytes(), (-*signature.s()).to_bytes()).unwrap();
    let token_with_negated_s = [header, claims, &URL_SAFE_NO_PAD.encode(negated_s.to_bytes())].join(".");
    assert_ne!(token_with_negated_s, *VALID_TOKEN);
    let verify = |text| UnverifiedToken::parse(text).and_then(|token| token.verify(&TRUSTED_KEYS)).unwrap();
    assert_eq!(verify(&token_with_negated_s).claims(), verify(&VALID_TOKEN).claims());
}
