//! Accepted encodings of signatures and of challenge ids.

#![expect(clippy::expect_used, reason = "a prepared signature that cannot be made ends the test")]

use base64::{Engine, engine::general_purpose::STANDARD};
use countersign_client::PrivateKey;
use countersign_tests::{Agent, ControlPlane, HttpResponse, eventually};
use p256::ecdsa::Signature;
use serde_json::{Value, json};

/// The order of the curve.
const ORDER: &str = "ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551";

/// Converts a raw signature in hex to another encoding.
type Form = fn(&str) -> String;

struct Challenge {
    id: Value,
    nonce: String,
}

async fn challenge(control: &ControlPlane, agent: &Agent) -> Challenge {
    let body = control.api.post("/auth/challenge", json!({ "agentId": agent.id })).await.expect(200);
    let nonce = body["nonce"].as_str().expect("a nonce").to_owned();
    Challenge { id: body["challengeId"].clone(), nonce }
}

async fn authenticate(control: &ControlPlane, challenge: &Value, signature: impl Into<Value>) -> HttpResponse {
    let body = json!({ "challengeId": challenge, "signature": signature.into() });
    control.api.post("/auth/authenticate", body).await
}

fn parsed(raw: &str) -> Signature {
    Signature::from_slice(&hex::decode(raw).expect("hex")).expect("a signature")
}

/// The same signature with n - s instead of s.
fn mirrored(raw: &str) -> Signature {
    let signature = parsed(raw);
    Signature::from_scalars(signature.r().to_bytes(), (-*signature.s()).to_bytes()).expect("a signature")
}

fn high_s(raw: &str) -> Signature {
    let signature = parsed(raw);
    if signature.normalize_s() == signature { mirrored(raw) } else { signature }
}

fn scalar(hex_text: &str) -> Vec<u8> {
    hex::decode(hex_text).expect("hex")
}

/// The shortest DER content of a positive integer.
fn integer(number: &[u8]) -> Vec<u8> {
    let digits = &number[number.iter().take_while(|byte| **byte == 0).count()..];
    let padding = if digits.first().is_none_or(|first| *first >= 0x80) { &[0][..] } else { &[] };
    [padding, digits].concat()
}

/// DER of two integers with the given contents.
fn sequence(r: &[u8], s: &[u8]) -> String {
    let length = |bytes: &[u8]| u8::try_from(bytes.len()).expect("short");
    let body = [&[2, length(r)], r, &[2, length(s)], s].concat();
    hex::encode([&[0x30, length(&body)], body.as_slice()].concat())
}

/// number + n, in 33 bytes.
fn plus_order(number: &[u8]) -> Vec<u8> {
    let mut sum = vec![0; 33];
    let mut carry = 0;
    for (position, (a, b)) in number.iter().zip(scalar(ORDER)).enumerate().rev() {
        let digit = u16::from(*a) + u16::from(b) + carry;
        (sum[position + 1], carry) = (digit.to_be_bytes()[1], digit >> 8);
    }
    sum[0] = carry.to_be_bytes()[1];
    sum
}

#[tokio::test]
async fn raw_and_der_signatures_with_low_or_high_s_are_accepted() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "Signer").await;
    let forms: [(&str, Form); 7] = [
        ("raw", str::to_owned),
        ("raw, upper case", str::to_uppercase),
        ("DER", |raw| hex::encode(parsed(raw).to_der().as_bytes())),
        ("DER, upper case", |raw| hex::encode_upper(parsed(raw).to_der().as_bytes())),
        ("high S, raw", |raw| hex::encode(high_s(raw).to_bytes())),
        ("high S, DER", |raw| hex::encode(high_s(raw).to_der().as_bytes())),
        ("low S, raw", |raw| hex::encode(high_s(raw).normalize_s().to_bytes())),
    ];
    for (name, form) in forms {
        let challenge = challenge(&control, &agent).await;
        let signature = form(&agent.key.sign(&challenge.nonce));
        let response = authenticate(&control, &challenge.id, signature).await;
        assert_eq!(response.status, 200, "{name}: {}", response.body);
    }
}

