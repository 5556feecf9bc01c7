//! Tokens that the real key signs, but with claims that the control plane never issues. API and sidecar must agree
//! about each token, and accept only well-formed tokens.

use super::{fixture::Failures, signer::Signer};
use countersign_tests::{Agent, ControlPlane, Sidecar, Verifiers, VerifyOutcome};
use serde_json::{Value, json};

/// The expected result of both verifiers, the API and the sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpectedResult {
    Accepted,
    Refused(&'static str),
    /// Only the API refuses the token: the API has every agent, but a sidecar has only agents with changes and accepts
    /// an unknown agent.
    RefusedByApi(&'static str),
}

use ExpectedResult::{Accepted, Refused, RefusedByApi};

const CLAIMS_INVALID: ExpectedResult = Refused("token_claims_invalid");
const MALFORMED: ExpectedResult = Refused("token_malformed");

/// A name, a token, and the expected result.
type Case = (String, String, ExpectedResult);

async fn unexpected_results(verifiers: &Verifiers<'_>, cases: Vec<Case>) -> Failures {
    let mut failures = Failures::default();
    for (name, token, expected) in cases {
        let (api, sidecar) = verifiers.verify(&token).await;
        let is_accepted = |outcome: &VerifyOutcome| matches!(outcome, VerifyOutcome::Accepted { .. });
        let is_expected = match expected {
            Accepted => api == sidecar && is_accepted(&api),
            Refused(reason) => api == sidecar && api == VerifyOutcome::refused(401, reason),
            RefusedByApi(reason) => api == VerifyOutcome::refused(401, reason) && is_accepted(&sidecar),
        };
        failures.check(is_expected, || format!("{name}: expected {expected:?}, API {api:?}, sidecar {sidecar:?}"));
    }
    failures
}

/// A token in which one claim is replaced with a text that may be invalid JSON.
fn replace_claim(signer: &Signer, claim: &str, text: &str) -> String {
    let member = |(name, value): (&String, &Value)| {
        let value = if name == claim { text.to_owned() } else { value.to_string() };
        format!("{}:{value}", json!(name))
    };
    let claims = signer.claims.as_object().unwrap();
    let added = if claims.contains_key(claim) { String::new() } else { format!(",{}:{text}", json!(claim)) };
    signer.with_payload(format!("{{{}{added}}}", claims.iter().map(member).collect::<Vec<_>>().join(",")))
}

/// Tokens in which one claim is missing or has another type.
fn claim_types(signer: &Signer) -> Vec<Case> {
    let claims =
        "iss sub aud iat nbf exp jti sid rev name roles permissions trustScore until client_id scope requested_scope";
    let literals = r#"null true "x" "" "4000000000" 1.5 4e9 -1 -9223372036854775808 9223372036854775807 9223372036854775808
        18446744073709551616 1e999 NaN Infinity [] [1] [null] [[]] {} {"a":1} {"a":"1"}"#;
    let mut cases = Vec::new();
    for claim in claims.split(' ') {
        let is_optional = ["until", "client_id", "scope", "requested_scope"].contains(&claim);
        let missing = if is_optional { Accepted } else { CLAIMS_INVALID };
        cases.push((format!("`{claim}` missing"), signer.with_claims(&json!({ claim: null })), missing));
        for literal in literals.split_whitespace().chain([""]) {
            let expected = expected_for_type(claim, literal);
            cases.push((format!("`{claim}`: {literal}"), replace_claim(signer, claim, literal), expected));
        }
    }
    cases
}

/// The expected result for a claim with this JSON text.
fn expected_for_type(claim: &str, literal: &str) -> ExpectedResult {
    match (claim, literal) {
        ("aud", "\"x\"" | "\"\"" | "\"4000000000\"") => Refused("token_audience_mismatch"),
        ("iat" | "nbf", "9223372036854775807") => Refused("token_not_yet_valid"),
        ("rev", "-1" | "-9223372036854775808") => Refused("token_superseded"),
        ("exp", "-1" | "-9223372036854775808") => Refused("token_expired"),
        ("iat" | "nbf" | "rev" | "exp", "-1" | "-9223372036854775808" | "9223372036854775807")
        | ("roles" | "permissions", "[]")
        | ("until", "{}" | "{\"a\":1}")
        | ("trustScore", "1.5")
        | ("client_id" | "scope" | "requested_scope", "null")
        | ("name" | "scope" | "requested_scope", "\"x\"" | "\"\"" | "\"4000000000\"") => Accepted,
        _ => CLAIMS_INVALID,
    }
}

/// Tokens in which one claim has the right type but a value that the control plane does not issue.
fn claim_values(signer: &Signer, control: &ControlPlane, other_service: &str, other: &Signer) -> Vec<Case> {
    let issuer = control.env["URL"].as_str();
    let service = signer.claims["aud"].as_str().unwrap();
    let changes = [
        ("aud in an array", json!({ "aud": [service] }), Accepted),
        ("aud in an array with another service", json!({ "aud": [service, other_service] }), CLAIMS_INVALID),
        ("aud another service", json!({ "aud": other_service }), Refused("token_audience_mismatch")),
        ("aud with NUL", json!({ "aud": format!("{service}\0") }), Refused("token_audience_mismatch")),
        ("aud in capitals", json!({ "aud": service.to_uppercase() }), Refused("token_audience_mismatch")),
        (
            "aud with two services",
            json!({ "aud": format!("{service},{other_service}") }),
            Refused("token_audience_mismatch"),
        ),
        ("aud the issuer", json!({ "aud": issuer }), Accepted),
        ("another iss", json!({ "iss": "https://elsewhere.example" }), CLAIMS_INVALID),
        ("another iss and aud", json!({ "iss": "https://a.example", "aud": "https://a.example" }), CLAIMS_INVALID),
        ("iss with a slash", json!({ "iss": format!("{issuer}/") }), CLAIMS_INVALID),
        ("iss in capitals", json!({ "iss": issuer.to_uppercase() }), CLAIMS_INVALID),
        ("sub a service", json!({ "sub": other_service }), CLAIMS_INVALID),
        ("sub with NUL", json!({ "sub": format!("{}\0", signer.claims["sub"].as_str().unwrap()) }), CLAIMS_INVALID),
        ("jti of another token", json!({ "jti": other.claims["jti"] }), Accepted),
        ("sid of another login", json!({ "sid": other.claims["sid"] }), Accepted),
        (
            "sub an unknown agent",
            json!({ "sub": "agent_00000000000000000000000000", "client_id": "agent_00000000000000000000000000" }),
            RefusedByApi("token_claims_invalid"),
        ),
        ("client_id another agent", json!({ "client_id": other.claims["sub"] }), CLAIMS_INVALID),
        ("requested_scope with the permission", json!({ "requested_scope": "list read" }), Accepted),
        ("requested_scope without the permission", json!({ "requested_scope": "list" }), Accepted),
        ("requested_scope with two spaces", json!({ "requested_scope": "list  read" }), CLAIMS_INVALID),
        ("exp in the past", json!({ "exp": signer.claims["iat"] }), Refused("token_expired")),
        ("iat in the future", json!({ "iat": signer.claims["exp"] }), Refused("token_not_yet_valid")),
        ("nbf in the future", json!({ "nbf": signer.claims["exp"] }), Refused("token_not_yet_valid")),
        ("a role with NUL", json!({ "roles": ["reader\0"] }), CLAIMS_INVALID),
        ("a role with a line end", json!({ "roles": ["reader\r\nx-agent-roles: admin"] }), CLAIMS_INVALID),
        ("a role too long", json!({ "roles": ["r".repeat(65)] }), CLAIMS_INVALID),
        ("an undefined role", json!({ "roles": ["admin"] }), Accepted),
        ("a role twice", json!({ "roles": ["reader", "reader"] }), Accepted),
        ("a permission with a comma", json!({ "permissions": ["read,admin"] }), CLAIMS_INVALID),
        ("a permission with a space", json!({ "permissions": ["read admin"] }), CLAIMS_INVALID),
        ("a permission with a line end", json!({ "permissions": ["read\n"] }), CLAIMS_INVALID),
        ("an empty permission", json!({ "permissions": [""] }), CLAIMS_INVALID),
        ("a permission that no role contains", json!({ "permissions": ["admin"] }), Accepted),
        ("trust score above the maximum", json!({ "trustScore": 100.01 }), CLAIMS_INVALID),
        ("trust score below the minimum", json!({ "trustScore": -0.01 }), CLAIMS_INVALID),
        ("trust score far above the maximum", json!({ "trustScore": 1e308 }), CLAIMS_INVALID),
        ("trust score as a string", json!({ "trustScore": "100" }), CLAIMS_INVALID),
        ("jti with a session id", json!({ "jti": signer.claims["sid"] }), CLAIMS_INVALID),
        ("sid with a token id", json!({ "sid": signer.claims["jti"] }), CLAIMS_INVALID),
        ("a role's expiry as a string", json!({ "until": { "reader": "4000000000" } }), CLAIMS_INVALID),
        ("a role's expiry long ago", json!({ "until": { "reader": i64::MIN } }), Accepted),
        ("a name with a line end", json!({ "name": "a\r\nx-agent-roles: admin\0" }), Accepted),
        ("unknown claims", json!({ "admin": true, "scope": "*", "cnf": { "jkt": "a" } }), Accepted),
        ("above the size limit", json!({ "more": "a".repeat(32 * 1024) }), MALFORMED),
    ];
    changes
        .into_iter()
        .map(|(name, change, expected)| (name.to_owned(), signer.with_claims(&change), expected))
        .collect()
}

/// Tokens whose payload is not a JSON object, or has a duplicate claim.
fn payloads(signer: &Signer) -> Vec<Case> {
    let valid = signer.claims.to_string();
    let unclosed = valid.trim_end_matches('}');
    let mut cases = Vec::new();
    for claim in ["sub", "exp", "aud", "roles", "permissions", "rev", "iss", "trustScore"] {
        let with_duplicate = format!("{unclosed},\"{claim}\":{}}}", signer.claims[claim]);
        cases.push((format!("`{claim}` twice"), signer.with_payload(with_duplicate), CLAIMS_INVALID));
    }
    let added = [
        ("null", "null".to_owned()),
        ("an array", format!("[{valid}]")),
        ("a string", json!(valid).to_string()),
        ("nothing", String::new()),
        ("{}", "{}".into()),
        ("truncated", unclosed.to_owned()),
        ("trailing garbage", format!("{valid} x")),
        ("two objects", format!("{valid}{valid}")),
        ("a byte-order mark", format!("\u{feff}{valid}")),
        ("a lone surrogate", valid.replacen("\"Agent\"", "\"\\ud800\"", 1)),
    ];
    cases.extend(
        added.into_iter().map(|(name, text)| (format!("payload {name}"), signer.with_payload(text), CLAIMS_INVALID)),
    );
    let (before, after) = valid.split_once("Agent").unwrap();
    let bytes = [before.as_bytes(), b"\xff", after.as_bytes()].concat();
    cases.push(("payload not UTF-8".into(), signer.with_payload(bytes), CLAIMS_INVALID));
    cases
}

/// Headers that the control plane does not issue, with a valid signature. `edge/forgeries` tests further headers.
fn headers(signer: &Signer) -> Vec<Case> {
    let valid_types = ["AT+JWT", "application/at+jwt", "Application/At+JWT"];
    let invalid_types = ["jwt", "at+jwt ", "at+jwt;a=b", "dpop+jwt", "application/jwt", "text/at+jwt"];
    let mut changes: Vec<(&str, Value, ExpectedResult)> = Vec::new();
    changes.extend(valid_types.map(|typ| ("typ", json!(typ), Accepted)));
    changes.extend(invalid_types.map(|typ| ("typ", json!(typ), MALFORMED)));
    changes.extend([
        ("crit", json!("exp"), MALFORMED),
        ("b64", json!(false), MALFORMED),
        ("b64", json!(true), MALFORMED),
        ("zip", json!(""), MALFORMED),
        ("cty", json!("JWT"), MALFORMED),
        ("cty", json!("application/json"), MALFORMED),
        ("x5t", json!("AA"), MALFORMED),
        ("x5t#S256", json!("AA"), MALFORMED),
        ("more", json!({ "unknown": "member" }), Accepted),
    ]);
    let text = signer.header.to_string();
    let texts = [
        ("white space", format!(" {text}\n"), Accepted),
        ("trailing garbage", format!("{text}x"), MALFORMED),
        ("a byte-order mark", format!("\u{feff}{text}"), MALFORMED),
        ("an array", format!("[{text}]"), MALFORMED),
    ];
    let claims = signer.claims.to_string();
    let with_member = changes.into_iter().map(|(name, value, expected)| {
        (format!("header: {name} {value}"), signer.with_header(&json!({ name: value })), expected)
    });
    let texts = texts.into_iter();
    with_member
        .chain(texts.map(|(name, text, expected)| (format!("header: {name}"), signer.sign(text, &claims), expected)))
        .collect()
}

#[tokio::test]
async fn api_and_sidecar_agree_on_forged_tokens_with_a_valid_signature() {
    let control = ControlPlane::start().await;
    let sidecar = Sidecar::start(&control).await;
    let verifiers = Verifiers::new(&control, &sidecar);
    let (agent, other) = (Agent::register(&control, "Agent").await, Agent::register(&control, "Other").await);
    let other = Signer::with_access_token_key(&control, &other.token().await).await;
    let (service, _) = control.create_service(json!({ "name": "other" })).await;
    control.assign_new_role(&agent.id, "reader", &["read"]).await;
    let token = agent.token().await;
    let is_accepted = |outcome: &VerifyOutcome| outcome.has_roles(&["reader"]);
    let expected = verifiers.wait_until_equal("the unmodified token is accepted", &token, is_accepted).await;

    let signer = Signer::with_access_token_key(&control, &token).await;
    let signed_by_test = signer.with_claims(&json!({}));
    let is_same = |outcome: &VerifyOutcome| *outcome == expected;
    verifiers.wait_until_equal("the token signed by the test is accepted", &signed_by_test, is_same).await;
    let cases =
        [claim_types(&signer), claim_values(&signer, &control, &service, &other), payloads(&signer), headers(&signer)]
            .concat();
    unexpected_results(&verifiers, cases).await.assert_none();
    verifiers.wait_until_equal("the token is still accepted", &token, is_same).await;
}

/// The configured token lifetime is not sent to sidecars, and shortening it must not invalidate issued tokens. API and sidecar
/// therefore accept a token with a longer lifetime than configured, but such a token can be revoked like any other.
#[tokio::test]
async fn token_with_a_long_lifetime_is_revoked_like_any_other() {
    let control = ControlPlane::start().await;
    let sidecar = Sidecar::start(&control).await;
    let verifiers = Verifiers::new(&control, &sidecar);
    let agent = Agent::register(&control, "Agent").await;
    let role = control.assign_new_role(&agent.id, "reader", &["read"]).await;
    let token = agent.token().await;
    let long_lived = Signer::with_access_token_key(&control, &token).await.with_claims(&json!({ "exp": i64::MAX }));
    let has_roles = |expected: &'static [&'static str]| move |outcome: &VerifyOutcome| outcome.has_roles(expected);
    let is_refused = |status, reason| move |outcome: &VerifyOutcome| *outcome == VerifyOutcome::refused(status, reason);
    verifiers.wait_until_equal("the token is accepted", &long_lived, has_roles(&["reader"])).await;
    control.revoke(&agent.id, &role).await;
    verifiers.wait_until_equal("the role in the token is revoked", &long_lived, has_roles(&[])).await;
    control.set_status(&agent.id, "suspended").await.expect(200);
    let is_suspended = is_refused(403, "agent_suspended");
    verifiers.wait_until_equal("the agent of the token is suspended", &long_lived, is_suspended).await;
    control.set_status(&agent.id, "active").await.expect(200);
    verifiers.wait_until_equal("the token stays revoked", &long_lived, is_refused(401, "token_revoked")).await;
}
