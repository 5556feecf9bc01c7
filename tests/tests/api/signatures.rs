//! Accepted encodings of signatures and of challenge ids.

#![expect(clippy::expect_used, reason = "tests panic if a test signature cannot be created")]

use base64::{Engine, engine::general_purpose::STANDARD};
use countersign_client::PrivateKey;
use countersign_tests::{Agent, ControlPlane, HttpResponse, ManualClock, control_plane::text};
use p256::ecdsa::Signature;
use serde_json::{Value, json};
use std::time::Duration;

/// The order n of the curve, in hex.
const ORDER: &str = "ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551";

/// Converts a raw signature in hex to another encoding.
type Encoding = fn(&str) -> String;

struct Challenge {
    id: Value,
    nonce: String,
}

async fn challenge(control: &ControlPlane, agent: &Agent) -> Challenge {
    let challenge = agent.challenge(&control.api, None).await.expect(200);
    Challenge { id: challenge["challengeId"].clone(), nonce: text(&challenge["nonce"]) }
}

async fn authenticate(control: &ControlPlane, challenge: &Value, signature: String) -> HttpResponse {
    let body = json!({ "challengeId": challenge, "signature": signature });
    control.api.post("/auth/authenticate", body).await
}

fn parse_raw(raw: &str) -> Signature {
    Signature::from_slice(&hex::decode(raw).expect("the text is hex")).expect("the signature is valid")
}

/// The same signature with n - s instead of s.
fn negate_s(raw: &str) -> Signature {
    let signature = parse_raw(raw);
    Signature::from_scalars(signature.r().to_bytes(), (-*signature.s()).to_bytes()).expect("the signature is valid")
}

fn high_s(raw: &str) -> Signature {
    let signature = parse_raw(raw);
    if signature.normalize_s() == signature { negate_s(raw) } else { signature }
}

fn decode_hex(hex_text: &str) -> Vec<u8> {
    hex::decode(hex_text).expect("the text is hex")
}

/// The shortest content of a DER integer that encodes this positive number.
fn der_integer(number: &[u8]) -> Vec<u8> {
    let digits = &number[number.iter().take_while(|byte| **byte == 0).count()..];
    let padding = if digits.first().is_none_or(|first| *first >= 0x80) { &[0][..] } else { &[] };
    [padding, digits].concat()
}

/// The DER sequence of two integers with these contents, in hex.
fn der_sequence(r: &[u8], s: &[u8]) -> String {
    let length = |bytes: &[u8]| u8::try_from(bytes.len()).expect("the length fits into a byte");
    let body = [&[2, length(r)], r, &[2, length(s)], s].concat();
    hex::encode([&[0x30, length(&body)], body.as_slice()].concat())
}

/// Adds the order of the curve to a number. The sum has 33 bytes.
fn add_order(number: &[u8]) -> Vec<u8> {
    let mut sum = vec![0; 33];
    let mut carry = 0;
    for (position, (a, b)) in number.iter().zip(decode_hex(ORDER)).enumerate().rev() {
        let digit = u16::from(*a) + u16::from(b) + carry;
        (sum[position + 1], carry) = (digit.to_be_bytes()[1], digit >> 8);
    }
    sum[0] = carry.to_be_bytes()[1];
    sum
}

#[tokio::test]
async fn raw_and_der_signatures_with_low_or_high_s_are_accepted() {
    let control = ControlPlane::shared().await;
    let agent = Agent::register(&control, "Signer").await;
    let encodings: [(&str, Encoding); 7] = [
        ("raw", str::to_owned),
        ("raw, upper case", str::to_uppercase),
        ("DER", |raw| hex::encode(parse_raw(raw).to_der().as_bytes())),
        ("DER, upper case", |raw| hex::encode_upper(parse_raw(raw).to_der().as_bytes())),
        ("high S, raw", |raw| hex::encode(high_s(raw).to_bytes())),
        ("high S, DER", |raw| hex::encode(high_s(raw).to_der().as_bytes())),
        ("low S, raw", |raw| hex::encode(high_s(raw).normalize_s().to_bytes())),
    ];
    for (name, encode) in encodings {
        let challenge = challenge(&control, &agent).await;
        let signature = encode(&agent.key.sign(&challenge.nonce));
        let response = authenticate(&control, &challenge.id, signature).await;
        assert_eq!(response.status, 200, "{name}: {}", response.body);
    }
}