/// Invalid variants of a valid signature.
fn broken(good: &str) -> Vec<(&'static str, String)> {
    let (r, s) = good.split_at(64);
    let (n, zero) = (ORDER, "00".repeat(32));
    let (r_bytes, s_bytes) = (scalar(r), scalar(s));
    let (r_der, s_der) = (integer(&r_bytes), integer(&s_bytes));
    let der = sequence(&r_der, &s_der);
    let padded = |number: &[u8]| [&[0], number].concat();
    let high = high_s(good).s().to_bytes();
    let flipped_bit =
        format!("{}{:x}{}", &good[..80], u8::from_str_radix(&good[80..81], 16).expect("hex") ^ 1, &good[81..]);
    vec![
        ("another bit", flipped_bit),
        ("r and s swapped", format!("{s}{r}")),
        ("r = 0", format!("{zero}{s}")),
        ("s = 0", format!("{r}{zero}")),
        ("both 0", "00".repeat(64)),
        ("r = n", format!("{n}{s}")),
        ("s = n", format!("{r}{n}")),
        ("all ones", "ff".repeat(64)),
        ("r = 0 in DER", sequence(&[0], &s_der)),
        ("s = 0 in DER", sequence(&r_der, &[0])),
        ("r = n in DER", sequence(&integer(&scalar(n)), &s_der)),
        ("s = n in DER", sequence(&r_der, &integer(&scalar(n)))),
        ("r + n in DER", sequence(&integer(&plus_order(&r_bytes)), &s_der)),
        ("s + n in DER", sequence(&r_der, &integer(&plus_order(&s_bytes)))),
        ("r with a zero before it", sequence(&padded(&r_der), &s_der)),
        ("s with a zero before it", sequence(&r_der, &padded(&s_der))),
        ("negative s", sequence(&r_der, &high)),
        ("negative r", sequence(&[0xff], &s_der)),
        ("empty integers", sequence(&[], &[])),
        ("bytes behind the DER", format!("{der}00")),
        ("bytes inside the DER", format!("30{:02x}{}0500", r_der.len() + s_der.len() + 6, &der[4..])),
        ("long form of the length", format!("3081{}", &der[2..])),
        ("indefinite length", format!("3080{}0000", &der[4..])),
        ("one integer", format!("30{:02x}02{0:02x}{}", r_der.len(), hex::encode(&r_der))),
        ("truncated DER", der[..der.len() - 2].to_owned()),
        ("a set instead of a sequence", format!("31{}", &der[2..])),
        ("63 bytes", good[2..].to_owned()),
        ("65 bytes", format!("{good}00")),
        ("65 bytes, zero first", format!("00{good}")),
        ("odd hex", good[1..].to_owned()),
        ("empty", String::new()),
        ("not hex", "z".repeat(128)),
        ("0x", format!("0x{good}")),
        ("white space", format!("{good}\n")),
        ("base64", STANDARD.encode(scalar(good))),
        ("base64 of DER", STANDARD.encode(scalar(&der))),
        ("twice", good.repeat(2)),
        ("long", "ab".repeat(4000)),
    ]
}

