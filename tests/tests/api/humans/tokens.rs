//! Accepted human tokens, with every algorithm and source of keys, and refused human tokens.

use super::{EXPIRED, INVALID, list_services, start, start_with_issuer};
use countersign_tests::{
    Issuer, SigningKey,
    issuer::{hs256, jwks, now, unsigned, with},
};
use serde_json::{Value, json};

#[tokio::test]
async fn every_algorithm_is_accepted_with_keys_from_discovery_url_and_file() {
    let keys = [SigningKey::rsa("r"), SigningKey::p256("p"), SigningKey::ed25519("e")];
    let issuer = Issuer::start(&keys.each_ref()).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jwks.json");
    std::fs::write(&file, jwks(&keys.each_ref()).to_string()).unwrap();
    let sources = [
        ("discovery", None),
        ("url", Some(("jwks", issuer.jwks_url()))),
        ("file", Some(("jwks", file.display().to_string()))),
    ];
    for (source, setting) in &sources {
        let setting: Vec<_> = setting.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let (discoveries, fetches) = (issuer.discovery_fetches(), issuer.jwks_fetches());
        let control = start_with_issuer(&issuer, &setting).await;
        for key in &keys {
            let response = list_services(&control, &key.token(&issuer.claims("ann"))).await;
            assert_eq!(response.status, 200, "{source} {}: {}", key.algorithm(), response.body);
        }
        let requests = (issuer.discovery_fetches() - discoveries, issuer.jwks_fetches() - fetches);
        let replicas = control.urls().len();
        let expected = match *source {
            "discovery" => (replicas, replicas),
            "url" => (0, replicas),
            _ => (0, 0),
        };
        assert_eq!(requests, expected, "{source}: one fetch of each replica returns all keys");
    }
}

#[tokio::test]
async fn registered_claims_are_validated() {
    let key = SigningKey::p256("p");
    let issuer = Issuer::start(&[&key]).await;
    let control = start_with_issuer(&issuer, &[]).await;
    let cases = [
        ("aud", json!("other"), Some(INVALID)),
        ("aud", json!(["other"]), Some(INVALID)),
        ("aud", json!(["other", "countersign"]), None),
        ("aud", json!(null), Some(INVALID)),
        ("exp", json!(now() - 1), Some(EXPIRED)),
        ("exp", json!(null), Some(INVALID)),
        ("exp", json!("2099-01-01T00:00:00Z"), Some(INVALID)),
        ("exp", json!(4_102_444_800.5), None),
        ("nbf", json!(now() + 60), Some(INVALID)),
        ("nbf", json!(now() + 20), None),
        ("iat", json!(now() + 60), Some(INVALID)),
        ("iat", json!(null), None),
        ("sub", json!(""), Some(INVALID)),
        ("sub", json!(null), Some(INVALID)),
        ("sub", json!(42), Some(INVALID)),
        ("sub", json!("x".repeat(255)), None),
        ("sub", json!("x".repeat(256)), Some(INVALID)),
        ("iss", json!(format!("{}/", issuer.url)), Some(INVALID)),
        ("iss", json!("https://unknown.example"), Some(INVALID)),
        ("iss", json!(null), Some(INVALID)),
        ("events", json!({ "http://schemas.openid.net/event/backchannel-logout": {} }), Some(INVALID)),
        ("padding", json!("x".repeat(16 * 1024)), Some(INVALID)),
    ];
    for (name, value, expected_error) in cases {
        let response = list_services(&control, &key.token(&with(issuer.claims("ann"), name, value.clone()))).await;
        let expected = expected_error.unwrap_or((200, "", ""));
        assert_eq!(response.error(), expected, "{name} = {value}: {}", response.body);
    }
    let problem = "its `aud` does not contain `countersign`, the configured audience";
    assert!(control.log().contains(problem), "{}", control.log());
    let expired = list_services(&control, &key.token(&with(issuer.claims("ann"), "exp", json!(1_000_000_000)))).await;
    assert_eq!(expired.text("/error/details/expiredAt"), "2001-09-09T01:46:40Z");
}

#[tokio::test]
async fn tokens_must_be_signed_by_a_matching_key_of_their_issuer() {
    let (rsa, p256, ed25519) = (SigningKey::rsa("r"), SigningKey::p256("p"), SigningKey::ed25519("e"));
    let issuer = Issuer::start(&[&rsa, &p256, &ed25519]).await;
    let (other_key, untrusted_key) = (SigningKey::rsa("r"), SigningKey::p256("p"));
    let other = Issuer::start(&[&other_key]).await;
    let control = start(&[issuer.settings("corp", &[]), other.settings("other", &[])].concat()).await;
    let claims = issuer.claims("ann");
    let header = |alg: &str, kid: &str| json!({ "alg": alg, "typ": "JWT", "kid": kid });
    let header_with = |name: &str, value: Value| with(header("RS256", "r"), name, value);
    let secret = rsa.public_pem();
    let invalid_tokens = [
        ("HS256 with the public key as secret", hs256(secret.as_bytes(), &header("HS256", "r"), &claims)),
        ("RS256 in the header, signed with HMAC", hs256(secret.as_bytes(), &header("RS256", "r"), &claims)),
        ("no signature", unsigned(&header("RS256", "r"), &claims)),
        ("an EC key under RS256", p256.signed(&header("RS256", "p"), &claims)),
        ("an EC key that names the RSA key", p256.signed(&header("ES256", "r"), &claims)),
        ("the key of another issuer", other_key.token(&claims)),
        ("an untrusted key with a published key id", untrusted_key.token(&claims)),
        ("a key of this issuer with claims of another issuer", rsa.token(&other.claims("ann"))),
        ("crit", rsa.signed(&header_with("crit", json!(["exp"])), &claims)),
        ("an embedded key", untrusted_key.signed(&with(header("ES256", "p"), "jwk", untrusted_key.jwk()), &claims)),
    ];
    for (name, token) in invalid_tokens {
        let response = list_services(&control, &token).await;
        assert_eq!(response.error(), INVALID, "{name}: {}", response.body);
    }
    let valid_tokens = [
        rsa.token(&claims),
        rsa.signed(&header_with("typ", json!("at+jwt")), &claims),
        rsa.signed(&header_with("typ", json!(null)), &claims),
        rsa.signed(&header_with("x5t", json!("c29tZQ")), &claims),
        other_key.token(&other.claims("ann")),
        ed25519.signed(&json!({ "alg": "EdDSA" }), &claims),
    ];
    for token in valid_tokens {
        list_services(&control, &token).await.expect(200);
    }
}