/// Invalid variants of a valid signature.
fn invalid_variants(valid: &str) -> Vec<(&'static str, String)> {
    let (r, s) = valid.split_at(64);
    let (n, zero) = (ORDER, "00".repeat(32));
    let (r_bytes, s_bytes) = (decode_hex(r), decode_hex(s));
    let (r_der, s_der) = (der_integer(&r_bytes), der_integer(&s_bytes));
    let der = der_sequence(&r_der, &s_der);
    let padded = |number: &[u8]| [&[0], number].concat();
    let high = high_s(valid).s().to_bytes();
    let flipped_bit = format!(
        "{}{:x}{}",
        &valid[..80],
        u8::from_str_radix(&valid[80..81], 16).expect("the text is hex") ^ 1,
        &valid[81..]
    );
    vec![
        ("a flipped bit", flipped_bit),
        ("r and s swapped", format!("{s}{r}")),
        ("r = 0", format!("{zero}{s}")),
        ("s = 0", format!("{r}{zero}")),
        ("r = 0 and s = 0", "00".repeat(64)),
        ("r = n", format!("{n}{s}")),
        ("s = n", format!("{r}{n}")),
        ("all ones", "ff".repeat(64)),
        ("r = 0 in DER", der_sequence(&[0], &s_der)),
        ("s = 0 in DER", der_sequence(&r_der, &[0])),
        ("r = n in DER", der_sequence(&der_integer(&decode_hex(n)), &s_der)),
        ("s = n in DER", der_sequence(&r_der, &der_integer(&decode_hex(n)))),
        ("r + n in DER", der_sequence(&der_integer(&add_order(&r_bytes)), &s_der)),
        ("s + n in DER", der_sequence(&r_der, &der_integer(&add_order(&s_bytes)))),
        ("r with a zero before it", der_sequence(&padded(&r_der), &s_der)),
        ("s with a zero before it", der_sequence(&r_der, &padded(&s_der))),
        ("negative s", der_sequence(&r_der, &high)),
        ("negative r", der_sequence(&[0xff], &s_der)),
        ("empty integers", der_sequence(&[], &[])),
        ("bytes after the DER", format!("{der}00")),
        ("bytes inside the DER", format!("30{:02x}{}0500", r_der.len() + s_der.len() + 6, &der[4..])),
        ("long form of the length", format!("3081{}", &der[2..])),
        ("indefinite length", format!("3080{}0000", &der[4..])),
        ("one integer", format!("30{:02x}02{0:02x}{}", r_der.len(), hex::encode(&r_der))),
        ("truncated DER", der[..der.len() - 2].to_owned()),
        ("a set instead of a sequence", format!("31{}", &der[2..])),
        ("63 bytes", valid[2..].to_owned()),
        ("65 bytes", format!("{valid}00")),
        ("65 bytes, zero first", format!("00{valid}")),
        ("odd hex", valid[1..].to_owned()),
        ("empty", String::new()),
        ("not hex", "z".repeat(128)),
        ("0x", format!("0x{valid}")),
        ("white space", format!("{valid}\n")),
        ("base64", STANDARD.encode(decode_hex(valid))),
        ("base64 of DER", STANDARD.encode(decode_hex(&der))),
        ("repeated", valid.repeat(2)),
        ("long", "ab".repeat(4000)),
    ]
}

#[tokio::test]
async fn wrong_signatures_are_refused_and_do_not_consume_the_challenge() {
    let control = ControlPlane::shared().await;
    let agent = Agent::register(&control, "Signer").await;
    let (first, other) = (challenge(&control, &agent).await, challenge(&control, &agent).await);
    let valid = agent.key.sign(&first.nonce);
    let wrong_signers = [
        ("another key", PrivateKey::generate().sign(&first.nonce)),
        ("another nonce", agent.key.sign(&other.nonce)),
        ("the challenge id instead of the nonce", agent.key.sign(first.id.as_str().unwrap())),
        ("the nonce with a line feed", agent.key.sign(&format!("{}\n", first.nonce))),
    ];
    let mut failures = Vec::new();
    for (name, signature) in invalid_variants(&valid).into_iter().chain(wrong_signers) {
        let refused = authenticate(&control, &first.id, signature).await;
        if refused.code() != (400, "INVALID_SIGNATURE") {
            failures.push(format!("{name}: {} {}", refused.status, refused.body));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");

    authenticate(&control, &first.id, valid.clone()).await.expect(200);
    for signature in [valid, agent.key.sign(&other.nonce), String::new()] {
        let refused = authenticate(&control, &first.id, signature).await;
        assert_eq!(refused.error(), (401, "AUTHENTICATION_FAILED", "challenge_used"));
    }
    authenticate(&control, &other.id, agent.key.sign(&other.nonce)).await.expect(200);
}

#[tokio::test]
async fn challenges_that_are_altered_or_from_another_deployment_are_refused() {
    let (control, other_control) = tokio::join!(ControlPlane::shared(), ControlPlane::start());
    let (agent, other_agent) =
        (Agent::register(&control, "Signer").await, Agent::register(&other_control, "Other").await);
    let (own_challenge, other_challenge) =
        (challenge(&control, &agent).await, challenge(&other_control, &other_agent).await);
    let id = own_challenge.id.as_str().unwrap();
    let signature = agent.key.sign(&own_challenge.nonce);
    let altered = (0..id.len()).step_by(3).chain([id.len() - 1]).map(|position| {
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
        other_challenge.id.as_str().unwrap().to_owned(),
        agent.id.clone(),
        "\u{0}".into(),
        "a".repeat(8000),
    ];
    for text in altered.chain(others) {
        let refused = authenticate(&control, &json!(text), signature.clone()).await;
        assert_eq!(refused.error(), (401, "AUTHENTICATION_FAILED", "challenge_invalid"), "{text}");
    }
    authenticate(&control, &own_challenge.id, signature).await.expect(200);
}

#[tokio::test]
async fn challenges_are_refused_from_the_microsecond_of_their_expiry() {
    let clock = ManualClock::new();
    let control = ControlPlane::start_with_clock(&clock, &[]).await;
    let agent = Agent::register(&control, "Signer").await;
    let [accepted, expired] = [challenge(&control, &agent).await, challenge(&control, &agent).await];
    clock.advance(Duration::from_mins(5) - Duration::from_micros(1));
    authenticate(&control, &accepted.id, agent.key.sign(&accepted.nonce)).await.expect(200);
    clock.advance(Duration::from_micros(1));
    for signature in ["00".repeat(64), agent.key.sign(&expired.nonce)] {
        let refused = authenticate(&control, &expired.id, signature).await;
        assert_eq!(refused.error(), (401, "AUTHENTICATION_FAILED", "challenge_expired"));
    }
}
