//! Which tokens are good: every algorithm by every way to its key, and nothing that only looks like it.

use super::{EXPIRED, INVALID, ask, control_of, start};
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
    let ways = [
        ("discovery", None),
        ("url", Some(("jwks_url", issuer.jwks_url()))),
        ("file", Some(("jwks_file", file.display().to_string()))),
    ];
    for (way, setting) in &ways {
        let setting: Vec<_> = setting.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let (discoveries, fetches) = (issuer.discoveries(), issuer.fetches());
        let control = control_of(&issuer, &setting).await;
        for key in &keys {
            let answer = ask(&control, &key.token(&issuer.claims("ann"))).await;
            assert_eq!(answer.status, 200, "{way} {}: {}", key.algorithm(), answer.body);
        }
        let asked = (issuer.discoveries() - discoveries, issuer.fetches() - fetches);
        let expected = match *way {
            "discovery" => (1, 1),
            "url" => (0, 1),
            _ => (0, 0),
        };
        assert_eq!(asked, expected, "{way}: one fetch serves all");
    }
}

#[tokio::test]
async fn registered_claims_are_validated() {
    let key = SigningKey::p256("p");
    let issuer = Issuer::start(&[&key]).await;
    let control = control_of(&issuer, &[]).await;
    let cases = [
        ("aud", json!("somebody else"), Some(INVALID)),
        ("aud", json!(["somebody else"]), Some(INVALID)),
        ("aud", json!(["somebody else", "countersign"]), None),
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
        ("iss", json!("https://unheard-of.example"), Some(INVALID)),
        ("iss", json!(null), Some(INVALID)),
        ("events", json!({ "http://schemas.openid.net/event/backchannel-logout": {} }), Some(INVALID)),
        ("padding", json!("x".repeat(16 * 1024)), Some(INVALID)),
    ];
    for (name, value, refused) in cases {
        let answer = ask(&control, &key.token(&with(issuer.claims("ann"), name, value.clone()))).await;
        let expected = refused.unwrap_or((200, "", ""));
        assert_eq!(answer.error(), expected, "{name} = {value}: {}", answer.body);
    }
    let expired = ask(&control, &key.token(&with(issuer.claims("ann"), "exp", json!(1_000_000_000)))).await;
    assert_eq!(expired.text("/error/details/expiredAt"), "2001-09-09T01:46:40Z");
}

#[tokio::test]
async fn tokens_must_be_signed_by_a_matching_key_of_their_issuer() {
    let (rsa, p256, ed25519) = (SigningKey::rsa("r"), SigningKey::p256("p"), SigningKey::ed25519("e"));
    let issuer = Issuer::start(&[&rsa, &p256, &ed25519]).await;
    let (others_key, stranger) = (SigningKey::rsa("r"), SigningKey::p256("p"));
    let other = Issuer::start(&[&others_key]).await;
    let control = start(&[issuer.settings("corp", &[]), other.settings("other", &[])].concat()).await;
    let claims = issuer.claims("ann");
    let header = |alg: &str, kid: &str| json!({ "alg": alg, "typ": "JWT", "kid": kid });
    let more = |name: &str, value: Value| with(header("RS256", "r"), name, value);
    let secret = rsa.public_pem();
    let bad = [
        ("HS256 with the public key as secret", hs256(secret.as_bytes(), &header("HS256", "r"), &claims)),
        ("RS256 by its word, an HMAC in fact", hs256(secret.as_bytes(), &header("RS256", "r"), &claims)),
        ("alg none", unsigned(&header("none", "r"), &claims)),
        ("no signature", unsigned(&header("RS256", "r"), &claims)),
        ("an EC key under RS256", p256.signed(&header("RS256", "p"), &claims)),
        ("an EC key that names the RSA key", p256.signed(&header("ES256", "r"), &claims)),
        ("RS512 by its word", rsa.signed(&header("RS512", "r"), &claims)),
        ("PS256 by its word", rsa.signed(&header("PS256", "r"), &claims)),
        ("the key of another issuer", others_key.token(&claims)),
        ("a key of nobody under a known name", stranger.token(&claims)),
        ("our key in the name of another issuer", rsa.token(&other.claims("ann"))),
        ("crit", rsa.signed(&more("crit", json!(["exp"])), &claims)),
        ("b64", rsa.signed(&more("b64", json!(false)), &claims)),
        ("a logout token", rsa.signed(&more("typ", json!("logout+jwt")), &claims)),
        ("a key of its own", stranger.signed(&with(header("ES256", "p"), "jwk", stranger.jwk()), &claims)),
        ("four parts", format!("{}.x", rsa.token(&claims))),
    ];
    for (what, token) in bad {
        let answer = ask(&control, &token).await;
        assert_eq!(answer.error(), INVALID, "{what}: {}", answer.body);
    }
    let good = [
        rsa.token(&claims),
        rsa.signed(&more("typ", json!("at+jwt")), &claims),
        rsa.signed(&more("typ", json!(null)), &claims),
        rsa.signed(&more("x5t", json!("c29tZQ")), &claims),
        others_key.token(&other.claims("ann")),
        ed25519.signed(&json!({ "alg": "EdDSA" }), &claims),
    ];
    for token in good {
        ask(&control, &token).await.expect(200);
    }
}

