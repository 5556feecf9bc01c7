//! Forged and modified access tokens: API and sidecar refuse each of them with the same reason.

#![expect(clippy::unwrap_used, reason = "a test whose forgery cannot be created has failed")]

mod forged_tokens;
mod forger;
mod modified_tokens;

use countersign_tests::{
    Agent, ControlPlane, HttpResponse, Sidecar, Verifiers, VerifyOutcome,
    http::HttpClient,
    process::free_port,
    sidecar::{CheckResult, request},
};
use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use forger::{Case, Forger};
use secrecy::ExposeSecret;

const MALFORMED: &str = "token_malformed";
const UNKNOWN: &str = "token_key_unknown";
const BAD_SIGNATURE: &str = "token_signature_invalid";

async fn assert_all_refused(verifiers: &Verifiers<'_>, cases: impl IntoIterator<Item = Case>) {
    let mut faults = Vec::new();
    for (name, token, reason) in cases {
        let (api, sidecar) = verifiers.verify(&token).await;
        let expected = VerifyOutcome::refused(401, reason);
        if api != expected || sidecar != expected {
            faults.push(format!("{name}: expected {reason}, API {api:?}, sidecar {sidecar:?}"));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[tokio::test]
async fn forged_tokens_are_refused_by_both_with_the_same_reason() {
    let at = ControlPlane::start().await;
    let sidecar = Sidecar::start(&at).await;
    let verifiers = Verifiers::new(&at, &sidecar);
    let agent = Agent::register(&at, "Victim").await;
    let (token, other) = (agent.token().await, Agent::register(&at, "Other").await.token().await);
    let known = |outcome: &VerifyOutcome| matches!(outcome, VerifyOutcome::Accepted { id, .. } if *id == agent.id);
    verifiers.agree("the unmodified token is accepted", &token, known).await;

    let forger = Forger::of(&at, &token).await;
    let cases = [
        forged_tokens::algorithms(&forger),
        forged_tokens::public_key_as_secret(&forger),
        forged_tokens::keys(&forger),
        forged_tokens::headers(&forger),
        forged_tokens::payloads_and_signatures(&forger, &other),
        modified_tokens::texts(&forger, &token),
    ];
    assert_all_refused(&verifiers, cases.into_iter().flatten()).await;
    verifiers.agree("the unmodified token is still accepted", &token, known).await;
}

#[tokio::test]
async fn tokens_with_a_changed_or_missing_character_are_refused() {
    let at = ControlPlane::start().await;
    let sidecar = Sidecar::start(&at).await;
    let verifiers = Verifiers::new(&at, &sidecar);
    let token = Agent::register(&at, "Victim").await.token().await;
    verifiers.agree("the token is accepted", &token, |outcome| matches!(outcome, VerifyOutcome::Accepted { .. })).await;
    let mut faults = Vec::new();
    for (name, bent) in
        modified_tokens::changed_characters(&token).into_iter().chain(modified_tokens::truncated(&token))
    {
        let (api, sidecar) = verifiers.verify(&bent).await;
        if api != sidecar || !matches!(api, VerifyOutcome::Refused(401, _)) {
            faults.push(format!("{name}: API {api:?}, sidecar {sidecar:?}"));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[tokio::test]
async fn tokens_of_another_issuer_are_refused_by_both() {
    let at = ControlPlane::start().await;
    let sidecar = Sidecar::start(&at).await;
    let verifiers = Verifiers::new(&at, &sidecar);
    let stranger = ControlPlane::start().await;
    let port = free_port();
    let settings = [format!("listen.api=127.0.0.1:{port}"), format!("public_url={}", at.env["URL"])];
    let mut twin = ControlPlane::start_with(&settings.each_ref().map(String::as_str)).await;
    let url = format!("https://localhost:{port}");
    twin.api = HttpClient::trusting(url.clone(), &twin.authority());
    twin.env.insert("URL".into(), url);
    let theirs = Agent::register(&twin, "Stranger").await.token().await;
    let claims = Forger::of(&twin, &theirs).await.payload();
    assert!(String::from_utf8(claims).unwrap().contains(&at.env["URL"]), "the twin claims to be the issuer");

    let agent = Agent::register(&at, "Agent").await;
    let login = agent.login().await;
    let cases = [
        ("another deployment's", Agent::register(&stranger, "Stranger").await.token().await, UNKNOWN),
        ("another deployment's, of the same issuer", theirs, UNKNOWN),
        ("a person's", at.human().to_owned(), MALFORMED),
        ("a person's, just minted", at.mint_human("somebody"), MALFORMED),
        ("a refresh token", login.refresh_token.expose_secret().to_owned(), MALFORMED),
        ("a service's key", at.key().to_owned(), MALFORMED),
        ("an agent's id", agent.id, MALFORMED),
    ];
    let cases = cases.map(|(name, token, reason)| forger::case(name, token, reason));
    assert_all_refused(&verifiers, cases).await;
}

#[tokio::test]
async fn expired_tokens_are_refused_by_both() {
    let at = ControlPlane::start_with(&["tokens.access_seconds=2"]).await;
    let sidecar = Sidecar::start(&at).await;
    let verifiers = Verifiers::new(&at, &sidecar);
    let token = Agent::register(&at, "Mortal").await.token().await;
    let expired = VerifyOutcome::refused(401, "token_expired");
    verifiers.agree("the token expires", &token, |outcome| *outcome == expired).await;
    let answer = at.verify(&token).await;
    let claims: serde_json::Value = serde_json::from_slice(&Forger::of(&at, &token).await.payload()).unwrap();
    let at_second: jiff::Timestamp = answer.text("/error/details/expiredAt").parse().unwrap();
    assert_eq!(claims["exp"], at_second.as_second());
}

/// The outcomes of both for values of `X-Agent-Token`, byte by byte.
async fn judge_headers(verifiers: &Verifiers<'_>, values: &[&[u8]]) -> (VerifyOutcome, VerifyOutcome) {
    let path = verifiers.control.path("/verify");
    let mut asked = verifiers.control.api.request("GET", &path).bearer_auth(verifiers.key);
    for value in values {
        asked = asked.header("x-agent-token", *value);
    }
    let mut check = request(&[], &[("allow_unassigned", "true")]);
    let header = |value: &&[u8]| HeaderValue {
        key: "x-agent-token".into(),
        raw_value: value.to_vec(),
        ..HeaderValue::default()
    };
    let http = check.attributes.as_mut().and_then(|attributes| attributes.request.as_mut()?.http.as_mut()).unwrap();
    http.header_map = Some(HeaderMap { headers: values.iter().map(header).collect() });
    let verdict = verifiers.sidecar.client().await.check(check).await.unwrap().into_inner();
    (
        VerifyOutcome::from_response(&HttpResponse::send(asked).await),
        VerifyOutcome::from_check_result(&CheckResult::of(verdict)),
    )
}

#[tokio::test]
async fn malformed_token_headers_are_refused_by_both_with_the_same_reason() {
    let at = ControlPlane::start().await;
    let sidecar = Sidecar::start(&at).await;
    let verifiers = Verifiers::new(&at, &sidecar);
    let token = Agent::register(&at, "Victim").await.token().await;
    let t = |text: &str| text.replace("{t}", &token).into_bytes();
    let cases: Vec<(Vec<Vec<u8>>, &str)> = vec![
        (vec![], "token_missing"),
        (vec![t("")], MALFORMED),
        (vec![t("Bearer")], MALFORMED),
        (vec![t("Bearer ")], MALFORMED),
        (vec![t("Basic dXNlcjpwYXNz")], MALFORMED),
        (vec![t("Basic {t}")], MALFORMED),
        (vec![t("Bearer: {t}")], MALFORMED),
        (vec![t("Bearer Bearer {t}")], MALFORMED),
        (vec![t("Bearer {t} {t}")], MALFORMED),
        (vec![t("Bearer {t};")], MALFORMED),
        (vec![t("Bearer !")], MALFORMED),
        (vec![t("Bearer {t},{t}")], "token_repeated"),
        (vec![t("Bearer {t}, {t}")], "token_repeated"),
        (vec![t("Bearer {t},Bearer {t}")], "token_repeated"),
        (vec![t("Bearer {t}, Bearer {t}")], "token_repeated"),
        (vec![t("Bearer {t}"), t("Bearer {t}")], "token_repeated"),
        (vec![t("Bearer {t}"), t("")], "token_repeated"),
        (vec![t("Basic a"), t("Bearer {t}")], "token_repeated"),
        (vec![b"\xff\xfe".to_vec()], MALFORMED),
        (vec![[&t("Bearer {t}")[..], b"\xc3\xa9"].concat()], MALFORMED),
        (vec![[&t("Bearer {t}")[..], b"\x80"].concat()], MALFORMED),
    ];
    let mut faults = Vec::new();
    for (values, reason) in cases {
        let values: Vec<_> = values.iter().map(Vec::as_slice).collect();
        let (api, sidecar) = judge_headers(&verifiers, &values).await;
        let expected = VerifyOutcome::refused(401, reason);
        if api != expected || sidecar != expected {
            let shown: Vec<_> =
                values.iter().map(|value| String::from_utf8_lossy(value).replace(&token, "{t}")).collect();
            faults.push(format!("{shown:?}: expected {reason}, API {api:?}, sidecar {sidecar:?}"));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[tokio::test]
async fn both_parse_the_scheme_equally() {
    let at = ControlPlane::start().await;
    let sidecar = Sidecar::start(&at).await;
    let verifiers = Verifiers::new(&at, &sidecar);
    let token = Agent::register(&at, "Victim").await.token().await;
    let mut faults = Vec::new();
    for form in ["Bearer {t}", "bearer {t}", "BEARER   {t}", "Bearer\t{t}", "Bearer \t{t}", "{t}"] {
        let (api, sidecar) = judge_headers(&verifiers, &[form.replace("{t}", &token).as_bytes()]).await;
        if api != sidecar {
            faults.push(format!("{form:?}: API {api:?}, sidecar {sidecar:?}"));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}
