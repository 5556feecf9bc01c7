//! Forged tokens: another algorithm, key, header or claims.

use super::{
    BAD_SIGNATURE, KEY_UNKNOWN, MALFORMED,
    forger::{Case, Forger, case},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use countersign_tests::openssl;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use p256::ecdsa::Signature;
use serde_json::{Value, json};

/// Tokens with another `alg` in the header.
pub fn algorithms(forger: &Forger) -> Vec<Case> {
    let mut cases = Vec::new();
    for alg in [
        "none", "None", "NONE", "nOnE", "", "none ", "ES384", "ES256K", "ES512", "RS256", "PS256", "EdDSA", "es256",
        "HS256",
    ] {
        let header = forger.header(&json!({ "alg": alg }));
        let unsigned = format!("{}.{}.", BASE64.encode(&header), forger.parts[1]);
        cases.push(case(format!("alg {alg:?}, no signature"), unsigned, MALFORMED));
        cases.push(case(format!("alg {alg:?}, the issuer's signature"), forger.with_header(&header), MALFORMED));
    }
    for alg in [json!(null), json!(0), json!(["ES256"]), json!({ "alg": "ES256" })] {
        let mut header = forger.header.clone();
        header["alg"] = alg.clone();
        cases.push(case(format!("alg {alg}"), forger.with_header(&header.to_string()), MALFORMED));
    }
    let none = format!("{}.{}", BASE64.encode(forger.header(&json!({ "alg": "none" }))), forger.parts[1]);
    cases.push(case("alg none, two parts", none, MALFORMED));
    cases
}

/// Tokens with an HMAC signature whose secret is the public key.
pub fn public_key_as_secret(forger: &Forger) -> Vec<Case> {
    let der = [hex::decode("3059301306072a8648ce3d020106082a8648ce3d030107034200").unwrap(), forger.point()].concat();
    let pem = openssl::pem("PUBLIC KEY", &der);
    let claims: Value = serde_json::from_slice(&forger.payload()).unwrap();
    let secrets = [
        ("PEM", pem.clone().into_bytes()),
        ("PEM without the final newline", pem.trim_end().as_bytes().to_vec()),
        ("DER", der),
        ("point", forger.point()),
        ("JWK", forger.jwk.to_string().into_bytes()),
        ("x", BASE64.decode(forger.jwk["x"].as_str().unwrap()).unwrap()),
        ("kid", forger.header["kid"].as_str().unwrap().as_bytes().to_vec()),
        ("empty secret", Vec::new()),
    ];
    let mut cases = Vec::new();
    for (name, secret) in secrets {
        for algorithm in [Algorithm::HS256, Algorithm::HS512] {
            let mut header = Header::new(algorithm);
            header.typ = Some("at+jwt".into());
            header.kid = forger.header["kid"].as_str().map(str::to_owned);
            let token = jsonwebtoken::encode(&header, &claims, &EncodingKey::from_secret(&secret)).unwrap();
            cases.push(case(format!("{algorithm:?} keyed with the {name}"), token, MALFORMED));
        }
    }
    cases
}

/// Tokens signed by the attacker, with headers that contain or reference the attacker's key.
pub fn attacker_keys(forger: &Forger) -> Vec<Case> {
    let public = forger.attacker.public_key().to_sec1_bytes();
    let (x, y) = (BASE64.encode(&public[1..33]), BASE64.encode(&public[33..]));
    let issuer_kid = &forger.header["kid"];
    let jwk = json!({ "kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": issuer_kid, "alg": "ES256", "use": "sig" });
    let changes = [
        ("unchanged header", json!({}), BAD_SIGNATURE),
        ("jwk", json!({ "jwk": jwk }), MALFORMED),
        ("jwk without kid", json!({ "jwk": jwk, "kid": null }), MALFORMED),
        ("jku", json!({ "jku": "https://attacker.example/jwks.json" }), MALFORMED),
        ("x5u", json!({ "x5u": "https://attacker.example/cert.pem" }), MALFORMED),
        ("x5c", json!({ "x5c": [BASE64.encode(&public)] }), MALFORMED),
        ("kid missing", json!({ "kid": null }), MALFORMED),
        ("an empty kid", json!({ "kid": "" }), KEY_UNKNOWN),
        ("an unknown kid", json!({ "kid": "another" }), KEY_UNKNOWN),
        ("kid with a path", json!({ "kid": "../../../../../../dev/null" }), KEY_UNKNOWN),
        ("kid with a URL", json!({ "kid": "https://attacker.example/key" }), KEY_UNKNOWN),
        ("kid with SQL", json!({ "kid": "' OR 1=1 --" }), KEY_UNKNOWN),
        ("kid with NUL", json!({ "kid": format!("{}\0", issuer_kid.as_str().unwrap()) }), KEY_UNKNOWN),
        ("kid in lower case", json!({ "kid": issuer_kid.as_str().unwrap().to_lowercase() }), KEY_UNKNOWN),
        ("kid as a number", json!({ "kid": 0 }), MALFORMED),
        ("kid as an array", json!({ "kid": [issuer_kid] }), MALFORMED),
        ("a long kid", json!({ "kid": "k".repeat(5000) }), KEY_UNKNOWN),
    ];
    changes
        .into_iter()
        .map(|(name, change, reason)| {
            case(name, forger.sign_as_attacker(&forger.header(&change), &forger.payload()), reason)
        })
        .collect()
}

/// Tokens with another header and the unchanged signature of the issuer.
pub fn headers(forger: &Forger) -> Vec<Case> {
    let changes = [
        ("typ missing", json!({ "typ": null }), MALFORMED),
        ("typ JWT", json!({ "typ": "JWT" }), MALFORMED),
        ("typ empty", json!({ "typ": "" }), MALFORMED),
        ("typ of a human token", json!({ "typ": "human+jwt" }), MALFORMED),
        ("typ as a number", json!({ "typ": 1 }), MALFORMED),
        ("typ in upper case", json!({ "typ": "AT+JWT" }), BAD_SIGNATURE),
        ("crit", json!({ "crit": ["exp"] }), MALFORMED),
        ("crit of b64", json!({ "crit": ["b64"], "b64": false }), MALFORMED),
        ("crit empty", json!({ "crit": [] }), MALFORMED),
        ("enc", json!({ "enc": "A256GCM" }), MALFORMED),
        ("zip", json!({ "zip": "DEF" }), MALFORMED),
        ("additional member", json!({ "more": 1 }), BAD_SIGNATURE),
    ];
    let mut cases: Vec<Case> = changes
        .into_iter()
        .map(|(name, change, reason)| case(name, forger.with_header(&forger.header(&change)), reason))
        .collect();
    let header = forger.header.to_string();
    let unclosed_header = header.trim_end_matches('}').to_owned();
    let texts = [
        ("alg twice, none last", format!(r#"{unclosed_header},"alg":"none"}}"#), MALFORMED),
        ("alg twice, none first", header.replacen('{', r#"{"alg":"none","#, 1), MALFORMED),
        ("kid twice", format!(r#"{unclosed_header},"kid":"another"}}"#), MALFORMED),
        ("white space", format!("{header} "), BAD_SIGNATURE),
        ("header is not an object", "[]".into(), MALFORMED),
        ("header null", "null".into(), MALFORMED),
        ("header empty", String::new(), MALFORMED),
        ("header is not JSON", "ES256".into(), MALFORMED),
        ("two headers", format!("{header}{header}"), MALFORMED),
    ];
    cases.extend(texts.into_iter().map(|(name, text, reason)| case(name, forger.with_header(&text), reason)));
    cases
}

/// Tokens with other claims, or with unchanged claims and an invalid signature.
pub fn payloads_and_signatures(forger: &Forger, other_token: &str) -> Vec<Case> {
    let [header, _, signature] = &forger.parts;
    let raw = BASE64.decode(signature).unwrap();
    let der = Signature::from_slice(&raw).unwrap().to_der();
    let other_token: Vec<_> = other_token.split('.').collect();
    let original_header = forger.header.to_string();
    let text = String::from_utf8(forger.payload()).unwrap();
    let duplicate_sub = format!(r#"{},"sub":"agent_00000000000000000000000001"}}"#, text.trim_end_matches('}'));
    let extended_claims = forger.claims(&json!({ "exp": 4_000_000_000_u64, "roles": ["admin"], "permissions": ["*"] }));
    let [r, s] = [&raw[..32], &raw[32..]];
    vec![
        case("another token's payload", format!("{header}.{}.{signature}", other_token[1]), BAD_SIGNATURE),
        case("another token's signature", forger.with_signature(other_token[2]), BAD_SIGNATURE),
        case(
            "later exp and more roles",
            format!("{header}.{}.{signature}", BASE64.encode(&extended_claims)),
            BAD_SIGNATURE,
        ),
        case(
            "later exp and more roles, signed by the attacker",
            forger.sign_as_attacker(&original_header, &extended_claims),
            BAD_SIGNATURE,
        ),
        case("sub twice", format!("{header}.{}.{signature}", BASE64.encode(&duplicate_sub)), BAD_SIGNATURE),
        case(
            "sub twice, signed by the attacker",
            forger.sign_as_attacker(&original_header, duplicate_sub.as_bytes()),
            BAD_SIGNATURE,
        ),
        case("payload empty", format!("{header}..{signature}"), BAD_SIGNATURE),
        case("payload is not JSON", forger.sign_as_attacker(&original_header, b"claims"), BAD_SIGNATURE),
        case("signature in DER", forger.with_signature(&BASE64.encode(der.as_bytes())), BAD_SIGNATURE),
        case("signature empty", forger.with_signature(""), BAD_SIGNATURE),
        case("signature of zeros", forger.with_signature(&BASE64.encode([0; 64])), BAD_SIGNATURE),
        case("signature of ones", forger.with_signature(&BASE64.encode([0xff; 64])), BAD_SIGNATURE),
        case("r and s swapped", forger.with_signature(&BASE64.encode([s, r].concat())), BAD_SIGNATURE),
        case("signature of 63 bytes", forger.with_signature(&BASE64.encode(&raw[..63])), BAD_SIGNATURE),
        case("signature of 65 bytes", forger.with_signature(&BASE64.encode([&raw[..], &[0]].concat())), BAD_SIGNATURE),
        case("signature in hex", forger.with_signature(&hex::encode(&raw)), BAD_SIGNATURE),
    ]
}