#[tokio::test]
async fn wrong_signatures_are_refused_and_do_not_consume_the_challenge() {
    let control = ControlPlane::start().await;
    let agent = Agent::register(&control, "Signer").await;
    let (first, other) = (challenge(&control, &agent).await, challenge(&control, &agent).await);
    let good = agent.key.sign(&first.nonce);
    let wrong_signers = [
        ("another key", PrivateKey::generate().sign(&first.nonce)),
        ("another nonce", agent.key.sign(&other.nonce)),
        ("the challenge's id", agent.key.sign(first.id.as_str().unwrap())),
        ("the nonce and a line end", agent.key.sign(&format!("{}\n", first.nonce))),
    ];
    let mut faults = Vec::new();
    for (name, signature) in broken(&good).into_iter().chain(wrong_signers) {
        let refused = authenticate(&control, &first.id, signature).await;
        if (refused.status, refused.error().1) != (400, "INVALID_SIGNATURE") {
            faults.push(format!("{name}: {} {}", refused.status, refused.body));
        }
    }
    for value in [json!(1), json!(null), json!([&good]), json!({ "hex": &good }), json!(true)] {
        let refused = authenticate(&control, &first.id, value.clone()).await;
        if (refused.status, refused.error().1) != (400, "VALIDATION_ERROR") {
            faults.push(format!("{value}: {} {}", refused.status, refused.body));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    let missing = control.api.post("/auth/authenticate", json!({ "challengeId": first.id })).await;
    assert_eq!((missing.status, missing.error().1), (400, "VALIDATION_ERROR"));

    authenticate(&control, &first.id, good.clone()).await.expect(200);
    for signature in [good, agent.key.sign(&other.nonce), String::new()] {
        let refused = authenticate(&control, &first.id, signature).await;
        assert_eq!(refused.error(), (401, "AUTHENTICATION_FAILED", "challenge_used"));
    }
    authenticate(&control, &other.id, agent.key.sign(&other.nonce)).await.expect(200);
}

#[tokio::test]
async fn foreign_or_altered_challenges_are_refused() {
    let (control, other_control) = tokio::join!(ControlPlane::start(), ControlPlane::start());
    let (agent, stranger) =
        (Agent::register(&control, "Signer").await, Agent::register(&other_control, "Stranger").await);
    let (own, foreign) = (challenge(&control, &agent).await, challenge(&other_control, &stranger).await);
    let id = own.id.as_str().unwrap();
    let signature = agent.key.sign(&own.nonce);
    let changed = (0..id.len()).step_by(3).chain([id.len() - 1]).map(|position| {
        let other = if id.as_bytes()[position] == b'A' { "B" } else { "A" };
        format!("{}{other}{}", &id[..position], &id[position + 1..])
    });
    let others = [
        String::new(),
        "chal_".into(),
        "chal_01j00000000000000000000000".into(),
        id["chal_".len()..].to_owned(),
        id.to_uppercase(),
        format!("{id}="),
        format!("{id} "),
        format!("{id}AAAA"),
        id[..id.len() - 4].to_owned(),
        foreign.id.as_str().unwrap().to_owned(),
        agent.id.clone(),
        "\u{0}".into(),
        "a".repeat(8000),
    ];
    for text in changed.chain(others) {
        let refused = authenticate(&control, &json!(text), signature.clone()).await;
        assert_eq!(refused.error(), (401, "AUTHENTICATION_FAILED", "challenge_invalid"), "{text}");
    }
    for value in [json!(null), json!(7), json!([id])] {
        let refused = authenticate(&control, &value, signature.clone()).await;
        assert_eq!((refused.status, refused.error().1), (400, "VALIDATION_ERROR"), "{value}");
    }
    authenticate(&control, &own.id, signature).await.expect(200);
}

#[tokio::test]
async fn expired_challenges_are_refused() {
    let control = ControlPlane::start_with(&["tokens.challenge_seconds=1"]).await;
    let agent = Agent::register(&control, "Signer").await;
    let old = challenge(&control, &agent).await;
    let wrong = "00".repeat(64);
    let expired =
        async || Some(authenticate(&control, &old.id, wrong.clone()).await).filter(|response| response.status == 401);
    let refused = eventually("the challenge expires", expired, || control.log()).await;
    assert_eq!(refused.error(), (401, "AUTHENTICATION_FAILED", "challenge_expired"));
    let refused = authenticate(&control, &old.id, agent.key.sign(&old.nonce)).await;
    assert_eq!(refused.error(), (401, "AUTHENTICATION_FAILED", "challenge_expired"));
}
