//! The published test vector of Standard Webhooks, and every kind of invalid request.

use super::*;
use reqwest::header::{HeaderName, HeaderValue};

// From the tests of the reference libraries of Standard Webhooks.
pub(super) const PUBLISHED: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
pub(super) const MESSAGE: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
pub(super) const SENT: i64 = 1_614_265_330;
pub(super) const BODY: &[u8] = br#"{"test": 2432232314}"#;
pub(super) const SIGNED: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

/// Another secret, of 32 bytes like those of the control plane.
pub(super) const OTHER: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

pub(super) fn headers(id: &str, timestamp: &str, signature: &str) -> HeaderMap {
    let value = |text: &str| HeaderValue::from_str(text).unwrap();
    let all = [(ID, id), (TIMESTAMP, timestamp), (SIGNATURE, signature)];
    all.into_iter().map(|(name, text)| (HeaderName::from_static(name), value(text))).collect()
}

fn published_verifier() -> Verifier {
    Verifier::new(PUBLISHED.parse().unwrap())
}

fn valid_headers() -> HeaderMap {
    headers(MESSAGE, &SENT.to_string(), SIGNED)
}

fn now() -> Timestamp {
    Timestamp::from_seconds(SENT)
}

/// Verifies at the time of the test vector.
fn verify(verifier: &Verifier, headers: &HeaderMap, body: &[u8]) -> Result<(), WebhookError> {
    verifier.verify(headers, body, now()).map(|_| ())
}

/// The signature of a sender.
fn signature(secret: &str, id: &str, timestamp: &str, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &STANDARD.decode(secret.strip_prefix(PREFIX).unwrap()).unwrap());
    let tag = hmac::sign(&key, format!("{id}.{timestamp}.{body}").as_bytes());
    format!("v1,{}", STANDARD.encode(tag.as_ref()))
}

#[test]
fn published_vector_is_accepted() {
    let signed = SignedRequest { id: MESSAGE, sent_at: now(), body: BODY };
    assert_eq!(published_verifier().verify(&valid_headers(), BODY, now()), Ok(signed));
    assert_eq!(signed.event(), Err(WebhookError::NotAnEvent), "the vector is not an event of Countersign");
    assert_eq!(signature(PUBLISHED, MESSAGE, &SENT.to_string(), std::str::from_utf8(BODY).unwrap()), SIGNED);
}

