use super::*;
use Algorithm::{EdDsa, Es256, Rs256};
use serde_json::json;

fn rsa(bits: usize) -> Value {
    let mut modulus = vec![0xff; bits / 8];
    if !bits.is_multiple_of(8) {
        modulus.insert(0, (1 << (bits % 8)) - 1);
    }
    json!({ "kty": "RSA", "n": URL_SAFE_NO_PAD.encode(modulus), "e": "AQAB" })
}

/// The base point of the curve.
fn p256() -> Value {
    let part = |hex: &str| URL_SAFE_NO_PAD.encode(hex::decode(hex).unwrap());
    json!({
        "kty": "EC", "crv": "P-256",
        "x": part("6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"),
        "y": part("4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5"),
    })
}

fn ed25519() -> Value {
    json!({ "kty": "OKP", "crv": "Ed25519", "x": URL_SAFE_NO_PAD.encode([7; 32]) })
}

fn with(mut key: Value, members: Value) -> Value {
    let Value::Object(members) = members else { panic!("an object") };
    key.as_object_mut().unwrap().extend(members);
    key
}

fn set(keys: &[Value]) -> KeySet {
    KeySet::read(json!({ "keys": keys }).to_string().as_bytes()).unwrap()
}

fn usable(key: Value) -> bool {
    set(&[key]).len() == 1
}

#[test]
fn a_key_is_for_the_algorithm_of_its_type_and_for_signatures() {
    for (key, own, foreign) in
        [(rsa(2048), "RS256", "PS256"), (p256(), "ES256", "ES384"), (ed25519(), "EdDSA", "RS256")]
    {
        assert!(usable(key.clone()) && usable(with(key.clone(), json!({ "alg": own }))), "{key}");
        assert!(usable(with(key.clone(), json!({ "use": "sig", "key_ops": ["verify"], "unheard": 1 }))), "{key}");
        for wrong in [
            json!({ "alg": foreign }),
            json!({ "use": "enc" }),
            json!({ "key_ops": ["encrypt"] }),
            json!({ "kty": "oct", "k": "c2VjcmV0" }),
            json!({ "kid": 7 }),
            json!({ "d": "c2VjcmV0" }),
        ] {
            assert!(!usable(with(key.clone(), wrong.clone())), "{key} {wrong}");
        }
    }
    assert!(usable(with(ed25519(), json!({ "alg": "Ed25519" }))));
}

#[test]
fn weak_and_malformed_keys_are_passed_over() {
    for (bits, good) in [(1024, false), (2047, false), (2048, true), (4096, true), (8192, true), (8200, false)] {
        assert_eq!(usable(rsa(bits)), good, "{bits}");
    }
    let zeros = URL_SAFE_NO_PAD.encode([[0; 128], [0xff; 128]].concat());
    for wrong in [
        json!({ "n": zeros }),
        json!({ "e": "AQ" }),
        json!({ "e": "Ag" }),
        json!({ "n": "" }),
        json!({ "e": "AQAB==" }),
    ] {
        assert!(!usable(with(rsa(2048), wrong.clone())), "{wrong}");
    }
    for wrong in
        [json!({ "crv": "P-384" }), json!({ "x": "AAAA" }), json!({ "y": p256()["x"] }), json!({ "crv": null })]
    {
        assert!(!usable(with(p256(), wrong.clone())), "{wrong}");
    }
    for wrong in [json!({ "crv": "X25519" }), json!({ "crv": "Ed448" }), json!({ "x": "AAAA" })] {
        assert!(!usable(with(ed25519(), wrong.clone())), "{wrong}");
    }
    let one_good = set(&[json!(null), json!({}), rsa(1024), with(p256(), json!({ "kid": "a" }))]);
    assert!(matches!(one_good.pick(Some("a"), Es256), Pick::Found(_)));
    for text in ["", "[]", "{}", "{\"keys\":{}}", "{\"keys\":"] {
        assert!(KeySet::read(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn a_token_means_one_key_or_none() {
    let named = |key: Value, kid: &str| with(key, json!({ "kid": kid }));
    let keys = set(&[named(rsa(2048), "a"), named(p256(), "a"), named(ed25519(), "b"), named(rsa(3072), "c")]);
    assert!(matches!(keys.pick(Some("a"), Rs256), Pick::Found(_)), "the algorithm tells two of one name apart");
    assert!(matches!(keys.pick(Some("a"), Es256), Pick::Found(_)));
    assert!(matches!(keys.pick(Some("a"), EdDsa), Pick::Unfit));
    assert!(matches!(keys.pick(Some("b"), Rs256), Pick::Unfit));
    assert!(matches!(keys.pick(Some("d"), Rs256), Pick::Unknown));
    assert!(matches!(keys.pick(Some(""), Rs256), Pick::Unknown));
    assert!(matches!(keys.pick(None, Es256), Pick::Found(_)), "the only one that fits");
    assert!(matches!(keys.pick(None, Rs256), Pick::Unfit), "one of two");
    let twice = set(&[named(rsa(2048), "a"), named(rsa(2048), "a"), named(p256(), "e"), named(p256(), "f")]);
    assert!(matches!(twice.pick(Some("a"), Rs256), Pick::Found(_)), "the same key twice is one key");
    let ambiguous = set(&[named(rsa(2048), "a"), named(rsa(3072), "a")]);
    assert!(matches!(ambiguous.pick(Some("a"), Rs256), Pick::Unfit));
    assert!(matches!(set(&[p256()]).pick(Some("a"), Es256), Pick::Unknown), "a key without a name is nobody's by name");
    assert!(matches!(set(&[]).pick(None, Es256), Pick::Unknown));
}
