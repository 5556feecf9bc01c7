//! Tests of webhook verification with the published test vector of Standard Webhooks, and with every kind of invalid request.

use super::*;
use reqwest::header::{HeaderName, HeaderValue};

// The test vector of the reference libraries of Standard Webhooks.
pub(super) const VECTOR_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
pub(super) const MESSAGE_ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
pub(super) const SENT_AT: i64 = 1_614_265_330;
pub(super) const VECTOR_BODY: &[u8] = br#"{"test": 2432232314}"#;
pub(super) const VECTOR_SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

/// A second webhook secret, with 32 bytes like the secrets that the control plane generates.
pub(super) const OTHER_SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

pub(super) fn headers(id: &str, timestamp: &str, signature: &str) -> HeaderMap {
    let value = |text: &str| HeaderValue::from_str(text).unwrap();
    let all = [(ID, id), (TIMESTAMP, timestamp), (SIGNATURE, signature)];
    all.into_iter().map(|(name, text)| (HeaderName::from_static(name), value(text))).collect()
}

fn vector_verifier() -> Verifier {
    Verifier::new(VECTOR_SECRET.parse().unwrap())
}

fn valid_headers() -> HeaderMap {
    headers(MESSAGE_ID, &SENT_AT.to_string(), VECTOR_SIGNATURE)
}

fn now() -> Timestamp {
    Timestamp::from_seconds(SENT_AT)
}

/// Verifies a request at the time of the test vector.
fn verify(verifier: &Verifier, headers: &HeaderMap, body: &[u8]) -> Result<(), WebhookError> {
    verifier.verify(headers, body, now()).map(|_| ())
}

/// Signs a request as a sender does.
fn sign(secret: &str, id: &str, timestamp: &str, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &STANDARD.decode(secret.strip_prefix(SECRET_PREFIX).unwrap()).unwrap());
    let tag = hmac::sign(&key, format!("{id}.{timestamp}.{body}").as_bytes());
    format!("v1,{}", STANDARD.encode(tag.as_ref()))
}

#[test]
fn published_test_vector_is_accepted() {
    let signed = SignedRequest { id: MESSAGE_ID, sent_at: now(), body: VECTOR_BODY };
    assert_eq!(vector_verifier().verify(&valid_headers(), VECTOR_BODY, now()), Ok(signed));
    assert_eq!(signed.event(), Err(WebhookError::NotAnEvent), "the body of the test vector is not a Countersign event");
    assert_eq!(
        sign(VECTOR_SECRET, MESSAGE_ID, &SENT_AT.to_string(), std::str::from_utf8(VECTOR_BODY).unwrap()),
        VECTOR_SIGNATURE
    );
}

