//! Nothing but the token itself is that token.
//!
//! One other spelling is known and let be: whoever sees an ECDSA signature (r, s) can write (r, −s) for it.
//! Both say the same of the same claims, and what is revoked is the `jti`, not a spelling.

use super::*;
use crate::{AgentId, Audience, P256PublicKey, Revision, ServiceId, SessionId, TokenId, TrustScore};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use countersign_mangle::{any_bytes, any_json, any_text, cases_divided_by, mutated_text};
use jsonwebtoken::{EncodingKey, Header};
use p256::{SecretKey, ecdsa::Signature, pkcs8::EncodePrivateKey};
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value, json};
use std::sync::LazyLock;

/// Two tokens of one key, one of a key that nobody believes.
static GOOD: LazyLock<String> = LazyLock::new(|| signed(7, &claims(1)));
static ALSO_GOOD: LazyLock<String> = LazyLock::new(|| signed(7, &claims(2)));
static FOREIGN: LazyLock<String> = LazyLock::new(|| signed(8, &claims(1)));
static KEYS: LazyLock<KeySet> = LazyLock::new(|| [public(7)].into_iter().collect());

fn secret(seed: u8) -> SecretKey {
    SecretKey::from_slice(&[seed; 32]).unwrap()
}

fn public(seed: u8) -> P256PublicKey {
    P256PublicKey::from_sec1(&secret(seed).public_key().to_sec1_bytes()).unwrap()
}

fn claims(token: u128) -> Value {
    json!(Claims {
        iss: "https://issuer.test".into(),
        sub: AgentId::from_bits(1),
        aud: Audience::Service(ServiceId::from_bits(2)).claim("https://issuer.test"),
        iat: 1_700_000_000,
        nbf: 1_700_000_000,
        exp: 1_700_003_600,
        jti: TokenId::from_bits(token),
        sid: SessionId::from_bits(3),
        rev: Revision::new(4),
        name: "Größe".into(),
        roles: vec!["reader".try_into().unwrap()],
        permissions: vec!["read".try_into().unwrap()],
        trust_score: TrustScore::INITIAL,
        until: [("reader".try_into().unwrap(), 1_700_000_100)].into(),
    })
}

fn signed(seed: u8, claims: &Value) -> String {
    let mut header = Header::new(Algorithm::ES256);
    header.typ = Some("at+jwt".into());
    // The foreign one claims to be ours, too.
    header.kid = Some(Kid::from_key(public(7)).as_str().to_owned());
    let key = EncodingKey::from_ec_der(secret(seed).to_pkcs8_der().unwrap().as_bytes());
    jsonwebtoken::encode(&header, claims, &key).unwrap()
}

fn accepted(text: &str) -> bool {
    UnverifiedToken::parse(text).and_then(|token| token.verify(&KEYS)).is_ok()
}

fn segments(token: &str) -> [&str; 3] {
    token.split('.').collect::<Vec<_>>().try_into().unwrap()
}

/// Other texts for the same bytes, or for nearly the same.
fn respelled(segment: &'static str) -> impl Strategy<Value = String> {
    let last = segment.len() - 1;
    prop_oneof![
        4 => Just(segment.to_owned()),
        1 => Just(format!("{segment}=")),
        1 => Just(format!("{segment}==")),
        1 => Just(segment.replace('-', "+").replace('_', "/")),
        1 => select(&[" ", "\n", "\t", "%3D", "\u{a0}"][..]).prop_map(move |end| format!("{segment}{end}")),
        2 => select(&ALPHABET[..]).prop_map(move |end| format!("{}{}", &segment[..last], char::from(end))),
        1 => Just(segment.to_ascii_lowercase()),
        1 => Just(String::new()),
    ]
}