#[test]
fn other_body_id_time_or_secret_is_refused() {
    let wrong = Err(WebhookError::WrongSignature);
    let sent = SENT.to_string();
    assert_eq!(verify(&published_verifier(), &valid_headers(), br#"{"test": 2432232315}"#), wrong);
    assert_eq!(verify(&published_verifier(), &valid_headers(), b""), wrong);
    assert_eq!(verify(&published_verifier(), &headers("msg_other", &sent, SIGNED), BODY), wrong);
    assert_eq!(verify(&published_verifier(), &headers(MESSAGE, &(SENT + 1).to_string(), SIGNED), BODY), wrong);
    assert_eq!(verify(&Verifier::new(OTHER.parse().unwrap()), &valid_headers(), BODY), wrong);
    for broken in [&SIGNED[..8], "v1,", "v1,AAAA", "v1,no Base64", "v2,x v1,=", &SIGNED.replace('=', "")] {
        assert_eq!(verify(&published_verifier(), &headers(MESSAGE, &sent, broken), BODY), wrong, "{broken}");
    }
}

#[test]
fn one_valid_signature_suffices_and_unknown_versions_are_ignored() {
    let (bad, sent) = ("v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc=", SENT.to_string());
    let verify = |signatures: &str| verify(&published_verifier(), &headers(MESSAGE, &sent, signatures), BODY);
    for signatures in [format!("{bad} v2,x {SIGNED} v1a,x"), format!("{SIGNED} {bad}"), format!("  {SIGNED} ")] {
        assert_eq!(verify(&signatures), Ok(()), "{signatures}");
    }
    assert_eq!(verify(&format!("{bad} {bad}")), Err(WebhookError::WrongSignature));
    for unknown in ["", " ", "v2,x", "hello", &SIGNED.replace("v1", "V1"), &SIGNED.replace("v1", "v1a")] {
        assert_eq!(verify(unknown), Err(WebhookError::UnknownVersion), "{unknown}");
    }
}

#[test]
fn verifier_with_two_secrets_accepts_both() {
    let both = Verifier::new(OTHER.parse().unwrap()).or(PUBLISHED.parse().unwrap());
    let sent = SENT.to_string();
    let new = headers(MESSAGE, &sent, &signature(OTHER, MESSAGE, &sent, "{}"));
    assert_eq!((verify(&both, &valid_headers(), BODY), verify(&both, &new, b"{}")), (Ok(()), Ok(())));
    assert_eq!(verify(&published_verifier(), &new, b"{}"), Err(WebhookError::WrongSignature));
}

#[test]
fn tolerance_is_five_minutes_in_both_directions() {
    let verify_at =
        |now: i64| published_verifier().verify(&valid_headers(), BODY, Timestamp::from_seconds(now)).map(|_| ());
    assert_eq!((verify_at(SENT + 300), verify_at(SENT + 301)), (Ok(()), Err(WebhookError::TooOld)));
    assert_eq!((verify_at(SENT - 300), verify_at(SENT - 301)), (Ok(()), Err(WebhookError::TooNew)));
    let within = Timestamp::from_micros((SENT + 300) * 1_000_000 + 999_999);
    assert!(published_verifier().verify(&valid_headers(), BODY, within).is_ok(), "fractions of a second do not count");
    for far in [i64::MIN, i64::MAX] {
        let signed = headers("x", &far.to_string(), &signature(PUBLISHED, "x", &far.to_string(), ""));
        let error = if far < 0 { WebhookError::TooOld } else { WebhookError::TooNew };
        assert_eq!(verify(&published_verifier(), &signed, b""), Err(error));
    }
}

#[test]
fn each_header_is_required_once_with_a_valid_value() {
    let verify = |headers: &HeaderMap| verify(&published_verifier(), headers, BODY);
    for name in [ID, TIMESTAMP, SIGNATURE] {
        let mut without = valid_headers();
        let value = without.remove(name).unwrap();
        assert_eq!(verify(&without), Err(WebhookError::Missing(name)));
        let mut twice = valid_headers();
        twice.append(name, value);
        assert_eq!(verify(&twice), Err(WebhookError::Repeated(name)));
        let mut opaque = valid_headers();
        opaque.insert(name, HeaderValue::from_bytes(b"\xff").unwrap());
        assert_eq!(verify(&opaque), Err(WebhookError::Unreadable(name)));
    }
    for timestamp in ["", "hello", "1614265330.5", "0x1", "99999999999999999999", "2021-02-25T15:02:10Z"] {
        let wrong = headers(MESSAGE, timestamp, SIGNED);
        assert_eq!(verify(&wrong), Err(WebhookError::Unreadable(TIMESTAMP)), "{timestamp}");
    }
    assert_eq!(verify(&headers("", &SENT.to_string(), SIGNED)), Err(WebhookError::Unreadable(ID)));
}

#[test]
fn id_with_a_dot_is_refused() {
    let signed = signature(PUBLISHED, "evt_x", "7", &format!("{SENT}.{{}}"));
    let moved = headers("evt_x.7", &SENT.to_string(), &signed);
    assert_eq!(verify(&published_verifier(), &moved, b"{}"), Err(WebhookError::Unreadable(ID)));
}

#[test]
fn event_is_parsed_from_a_signed_request() {
    let body = r#"{"event":"webhook.test","timestamp":"2026-01-02T03:04:05Z","data":{"serviceId":null},"more":1}"#;
    let (id, sent) = ("evt_1", SENT.to_string());
    let signed = headers(id, &sent, &signature(PUBLISHED, id, &sent, body));
    let event = published_verifier().verify(&signed, body.as_bytes(), now()).unwrap().event().unwrap();
    let Event { id, kind, timestamp, data } = event;
    assert_eq!((id.as_str(), kind.as_str(), timestamp.as_str()), ("evt_1", "webhook.test", "2026-01-02T03:04:05Z"));
    assert_eq!(data, serde_json::json!({ "serviceId": null }));
}

#[test]
fn secret_is_parsed_only_in_canonical_form_and_not_printed() {
    let parse = |text: &str| text.parse::<WebhookSecret>().map(|_| ());
    assert_eq!((parse(PUBLISHED), parse(OTHER)), (Ok(()), Ok(())));
    for (text, error) in [
        ("", SecretError::Prefix),
        (&PUBLISHED[PREFIX.len()..], SecretError::Prefix),
        ("svc_sk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", SecretError::Prefix),
        ("whsec_", SecretError::Length),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS", SecretError::Encoding),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", SecretError::Encoding),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLa_-", SecretError::Encoding),
        (&OTHER[..OTHER.len() - 1], SecretError::Encoding),
        (&format!("whsec_{}", "A".repeat(88)), SecretError::Length),
    ] {
        assert_eq!(parse(text), Err(error), "{text}");
        assert!(!error.to_string().contains("MfKQ"));
    }
    let printed = format!("{:?}", published_verifier());
    assert!(printed.contains("WebhookSecret(…)") && !printed.contains("MfKQ"), "{printed}");
}
