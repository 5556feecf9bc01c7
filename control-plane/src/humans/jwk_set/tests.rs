use super::*;
use Algorithm::{ES256, EdDSA, RS256};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::json;

/// An RSA key whose modulus has this many bits, all set.
fn rsa(bits: usize) -> Value {
    let mut modulus = vec![0xff; bits / 8];
    if !bits.is_multiple_of(8) {
        modulus.insert(0, (1 << (bits % 8)) - 1);
    }
    json!({ "kty": "RSA", "n": URL_SAFE_NO_PAD.encode(modulus), "e": "AQAB" })
}

/// A P-256 key whose public point is the base point.
fn p256() -> Value {
    let coordinate = |hex: &str| URL_SAFE_NO_PAD.encode(hex::decode(hex).unwrap());
    json!({
        "kty": "EC", "crv": "P-256",
        "x": coordinate("6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"),
        "y": coordinate("4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5"),
    })
}

fn ed25519() -> Value {
    json!({ "kty": "OKP", "crv": "Ed25519", "x": URL_SAFE_NO_PAD.encode([7; 32]) })
}

fn with_members(mut key: Value, members: Value) -> Value {
    let Value::Object(members) = members else { panic!("the members must be an object") };
    key.as_object_mut().unwrap().extend(members);
    key
}

fn set(keys: &[Value]) -> JwkSet {
    JwkSet::parse(json!({ "keys": keys }).to_string().as_bytes()).unwrap()
}

fn is_usable(key: Value) -> bool {
    set(&[key]).len() == 1
}

#[test]
fn keys_for_other_algorithms_or_purposes_are_ignored() {
    for (key, matching, other) in
        [(rsa(2048), "RS256", "PS256"), (p256(), "ES256", "ES384"), (ed25519(), "EdDSA", "RS256")]
    {
        assert!(is_usable(key.clone()) && is_usable(with_members(key.clone(), json!({ "alg": matching }))), "{key}");
        assert!(
            is_usable(with_members(key.clone(), json!({ "use": "sig", "key_ops": ["verify"], "unknown_member": 1 }))),
            "{key}"
        );
        for wrong in [
            json!({ "alg": other }),
            json!({ "use": "enc" }),
            json!({ "key_ops": ["encrypt"] }),
            json!({ "kty": "oct", "k": "c2VjcmV0" }),
            json!({ "kid": 7 }),
            json!({ "d": "c2VjcmV0" }),
        ] {
            assert!(!is_usable(with_members(key.clone(), wrong.clone())), "{key} {wrong}");
        }
    }
    assert!(is_usable(with_members(ed25519(), json!({ "alg": "Ed25519" }))));
}

#[test]
fn weak_and_malformed_keys_are_ignored() {
    for (bits, expected) in [(1024, false), (2047, false), (2048, true), (4096, true), (8192, true), (8200, false)] {
        assert_eq!(is_usable(rsa(bits)), expected, "{bits}");
    }
    let with_zeros = |bytes: usize| URL_SAFE_NO_PAD.encode([vec![0; 128], vec![0xff; bytes]].concat());
    for wrong in [
        json!({ "n": with_zeros(128) }),
        json!({ "e": "AQ" }),
        json!({ "e": "Ag" }),
        json!({ "n": "" }),
        json!({ "e": "AQAB==" }),
    ] {
        assert!(!is_usable(with_members(rsa(2048), wrong.clone())), "{wrong}");
    }
    let padded = json!({ "kty": "RSA", "n": with_zeros(256), "e": "AAEAAQ" });
    let KeyMatch::Unique(padded) = set(&[padded]).find(None, RS256) else {
        panic!("zeros before a number must be ignored")
    };
    assert!(matches!(padded.kind(), DecodingKeyKind::RsaModulusExponent { n, e } if n.len() == 256 && e.len() == 3));
    for wrong in
        [json!({ "crv": "P-384" }), json!({ "x": "AAAA" }), json!({ "y": p256()["x"] }), json!({ "crv": null })]
    {
        assert!(!is_usable(with_members(p256(), wrong.clone())), "{wrong}");
    }
    for wrong in [json!({ "crv": "X25519" }), json!({ "crv": "Ed448" }), json!({ "x": "AAAA" })] {
        assert!(!is_usable(with_members(ed25519(), wrong.clone())), "{wrong}");
    }
    let one_usable = set(&[json!(null), json!({}), rsa(1024), with_members(p256(), json!({ "kid": "a" }))]);
    assert!(matches!(one_usable.find(Some("a"), ES256), KeyMatch::Unique(_)));
    for text in ["", "[]", "{}", "{\"keys\":{}}", "{\"keys\":"] {
        assert!(JwkSet::parse(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn find_returns_the_only_key_that_matches() {
    let with_kid = |key: Value, kid: &str| with_members(key, json!({ "kid": kid }));
    let keys =
        set(&[with_kid(rsa(2048), "a"), with_kid(p256(), "a"), with_kid(ed25519(), "b"), with_kid(rsa(3072), "c")]);
    assert!(
        matches!(keys.find(Some("a"), RS256), KeyMatch::Unique(_)),
        "keys with one kid must be selected by algorithm"
    );
    assert!(matches!(keys.find(Some("a"), ES256), KeyMatch::Unique(_)));
    assert!(matches!(keys.find(Some("a"), EdDSA), KeyMatch::Unusable));
    assert!(matches!(keys.find(Some("b"), RS256), KeyMatch::Unusable));
    assert!(matches!(keys.find(Some("d"), RS256), KeyMatch::Unknown));
    assert!(matches!(keys.find(Some(""), RS256), KeyMatch::Unknown));
    assert!(matches!(keys.find(None, ES256), KeyMatch::Unique(_)), "there is only one key for the algorithm");
    assert!(matches!(keys.find(None, RS256), KeyMatch::Unusable), "there are two keys for the algorithm");
    let duplicate =
        set(&[with_kid(rsa(2048), "a"), with_kid(rsa(2048), "a"), with_kid(p256(), "e"), with_kid(p256(), "f")]);
    assert!(
        matches!(duplicate.find(Some("a"), RS256), KeyMatch::Unique(_)),
        "a duplicate must not make the key ambiguous"
    );
    let ambiguous = set(&[with_kid(rsa(2048), "a"), with_kid(rsa(3072), "a")]);
    assert!(matches!(ambiguous.find(Some("a"), RS256), KeyMatch::Unusable));
    assert!(
        matches!(set(&[p256()]).find(Some("a"), ES256), KeyMatch::Unknown),
        "a key without a kid must not match a kid"
    );
    assert!(matches!(set(&[]).find(None, ES256), KeyMatch::Unknown));
}
