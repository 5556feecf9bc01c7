//! Tests that fuzzed requests never cause a 5xx response, and that every refusal has the error format of the
//! specification.

use super::assert_healthy;
use countersign_client::PrivateKey;
use countersign_mangle::{any_bytes, any_json, any_text, cases_divided_by, mutated_bytes, mutated_text};
use countersign_tests::{Agent, ControlPlane, HttpResponse};
use proptest::{prelude::*, sample::select, test_runner::TestRunner};
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// A valid request: credential, path and body.
#[derive(Debug, Clone)]
struct ValidRequest {
    method: &'static str,
    path: String,
    bearer: Option<String>,
    body: Value,
}

/// A request derived from a valid one.
#[derive(Debug, Clone)]
struct FuzzedRequest {
    method: &'static str,
    path: String,
    bearer: Option<String>,
    content_type: Option<String>,
    body: Vec<u8>,
}

const METHODS: [&str; 6] = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"];

/// A valid request to every endpoint with a body.
async fn valid_requests(control: &ControlPlane) -> Vec<ValidRequest> {
    let agent = Agent::register(control, "agent").await;
    let tokens = agent.login().await;
    let role = control.create_role("reader", &["read"]).await;
    let challenge = control.api.post("/auth/challenge", json!({ "agentId": agent.id })).await.expect(200);
    let signature = agent.key.sign(challenge["nonce"].as_str().expect("the challenge has a nonce"));
    let pem = PrivateKey::generate().public_pem().expect("the key can be encoded");
    let (key, human) = (|| Some(control.key().to_owned()), || Some(control.human().to_owned()));
    let request = |method, path: &str, bearer, body| ValidRequest { method, path: path.to_owned(), bearer, body };
    let register = json!({ "email": "a@b.example", "name": "a", "publicKey": pem, "metadata": { "a": [1, {}] } });
    let (service, refresh) = (control.service(), tokens.refresh_token.expose_secret());
    let login = json!({ "challengeId": challenge["challengeId"], "signature": signature, "serviceId": service });
    let role_body = json!({ "name": "writer", "description": "writes", "permissions": ["write", "read"] });
    let assign = json!({ "roleId": role, "expiresAt": "2099-01-01T00:00:00Z" });
    vec![
        request("POST", "/auth/register", None, register),
        request("POST", "/auth/challenge", None, json!({ "agentId": agent.id, "serviceId": service })),
        request("POST", "/auth/authenticate", None, login),
        request("POST", "/auth/refresh", None, json!({ "refreshToken": refresh, "serviceId": service })),
        request("POST", "/services", human(), json!({ "name": "s", "acceptsUnboundTokens": false })),
        request("POST", &control.path("/keys"), human(), json!({ "name": "k", "scope": "sync" })),
        request("POST", &control.path("/roles"), key(), role_body),
        request("POST", &control.path(&format!("/agents/{}/roles", agent.id)), key(), assign),
        request("PUT", &format!("/agents/{}/status", agent.id), human(), json!({ "status": "active" })),
    ]
}

/// Replaces or mutates a field of the body, or the whole body.
fn fuzzed_body(valid: &Value) -> BoxedStrategy<Vec<u8>> {
    let (original, original_to_mutate) = (valid.clone(), valid.clone());
    let names: Vec<String> = valid.as_object().expect("the value is an object").keys().cloned().collect();
    let replaced = (select(names.clone()), any_json()).prop_map(move |(name, value)| {
        let mut body = original.clone();
        body[name] = value;
        body
    });
    let mutated = select(names).prop_flat_map(move |name| {
        let body = original_to_mutate.clone();
        let texts = mutated_text(body[&name].as_str().unwrap_or("text"));
        texts.prop_map(move |text| {
            let mut body = body.clone();
            body[&name] = json!(text);
            body
        })
    });
    prop_oneof![
        4 => replaced.prop_map(|body| body.to_string().into_bytes()),
        4 => mutated.prop_map(|body| body.to_string().into_bytes()),
        3 => mutated_bytes(valid.to_string().as_bytes()),
        1 => Just(valid.to_string().into_bytes()),
        1 => any_json().prop_map(|body| body.to_string().into_bytes()),
        1 => any_bytes(),
    ]
    .boxed()
}

/// Replaces a segment of the path with any text.
fn fuzzed_path(valid: &str) -> BoxedStrategy<String> {
    let valid = valid.to_owned();
    let parts: Vec<String> = valid.split('/').skip(1).map(str::to_owned).collect();
    let replaced = (any::<prop::sample::Index>(), any_text()).prop_map(move |(index, text)| {
        let mut parts = parts.clone();
        let index = index.index(parts.len());
        parts[index] = text.bytes().map(|byte| ["%", &hex::encode([byte])].concat()).collect();
        format!("/{}", parts.join("/"))
    });
    prop_oneof![6 => Just(valid), 1 => replaced].boxed()
}

