//! Forged and modified access tokens: API and sidecar refuse each of them with the same reason.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

mod forged_tokens;
mod forger;
mod modified_tokens;

use countersign_proto::envoy::config::core::v3::{HeaderMap, HeaderValue};
use countersign_tests::{
    Agent, ControlPlane, HttpResponse, Sidecar, Verifiers, VerifyOutcome,
    sidecar::{check_request, http_of},
};
use forger::{Case, Forger};
use secrecy::ExposeSecret;

const MALFORMED: &str = "token_malformed";
const KEY_UNKNOWN: &str = "token_key_unknown";
const BAD_SIGNATURE: &str = "token_signature_invalid";

async fn assert_all_refused(verifiers: &Verifiers<'_>, cases: impl IntoIterator<Item = Case>) {
    let mut failures = Vec::new();
    for (name, token, reason) in cases {
        let (api, sidecar) = verifiers.verify(&token).await;
        let expected = VerifyOutcome::refused(401, reason);
        if api != expected || sidecar != expected {
            failures.push(format!("{name}: expected {reason}, API {api:?}, sidecar {sidecar:?}"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[tokio::test]
async fn forged_tokens_are_refused_by_api_and_sidecar_with_the_same_reason() {
    let control = ControlPlane::start().await;
    let sidecar = Sidecar::start(&control).await;
    let verifiers = Verifiers::new(&control, &sidecar);
    let agent = Agent::register(&control, "Agent").await;
    let (token, other) = (agent.token().await, Agent::register(&control, "Other").await.token().await);
    let accepted = |outcome: &VerifyOutcome| matches!(outcome, VerifyOutcome::Accepted { id, .. } if *id == agent.id);
    verifiers.wait_until_equal("the unmodified token is accepted", &token, accepted).await;

    let forger = Forger::new(&control, &token).await;
    let cases = [
        forged_tokens::algorithms(&forger),
        forged_tokens::public_key_as_secret(&forger),
        forged_tokens::attacker_keys(&forger),
        forged_tokens::headers(&forger),
        forged_tokens::payloads_and_signatures(&forger, &other),
        modified_tokens::modified_texts(&forger, &token),
    ];
    assert_all_refused(&verifiers, cases.into_iter().flatten()).await;
    verifiers.wait_until_equal("the unmodified token is still accepted", &token, accepted).await;
}

#[tokio::test]
async fn tokens_with_a_changed_or_missing_character_are_refused() {
    let control = ControlPlane::start().await;
    let sidecar = Sidecar::start(&control).await;
    let verifiers = Verifiers::new(&control, &sidecar);
    let token = Agent::register(&control, "Agent").await.token().await;
    verifiers
        .wait_until_equal("the token is accepted", &token, |outcome| matches!(outcome, VerifyOutcome::Accepted { .. }))
        .await;
    let mut failures = Vec::new();
    for (name, modified) in
        modified_tokens::changed_characters(&token).into_iter().chain(modified_tokens::truncated_tokens(&token))
    {
        let (api, sidecar) = verifiers.verify(&modified).await;
        if api != sidecar || !matches!(api, VerifyOutcome::Refused(401, _)) {
            failures.push(format!("{name}: API {api:?}, sidecar {sidecar:?}"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[tokio::test]
async fn tokens_of_another_issuer_are_refused_by_api_and_sidecar() {
    let control = ControlPlane::start().await;
    let sidecar = Sidecar::start(&control).await;
    let verifiers = Verifiers::new(&control, &sidecar);
    let other_deployment = ControlPlane::start().await;
    let same_issuer = format!("public_url={}", control.env["URL"]);
    let same_issuer_deployment = ControlPlane::start_with(&[&same_issuer]).await;
    let foreign_token = Agent::register(&same_issuer_deployment, "Other").await.token().await;
    let claims = Forger::new(&same_issuer_deployment, &foreign_token).await.payload();
    assert!(String::from_utf8(claims).unwrap().contains(&control.env["URL"]), "both deployments have the same issuer");

    let agent = Agent::register(&control, "Agent").await;
    let login = agent.login().await;
    let cases = [
        ("token of another deployment", Agent::register(&other_deployment, "Other").await.token().await, KEY_UNKNOWN),
        ("token of another deployment with the same issuer", foreign_token, KEY_UNKNOWN),
        ("human token", control.human().to_owned(), MALFORMED),
        ("new human token", control.mint_human("bob"), MALFORMED),
        ("refresh token", login.refresh_token.expose_secret().to_owned(), MALFORMED),
        ("API key of a service", control.key().to_owned(), MALFORMED),
        ("agent id", agent.id, MALFORMED),
    ];
    let cases = cases.map(|(name, token, reason)| forger::case(name, token, reason));
    assert_all_refused(&verifiers, cases).await;
}

#[tokio::test]
async fn expired_tokens_are_refused_by_api_and_sidecar() {
    let control = ControlPlane::start_with(&["tokens.access_seconds=2"]).await;
    let sidecar = Sidecar::start(&control).await;
    let verifiers = Verifiers::new(&control, &sidecar);
    let token = Agent::register(&control, "Agent").await.token().await;
    let expired = VerifyOutcome::refused(401, "token_expired");
    verifiers.wait_until_equal("the token expires", &token, |outcome| *outcome == expired).await;
    let response = control.verify(&token).await;
    let claims: serde_json::Value = serde_json::from_slice(&Forger::new(&control, &token).await.payload()).unwrap();
    let expired_at: jiff::Timestamp = response.text("/error/details/expiredAt").parse().unwrap();
    assert_eq!(claims["exp"], expired_at.as_second());
}

/// Verifies these bytes as values of `X-Agent-Token` with the API and with the sidecar.
async fn verify_headers(verifiers: &Verifiers<'_>, values: &[&[u8]]) -> (VerifyOutcome, VerifyOutcome) {
    let path = verifiers.control.path("/verify");
    let mut api_request = verifiers.control.api.request("GET", &path).bearer_auth(verifiers.key);
    for value in values {
        api_request = api_request.header("x-agent-token", *value);
    }
    let mut check_request = check_request(&[], &[("allow_unassigned", "true")]);
    let header = |value: &&[u8]| HeaderValue {
        key: "x-agent-token".into(),
        raw_value: value.to_vec(),
        ..HeaderValue::default()
    };
    http_of(&mut check_request).header_map = Some(HeaderMap { headers: values.iter().map(header).collect() });
    let result = verifiers.sidecar.check_any(check_request).await;
    (VerifyOutcome::from_response(&HttpResponse::send(api_request).await), VerifyOutcome::from_check_result(&result))
}

#[tokio::test]
async fn token_headers_have_the_same_outcome_at_api_and_sidecar() {
    let control = ControlPlane::start().await;
    let sidecar = Sidecar::start(&control).await;
    let verifiers = Verifiers::new(&control, &sidecar);
    let token = Agent::register(&control, "Agent").await.token().await;
    let with_token = |text: &str| text.replace("<token>", &token).into_bytes();
    let cases: Vec<(Vec<Vec<u8>>, &str)> = vec![
        (vec![], "token_missing"),
        (vec![with_token("")], MALFORMED),
        (vec![with_token("Bearer")], MALFORMED),
        (vec![with_token("Bearer ")], MALFORMED),
        (vec![with_token("Basic dXNlcjpwYXNz")], MALFORMED),
        (vec![with_token("Basic <token>")], MALFORMED),
        (vec![with_token("Bearer: <token>")], MALFORMED),
        (vec![with_token("Bearer Bearer <token>")], MALFORMED),
        (vec![with_token("Bearer <token> <token>")], MALFORMED),
        (vec![with_token("Bearer <token>;")], MALFORMED),
        (vec![with_token("Bearer !")], MALFORMED),
        (vec![with_token("Bearer <token>,<token>")], "token_repeated"),
        (vec![with_token("Bearer <token>, <token>")], "token_repeated"),
        (vec![with_token("Bearer <token>,Bearer <token>")], "token_repeated"),
        (vec![with_token("Bearer <token>, Bearer <token>")], "token_repeated"),
        (vec![with_token("Bearer <token>"), with_token("Bearer <token>")], "token_repeated"),
        (vec![with_token("Bearer <token>"), with_token("")], "token_repeated"),
        (vec![with_token("Basic a"), with_token("Bearer <token>")], "token_repeated"),
        (vec![b"\xff\xfe".to_vec()], MALFORMED),
        (vec![[&with_token("Bearer <token>")[..], b"\xc3\xa9"].concat()], MALFORMED),
        (vec![[&with_token("Bearer <token>")[..], b"\x80"].concat()], MALFORMED),
    ];
    let mut failures = Vec::new();
    for (values, reason) in cases {
        let values: Vec<_> = values.iter().map(Vec::as_slice).collect();
        let (api, sidecar) = verify_headers(&verifiers, &values).await;
        let expected = VerifyOutcome::refused(401, reason);
        if api != expected || sidecar != expected {
            let shown_values: Vec<_> =
                values.iter().map(|value| String::from_utf8_lossy(value).replace(&token, "<token>")).collect();
            failures.push(format!("{shown_values:?}: expected {reason}, API {api:?}, sidecar {sidecar:?}"));
        }
    }
    for value in
        ["Bearer <token>", "bearer <token>", "BEARER   <token>", "Bearer\t<token>", "Bearer \t<token>", "<token>"]
    {
        let (api, sidecar) = verify_headers(&verifiers, &[with_token(value).as_slice()]).await;
        failures.extend((api != sidecar).then(|| format!("{value:?}: API {api:?}, sidecar {sidecar:?}")));
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