#[tokio::test]
async fn tokens_whose_key_is_ambiguous_are_refused() {
    let keys = [SigningKey::rsa("a").without_kid(), SigningKey::p256("b"), SigningKey::p256("c")];
    let issuer = Issuer::start(&keys.each_ref()).await;
    let control = control_of(&issuer, &[]).await;
    let claims = issuer.claims("ann");
    ask(&control, &keys[0].token(&claims)).await.expect(200);
    let nameless = keys[1].signed(&json!({ "alg": "ES256" }), &claims);
    assert_eq!(ask(&control, &nameless).await.error(), INVALID, "it could be either of two");

    let twins = [SigningKey::p256("twin"), SigningKey::p256("twin")];
    let issuer = Issuer::start(&twins.each_ref()).await;
    let control = control_of(&issuer, &[]).await;
    for twin in &twins {
        assert_eq!(ask(&control, &twin.token(&issuer.claims("ann"))).await.error(), INVALID);
    }
}

#[tokio::test]
async fn algorithms_outside_the_configured_list_are_refused() {
    let (rsa, p256) = (SigningKey::rsa("r"), SigningKey::p256("p"));
    let issuer = Issuer::start(&[&rsa, &p256]).await;
    let control = control_of(&issuer, &[("algorithms", "ES256")]).await;
    assert_eq!(ask(&control, &rsa.token(&issuer.claims("ann"))).await.error(), INVALID);
    ask(&control, &p256.token(&issuer.claims("ann"))).await.expect(200);
}

#[tokio::test]
async fn weak_keys_and_keys_for_other_uses_are_ignored() {
    let (rsa, p256) = (SigningKey::rsa("r"), SigningKey::p256("p"));
    let issuer = Issuer::start(&[]).await;
    let changes = [
        ("use", json!("enc")),
        ("alg", json!("RS512")),
        ("key_ops", json!(["encrypt"])),
        ("kty", json!("oct")),
        ("d", json!("c2VjcmV0")),
        // 1024 bits
        ("n", json!(rsa.jwk()["n"].as_str().unwrap()[..171])),
    ];
    for (name, value) in changes {
        issuer.publish_jwks(json!({ "keys": [with(rsa.jwk(), name, value.clone()), p256.jwk(), 7, {}] }));
        let control = control_of(&issuer, &[]).await;
        assert_eq!(ask(&control, &rsa.token(&issuer.claims("ann"))).await.error(), INVALID, "{name} = {value}");
        ask(&control, &p256.token(&issuer.claims("ann"))).await.expect(200);
    }
}