fn fuzzed_requests(valid: Vec<ValidRequest>) -> BoxedStrategy<FuzzedRequest> {
    let parts = select(valid).prop_flat_map(|ValidRequest { method, path, bearer, body }| {
        let method = prop_oneof![12 => Just(method), 1 => select(&METHODS[..])];
        let mutated_bearer =
            bearer.as_deref().map_or_else(|| any_text().boxed(), |bearer| mutated_text(bearer).boxed());
        let bearer = prop_oneof![8 => Just(bearer), 1 => mutated_bearer.prop_map(Some), 1 => Just(None)];
        let json = Just(Some("application/json".to_owned()));
        let content_type =
            prop_oneof![8 => json, 1 => Just(None), 1 => mutated_text("application/json").prop_map(Some)];
        (method, fuzzed_path(&path), bearer, content_type, fuzzed_body(&body))
    });
    parts
        .prop_map(|(method, path, bearer, content_type, body)| FuzzedRequest {
            method,
            path,
            bearer,
            content_type,
            body,
        })
        .boxed()
}

/// Sends the request. Returns `None` if a value cannot be sent in a header.
async fn send(control: &ControlPlane, fuzzed: FuzzedRequest) -> Option<HttpResponse> {
    let header = |text: &str| HeaderValue::from_bytes(text.as_bytes()).ok();
    let mut request = control.api.request(fuzzed.method, &fuzzed.path).body(fuzzed.body);
    if let Some(bearer) = fuzzed.bearer {
        request = request.header("authorization", header(&format!("Bearer {bearer}"))?);
    }
    if let Some(content_type) = fuzzed.content_type {
        request = request.header(CONTENT_TYPE, header(&content_type)?);
    }
    Some(HttpResponse::send(request).await)
}

/// Requires a status below 500, a request id, and the error format of the specification.
fn check_format(response: &HttpResponse) -> Result<(), TestCaseError> {
    let HttpResponse { status, headers: _, body } = response;
    prop_assert!(*status < 500, "{}: {}", status, body);
    prop_assert!(!response.header("x-request-id").is_empty(), "{}", body);
    if *status >= 400 {
        let error = &body["error"];
        let code = error["code"].as_str().unwrap_or_default();
        prop_assert!(
            !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'),
            "{}",
            body
        );
        prop_assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{}", body);
        prop_assert!(error["details"].is_object(), "{}", body);
        prop_assert_eq!(response.header("content-type"), "application/json");
    }
    Ok(())
}

#[test]
fn fuzzed_requests_never_cause_a_5xx_or_a_malformed_error() {
    let runtime = Runtime::new().expect("the runtime can be built");
    let control = runtime.block_on(ControlPlane::start_process());
    let valid = runtime.block_on(valid_requests(&control));
    let outcome = TestRunner::new(cases_divided_by(1)).run(&fuzzed_requests(valid), |fuzzed| {
        let response = runtime.block_on(send(&control, fuzzed));
        response.map_or(Ok(()), |response| check_format(&response))
    });
    runtime.block_on(assert_healthy(&control));
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn fuzzed_token_headers_are_refused_without_a_5xx() {
    let runtime = Runtime::new().expect("the runtime can be built");
    let control = runtime.block_on(ControlPlane::start_process());
    let (token, expected) = runtime.block_on(async {
        let agent = Agent::register(&control, "agent").await;
        let role = control.create_role("reader", &["read"]).await;
        control.assign(&agent.id, &role).await;
        let token = agent.token().await;
        let response = control.verify(&token).await;
        (token, response.expect(200))
    });
    let (valid_token, surrounding) =
        (token.clone(), || select(&["", " ", "\t", "=", ".", ",", "Bearer ", "bearer\t"][..]));
    let value = prop_oneof![
        Just(format!("Bearer {token}")),
        (surrounding(), surrounding()).prop_map(move |(before, after)| format!("{before}{valid_token}{after}")),
        mutated_text(&token),
        mutated_text(&format!("Bearer {token}")),
        any_text(),
        (any_text(), any_text()).prop_map(|(before, after)| format!("{before}.{after}")),
    ];
    let outcome = TestRunner::new(cases_divided_by(2)).run(&value, |value| {
        let Ok(header) = HeaderValue::from_bytes(value.as_bytes()) else { return Ok(()) };
        let request = control.api.request("GET", &control.path("/verify")).bearer_auth(control.key());
        let response = runtime.block_on(HttpResponse::send(request.header("x-agent-token", header)));
        check_format(&response)?;
        let parts: Vec<&str> = value.split([' ', '\t']).filter(|part| !part.is_empty()).collect();
        let valid = parts == [token.as_str()]
            || matches!(parts[..], [scheme, text] if scheme.eq_ignore_ascii_case("bearer") && text == token);
        prop_assert_eq!(response.status == 200, valid);
        prop_assert_eq!(&response.body["valid"], &json!(valid));
        prop_assert!(!valid || response.body == expected, "{}", response.body);
        Ok(())
    });
    runtime.block_on(assert_healthy(&control));
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