const ALPHABET: [u8; 64] = *b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The same JSON in other letters.
fn reworded(segment: &'static str) -> impl Strategy<Value = String> {
    let plain = String::from_utf8(URL_SAFE_NO_PAD.decode(segment).unwrap()).unwrap();
    let value: Value = serde_json::from_str(&plain).unwrap();
    let first = value.as_object().unwrap().iter().next().map(|(name, value)| format!("{{\"{name}\":{value},")).unwrap();
    prop_oneof![
        Just(plain.clone()),
        Just(value.to_string()),
        Just(serde_json::to_string_pretty(&value).unwrap()),
        Just(format!(" {plain}")),
        Just(format!("{plain}\n")),
        Just(plain.replacen('{', &first, 1)),
        Just(plain.replacen('{', r#"{"more":1,"#, 1)),
        Just(plain.replacen('a', r"\u0061", 1)),
        mutated_text(&plain),
    ]
    .prop_map(|json| URL_SAFE_NO_PAD.encode(json))
}

proptest! {
    #![proptest_config(cases_divided_by(1))]

    #[test]
    fn a_changed_token_is_refused(other in mutated_text(&GOOD)) {
        prop_assert_eq!(accepted(&other), other == *GOOD);
    }

    #[test]
    fn parts_of_several_tokens_do_not_make_another(
        parts in vec(select([&*GOOD, &*ALSO_GOOD, &*FOREIGN].iter().flat_map(|token| segments(token)).chain(["", "."]).collect::<Vec<_>>()), 0..6)
    ) {
        let token = parts.join(".");
        prop_assert_eq!(accepted(&token), token == *GOOD || token == *ALSO_GOOD, "{}", token);
    }

    #[test]
    fn the_same_bytes_in_other_letters_are_refused(
        header in respelled(segments(&GOOD)[0]),
        claims in respelled(segments(&GOOD)[1]),
        signature in respelled(segments(&GOOD)[2]),
    ) {
        let token = [header, claims, signature].join(".");
        prop_assert_eq!(accepted(&token), token == *GOOD, "{}", token);
    }

    #[test]
    fn the_same_json_in_other_letters_is_refused(
        header in reworded(segments(&GOOD)[0]),
        claims in reworded(segments(&GOOD)[1]),
    ) {
        let token = [&header, &claims, segments(&GOOD)[2]].join(".");
        prop_assert_eq!(accepted(&token), token == *GOOD, "{}", token);
    }

    #[test]
    fn what_nobody_signed_is_refused(
        anything in any_text(),
        header in any_json(),
        claims in any_json(),
        signature in any_bytes(),
    ) {
        prop_assert!(!accepted(&anything));
        let encoded = [header.to_string().into_bytes(), claims.to_string().into_bytes(), signature].map(|part| URL_SAFE_NO_PAD.encode(part));
        prop_assert!(!accepted(&encoded.join(".")));
        prop_assert!(!accepted(&[segments(&GOOD)[0], &encoded[1], &encoded[2]].join(".")));
    }
}

proptest! {
    #![proptest_config(cases_divided_by(2))]

    #[test]
    fn whatever_is_signed_is_read_or_refused(field in select(fields()), value in any_json()) {
        let mut said = claims(1);
        said[&field] = value;
        let token = signed(7, &said);
        let read = UnverifiedToken::parse(&token).and_then(|token| token.verify(&KEYS));
        match serde_json::from_value::<Claims>(said) {
            Ok(claims) => prop_assert_eq!(read.map(|token| token.claims().clone()), Ok(claims)),
            Err(_) if token.len() > MAX_TOKEN_BYTES => prop_assert_eq!(read.unwrap_err().reason, Reason::TokenMalformed),
            Err(_) => prop_assert_eq!(read.unwrap_err().reason, Reason::TokenClaimsInvalid),
        }
    }
}

fn fields() -> Vec<String> {
    claims(1).as_object().unwrap().keys().cloned().chain(["more".to_owned()]).collect()
}

#[test]
fn the_twin_of_a_signature_says_the_same_of_the_same_claims() {
    let [header, claims, signature] = segments(&GOOD);
    let signature = Signature::from_slice(&URL_SAFE_NO_PAD.decode(signature).unwrap()).unwrap();
    let twin = Signature::from_scalars(signature.r().to_bytes(), (-*signature.s()).to_bytes()).unwrap();
    let twin = [header, claims, &URL_SAFE_NO_PAD.encode(twin.to_bytes())].join(".");
    assert_ne!(twin, *GOOD);
    let read = |text| UnverifiedToken::parse(text).and_then(|token| token.verify(&KEYS)).unwrap();
    assert_eq!(read(&twin).claims(), read(&GOOD).claims());
}