#[test]
fn requests_with_another_body_id_time_or_secret_are_refused() {
    let wrong = Err(WebhookError::WrongSignature);
    let sent_at = SENT_AT.to_string();
    assert_eq!(verify(&vector_verifier(), &valid_headers(), br#"{"test": 2432232315}"#), wrong);
    assert_eq!(verify(&vector_verifier(), &valid_headers(), b""), wrong);
    assert_eq!(verify(&vector_verifier(), &headers("msg_other", &sent_at, VECTOR_SIGNATURE), VECTOR_BODY), wrong);
    assert_eq!(
        verify(&vector_verifier(), &headers(MESSAGE_ID, &(SENT_AT + 1).to_string(), VECTOR_SIGNATURE), VECTOR_BODY),
        wrong
    );
    assert_eq!(verify(&Verifier::new(OTHER_SECRET.parse().unwrap()), &valid_headers(), VECTOR_BODY), wrong);
    for invalid in
        [&VECTOR_SIGNATURE[..8], "v1,", "v1,AAAA", "v1,no Base64", "v2,x v1,=", &VECTOR_SIGNATURE.replace('=', "")]
    {
        assert_eq!(
            verify(&vector_verifier(), &headers(MESSAGE_ID, &sent_at, invalid), VECTOR_BODY),
            wrong,
            "{invalid}"
        );
    }
}

#[test]
fn one_valid_signature_suffices_and_unknown_versions_are_ignored() {
    let wrong = "v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc=";
    let sent_at = SENT_AT.to_string();
    let verify = |signatures: &str| verify(&vector_verifier(), &headers(MESSAGE_ID, &sent_at, signatures), VECTOR_BODY);
    for signatures in [
        format!("{wrong} v2,x {VECTOR_SIGNATURE} v1a,x"),
        format!("{VECTOR_SIGNATURE} {wrong}"),
        format!("  {VECTOR_SIGNATURE} "),
    ] {
        assert_eq!(verify(&signatures), Ok(()), "{signatures}");
    }
    assert_eq!(verify(&format!("{wrong} {wrong}")), Err(WebhookError::WrongSignature));
    for unknown in
        ["", " ", "v2,x", "hello", &VECTOR_SIGNATURE.replace("v1", "V1"), &VECTOR_SIGNATURE.replace("v1", "v1a")]
    {
        assert_eq!(verify(unknown), Err(WebhookError::UnknownVersion), "{unknown}");
    }
}

#[test]
fn verifier_with_two_secrets_accepts_requests_with_either() {
    let verifier = Verifier::new(OTHER_SECRET.parse().unwrap()).or(VECTOR_SECRET.parse().unwrap());
    let sent_at = SENT_AT.to_string();
    let other_headers = headers(MESSAGE_ID, &sent_at, &sign(OTHER_SECRET, MESSAGE_ID, &sent_at, "{}"));
    assert_eq!(
        (verify(&verifier, &valid_headers(), VECTOR_BODY), verify(&verifier, &other_headers, b"{}")),
        (Ok(()), Ok(()))
    );
    assert_eq!(verify(&vector_verifier(), &other_headers, b"{}"), Err(WebhookError::WrongSignature));
}

#[test]
fn requests_are_accepted_for_five_minutes_before_and_after_their_time() {
    let verify_at =
        |now: i64| vector_verifier().verify(&valid_headers(), VECTOR_BODY, Timestamp::from_seconds(now)).map(|_| ());
    assert_eq!((verify_at(SENT_AT + 300), verify_at(SENT_AT + 301)), (Ok(()), Err(WebhookError::TooOld)));
    assert_eq!((verify_at(SENT_AT - 300), verify_at(SENT_AT - 301)), (Ok(()), Err(WebhookError::TooNew)));
    let last_valid_time = Timestamp::from_micros((SENT_AT + 300) * 1_000_000 + 999_999);
    assert!(
        vector_verifier().verify(&valid_headers(), VECTOR_BODY, last_valid_time).is_ok(),
        "fractions of a second must be ignored"
    );
    for seconds in [i64::MIN, i64::MAX] {
        let signed = headers("x", &seconds.to_string(), &sign(VECTOR_SECRET, "x", &seconds.to_string(), ""));
        let error = if seconds < 0 { WebhookError::TooOld } else { WebhookError::TooNew };
        assert_eq!(verify(&vector_verifier(), &signed, b""), Err(error));
    }
}

#[test]
fn each_header_is_required_once_with_a_valid_value() {
    let verify = |headers: &HeaderMap| verify(&vector_verifier(), headers, VECTOR_BODY);
    for name in [ID, TIMESTAMP, SIGNATURE] {
        let mut incomplete_headers = valid_headers();
        let value = incomplete_headers.remove(name).unwrap();
        assert_eq!(verify(&incomplete_headers), Err(WebhookError::Missing(name)));
        let mut repeated_headers = valid_headers();
        repeated_headers.append(name, value);
        assert_eq!(verify(&repeated_headers), Err(WebhookError::Repeated(name)));
        let mut not_ascii = valid_headers();
        not_ascii.insert(name, HeaderValue::from_bytes(b"\xff").unwrap());
        assert_eq!(verify(&not_ascii), Err(WebhookError::Unreadable(name)));
    }
    for timestamp in ["", "hello", "1614265330.5", "0x1", "99999999999999999999", "2021-02-25T15:02:10Z"] {
        let invalid = headers(MESSAGE_ID, timestamp, VECTOR_SIGNATURE);
        assert_eq!(verify(&invalid), Err(WebhookError::Unreadable(TIMESTAMP)), "{timestamp}");
    }
    assert_eq!(verify(&headers("", &SENT_AT.to_string(), VECTOR_SIGNATURE)), Err(WebhookError::Unreadable(ID)));
}

#[test]
fn id_that_contains_a_dot_is_refused() {
    let signed = sign(VECTOR_SECRET, "evt_x", "7", &format!("{SENT_AT}.{{}}"));
    let moved_dot = headers("evt_x.7", &SENT_AT.to_string(), &signed);
    assert_eq!(verify(&vector_verifier(), &moved_dot, b"{}"), Err(WebhookError::Unreadable(ID)));
}

#[test]
fn event_is_parsed_from_a_signed_request() {
    let body = r#"{"event":"webhook.test","timestamp":"2026-01-02T03:04:05Z","data":{"serviceId":null},"more":1}"#;
    let id = "evt_1";
    let sent_at = SENT_AT.to_string();
    let signed = headers(id, &sent_at, &sign(VECTOR_SECRET, id, &sent_at, body));
    let event = vector_verifier().verify(&signed, body.as_bytes(), now()).unwrap().event().unwrap();
    let Event { id, kind, timestamp, data } = event;
    assert_eq!((id.as_str(), kind.as_str(), timestamp.as_str()), ("evt_1", "webhook.test", "2026-01-02T03:04:05Z"));
    assert_eq!(data, serde_json::json!({ "serviceId": null }));
}

#[test]
fn only_canonical_secrets_are_parsed_and_none_is_printed() {
    let parse = |text: &str| text.parse::<WebhookSecret>().map(|_| ());
    assert_eq!((parse(VECTOR_SECRET), parse(OTHER_SECRET)), (Ok(()), Ok(())));
    for (text, error) in [
        ("", SecretError::Prefix),
        (&VECTOR_SECRET[SECRET_PREFIX.len()..], SecretError::Prefix),
        ("svc_sk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", SecretError::Prefix),
        ("whsec_", SecretError::Length),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS", SecretError::Encoding),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", SecretError::Encoding),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLa_-", SecretError::Encoding),
        (&OTHER_SECRET[..OTHER_SECRET.len() - 1], SecretError::Encoding),
        (&format!("whsec_{}", "A".repeat(88)), SecretError::Length),
    ] {
        assert_eq!(parse(text), Err(error), "{text}");
        assert!(!error.to_string().contains("MfKQ"));
    }
    let printed = format!("{:?}", vector_verifier());
    assert!(printed.contains("WebhookSecret(…)") && !printed.contains("MfKQ"), "{printed}");
}
