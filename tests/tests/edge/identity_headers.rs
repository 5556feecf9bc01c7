//! Tests that clients cannot forge identity headers in any spelling, on any path, or with any version of HTTP.
//!
//! The listener and the sidecar both remove forged headers. The removal in the listener and the removal in the sidecar
//! are also tested separately.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests panic on unexpected values")]

use axum::{
    Json, Router,
    body::{Body, Bytes},
    http::{HeaderMap, HeaderName, HeaderValue},
};
use countersign_tests::{
    Agent, Environment, Envoy, HttpResponse, RawRequest, Sidecar, envoy::replaced, eventually, http::HttpClient, tls,
    verifiers::percent_decoded,
};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    future,
};
use tokio::net::TcpListener;

/// The headers with which the sidecar describes an agent or a refusal.
const IDENTITY_HEADERS: [&str; 8] = [
    "x-agent-id",
    "x-agent-name",
    "x-agent-trust-score",
    "x-agent-roles",
    "x-agent-permissions",
    "x-agent-service",
    "x-agent-token-id",
    "x-agent-reason",
];

/// The characters of a header name besides letters and digits (RFC 9110, section 5.6.2).
const SEPARATORS: &[u8; 15] = b"!#$%&'*+-.^_`|~";

/// Number of forged headers that fit into a request.
const BATCH_SIZE: usize = 80;

#[derive(Debug, Clone, Copy)]
enum HttpVersion {
    Http1,
    Http2,
}

#[tokio::test]
async fn example_envoy_removes_every_spelling_of_identity_headers() {
    let (environment, token) = environment().await;
    for version in [HttpVersion::Http1, HttpVersion::Http2] {
        assert_forgeries_fail(&environment.envoy.listener, version, "/", Some(&token)).await;
        assert_forgeries_fail(&environment.envoy.listener, version, "/open", Some(&token)).await;
        assert_forgeries_fail(&environment.envoy.listener, version, "/open", None).await;
        assert_forgeries_fail(&environment.envoy.listener, version, "/health", None).await;
    }
}

#[tokio::test]
async fn sidecar_alone_removes_every_spelling_of_identity_headers() {
    let (environment, token) = environment().await;
    let envoy = envoy_without_removal(&environment).await;
    assert_forgeries_fail(&envoy.listener, HttpVersion::Http1, "/", Some(&token)).await;
    assert_forgeries_fail(&envoy.listener, HttpVersion::Http1, "/open", None).await;
}

#[tokio::test]
async fn listener_removes_spellings_that_the_sidecar_does_not_receive() {
    let (environment, token) = environment().await;
    let filter = "failure_mode_allow: false";
    let allowed_headers = "allowed_headers: { patterns: [{ exact: authorization }] }";
    let edit = |text: String| replaced(&text, filter, &format!("{filter}\n{}{allowed_headers}", " ".repeat(22)));
    let envoy = Envoy::start_edited_example(&environment.sidecar.socket(), environment.upstream.port, edit).await;
    assert_forgeries_fail(&envoy.listener, HttpVersion::Http1, "/", Some(&token)).await;
    assert_forgeries_fail(&envoy.listener, HttpVersion::Http1, "/open", None).await;
}

#[tokio::test]
async fn envoy_removes_identity_headers_from_trailers() {
    let (environment, token) = environment().await;
    let service = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = service.local_addr().unwrap().port();
    // Answers with the names of the trailers.
    let app = Router::new().fallback(async |body: Body| {
        let body = body.collect().await.expect("the body arrives");
        let names = body.trailers().into_iter().flat_map(HeaderMap::keys).map(HeaderName::to_string);
        Json(names.collect::<BTreeSet<_>>())
    });
    let _service = tls::serve(service, app);
    let edit = |text: String| replaced(&text, "connect_timeout: 1s", SERVICE_WITH_HTTP2);
    let envoy = Envoy::start_edited_example(&environment.sidecar.socket(), port, edit).await;

    let forged =
        IDENTITY_HEADERS.into_iter().flat_map(|name| [name.to_owned(), name.replace('-', "_"), name.replace('-', ".")]);
    let others = ["grpc-status-details-bin", "x-agent-color"];
    let names: Vec<_> = forged.chain(others.map(str::to_owned)).collect();
    for (path, token) in [("/", Some(&token)), ("/open", None), ("/health", None)] {
        let received = send_trailers(&envoy.listener, path, token, &names).await;
        assert_eq!(received, json!(others), "{path}");
    }
}

/// The settings of the example's service, which then is called over HTTP/2. With HTTP/1.1, Envoy passes no trailers.
const SERVICE_WITH_HTTP2: &str = r#"connect_timeout: 1s
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: { http2_protocol_options: {} }"#;

/// Sends a request with a body and these trailers over HTTP/2. Returns the body of the response.
async fn send_trailers(listener: &HttpClient, path: &str, token: Option<&String>, names: &[String]) -> Value {
    let client = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    let listener = HttpClient::new(listener.url.clone(), client);
    let trailer = |name: &String| (name.parse::<HeaderName>().unwrap(), HeaderValue::from_static("forged"));
    let checked = async || {
        let trailers: HeaderMap = names.iter().map(trailer).collect();
        let body = Full::new(Bytes::from_static(b"body")).with_trailers(future::ready(Some(Ok(trailers))));
        let request = listener.request("POST", path).body(reqwest::Body::wrap(body));
        let request = token.into_iter().fold(request, reqwest::RequestBuilder::bearer_auth);
        Some(HttpResponse::send(request).await).filter(|response| response.status != 503)
    };
    eventually("the sidecar responds in time", checked, String::new).await.expect(200)
}

#[tokio::test]
async fn envoy_refuses_invalid_header_names() {
    let (environment, token) = environment().await;
    for (case, line) in [
        ("a space before the colon", b"x-agent-id : forged".as_slice()),
        ("a tab before the colon", b"x-agent-id\t: forged"),
        ("a space within", b"x agent id: forged"),
        ("a byte above ASCII", b"x\xadagent-id: forged"),
        ("a dash outside ASCII", "x‐agent‐id: forged".as_bytes()),
        ("a letter that folds to ASCII", "x-agent-ıd: forged".as_bytes()),
        ("a zero byte", b"x-agent-id\0: forged"),
        ("a colon at the beginning", b":x-agent-id: forged"),
        ("a slash", b"x/agent/id: forged"),
    ] {
        let response =
            RawRequest::get("/").bearer(&token).line(line).send_until_checked(&environment.envoy.listener).await;
        assert_eq!(response.status, 400, "{case}: {response:?}");
    }
    assert_eq!(environment.upstream.received(), 0);
}

#[tokio::test]
async fn other_headers_neither_add_nor_remove_an_identity() {
    let (environment, token) = environment().await;
    let unprotected = envoy_without_removal(&environment).await;
    let get = || RawRequest::get("/").bearer(&token);
    for (envoy, listener) in [("example", &environment.envoy.listener), ("sidecar alone", &unprotected.listener)] {
        let expected = identity_headers(&get().send_until_checked(listener).await.expect(200));
        let (id, roles) = (first_value(&expected, "x-agent-id"), first_value(&expected, "x-agent-roles"));
        for (case, request) in [
            ("the real value and another", get().with("x-agent-id", &id).with("x-agent-id", "agt_forged")),
            ("another and the real value", get().with("X-Agent-Id", "agt_forged").with("x-agent-id", &id)),
            ("two others", get().with("x-agent-id", "agt_forged").with("X-Agent-Id", "agt_other")),
            ("the real value and another, joined", get().with("x-agent-id", format!("{id},agt_forged"))),
            ("the real roles and others", get().with("x-agent-roles", &roles).with("x-agent-roles", "admin")),
            ("an empty value", get().with("x-agent-roles", "")),
            ("listed in Connection", get().with("connection", "x-agent-id, x-agent-roles")),
            ("after a bare carriage return", get().line("x-note: a\rx-agent-id: forged")),
            ("after a bare line feed", get().line("x-note: a\nx-agent-id: forged")),
            ("a folded line", get().with("x-note", "a").line(" x-agent-id: forged")),
        ] {
            let response = request.send_until_checked(listener).await;
            let refused = case == "a folded line" && response.status == 400;
            assert!(refused || identity_headers(&response.expect(200)) == expected, "{case}, {envoy}");
        }
    }
}

#[tokio::test]
async fn similar_header_names_pass_unchanged() {
    let (environment, token) = environment().await;
    for name in ["x-agent-color", "x_agent_color", "x-agent", "x-agent-", "x-agent-ids", "x-agentid", "x-agent--id"]
        .into_iter()
        .chain(["my-x-agent-id", "xx-agent-id", "x-agent-id-", "agent-id", "x-agent-token-ids", "x-agent%2did"])
    {
        for (path, request) in [("/", RawRequest::get("/").bearer(&token)), ("/open", RawRequest::get("/open"))] {
            let received_headers = request
                .with(name, "blue")
                .with(name, "green")
                .send_until_checked(&environment.envoy.listener)
                .await
                .expect(200);
            assert_eq!(received_headers[name], json!(["blue", "green"]), "{name} on {path}");
        }
    }
}

#[tokio::test]
async fn envoy_removes_the_agent_token_and_passes_other_credentials() {
    let (environment, token) = environment().await;
    let bearer = format!("Bearer {token}");
    for path in ["/", "/open"] {
        let get = || RawRequest::get(path);
        for (case, request, authorization) in [
            ("in Authorization", get().with("Authorization", &bearer), Value::Null),
            (
                "in Authorization, upper case",
                get().with("AUTHORIZATION", bearer.replace("Bearer", "BEARER")),
                Value::Null,
            ),
            ("in its own header", get().with("X-Agent-Token", &bearer), Value::Null),
            ("in its own header, without a scheme", get().with("x-agent-token", &token), Value::Null),
            (
                "with Basic credentials",
                get().with("X-Agent-Token", &token).with("authorization", "Basic YTpi"),
                json!(["Basic YTpi"]),
            ),
            (
                "with another bearer token",
                get().with("authorization", "Bearer other").with("x-agent-token", &token),
                json!(["Bearer other"]),
            ),
        ] {
            let received_headers = request.send_until_checked(&environment.envoy.listener).await.expect(200);
            assert_eq!(received_headers["authorization"], authorization, "{case} on {path}");
            assert_eq!(received_headers["x-agent-token"], Value::Null, "{case} on {path}");
            assert_eq!(identity_headers(&received_headers).len(), 7, "{case} on {path}");
            assert!(!received_headers.to_string().contains(&token), "{case} on {path}");
        }
    }
    let request = RawRequest::get("/open").with("authorization", "Basic YTpi");
    let anonymous = request.send_until_checked(&environment.envoy.listener).await;
    assert_eq!(anonymous.expect(200)["authorization"], json!(["Basic YTpi"]));
}

#[tokio::test]
async fn other_spellings_of_the_token_header_are_ignored_and_removed() {
    let (environment, token) = environment().await;
    for name in ["x_agent_token", "x-agent_token", "X-Agent.Token", "x~agent!token"] {
        let refused = RawRequest::get("/").with(name, &token).send_until_checked(&environment.envoy.listener).await;
        assert_eq!(refused.error(), (401, "AUTHENTICATION_FAILED", "token_missing"), "{name}");
        for request in [RawRequest::get("/open"), RawRequest::get("/").bearer(&token)] {
            let response = request.with(name, "forged").send_until_checked(&environment.envoy.listener).await;
            assert_eq!(response.expect(200)[name.to_lowercase()], Value::Null, "{name}");
        }
    }
}

#[tokio::test]
async fn names_are_percent_encoded_in_headers() {
    let environment = Environment::start().await;
    let roles = ["billing, eu", "Größe 100%", "plain"];
    let permissions = ["a:read", "100%", "%2C", r#"say:"hi""#];
    let mut role_ids = Vec::new();
    for role in roles {
        role_ids.push(environment.control.create_role(role, &permissions).await);
    }
    for (name, encoded) in [
        (r#"Zoë, "the" agent%"#, r#"Zo%C3%AB%2C "the" agent%25"#),
        ("%2C", "%252C"),
        ("a=b; c\\d", "a=b; c\\d"),
        ("機器人 🤖", "%E6%A9%9F%E5%99%A8%E4%BA%BA %F0%9F%A4%96"),
        ("tab-less, comma,full", "tab-less%2C comma%2Cfull"),
    ] {
        let agent = Agent::register(&environment.control, name).await;
        for role in &role_ids {
            environment.control.assign(&agent.id, role).await;
        }
        let request = RawRequest::get("/").bearer(&agent.token().await);
        let received_headers = request.send_until_checked(&environment.envoy.listener).await.expect(200);
        assert_eq!(received_headers["x-agent-name"], json!([encoded]), "{name}");
        assert_eq!(decode_items(&received_headers["x-agent-name"]), [name]);
        assert_eq!(sorted(decode_items(&received_headers["x-agent-roles"])), sorted(roles), "{name}");
        assert_eq!(sorted(decode_items(&received_headers["x-agent-permissions"])), sorted(permissions), "{name}");
    }
}

#[tokio::test]
async fn configured_prefix_is_protected_like_the_default() {
    let (environment, token) = environment().await;
    let key = environment.control.create_key(environment.control.service(), "sync").await;
    let sidecar = Sidecar::start_with(&environment.control, &[&key], &["headers.prefix=x-caller-"]);
    sidecar.wait_until_ready().await;
    let envoy = Envoy::start_example(&sidecar.socket(), environment.upstream.port).await;
    for name in ["x-caller-id", "X-CALLER-ID", "x_caller.id", "x-caller_id"] {
        let request = |path| RawRequest::get(path).with(name, "forged");
        let received_headers = request("/").bearer(&token).send_until_checked(&envoy.listener).await.expect(200);
        assert!(
            received_headers["x-caller-id"][0].as_str().unwrap().starts_with("agent_"),
            "{name}: {received_headers}"
        );
        assert!(!received_headers.to_string().contains("forged"), "{name}: {received_headers}");
        let received_headers = request("/open").send_until_checked(&envoy.listener).await.expect(200);
        assert!(!received_headers.to_string().contains("forged"), "{name}: {received_headers}");
    }
}

/// Starts all servers. Returns the token of an agent with a role.
async fn environment() -> (Environment, String) {
    let environment = Environment::start().await;
    let (agent, _) = environment.agent("reader", &["read"]).await;
    let token = agent.token().await;
    (environment, token)
}

/// The example Envoy with a listener that removes no headers.
async fn envoy_without_removal(environment: &Environment) -> Envoy {
    let edit = |text: String| replaced(&text, "x[!-/:-`{-~]agent", "nothing");
    Envoy::start_edited_example(&environment.sidecar.socket(), environment.upstream.port, edit).await
}

/// Sends every spelling of the identity headers. With a token, the service must receive the real identity; without a
/// token, it must receive no identity.
async fn assert_forgeries_fail(listener: &HttpClient, version: HttpVersion, path: &str, token: Option<&str>) {
    let expected = identity_headers(&send_forged(listener, version, path, token, &[]).await);
    assert_eq!(expected.len(), if token.is_some() { 7 } else { 0 }, "{path}: {expected:?}");
    let mut passed = Vec::new();
    for batch in spellings().chunks(BATCH_SIZE) {
        let identity = identity_headers(&send_forged(listener, version, path, token, batch).await);
        passed.extend(identity.into_iter().filter(|(name, value)| expected.get(name) != Some(value)));
    }
    let examples: Vec<_> = passed.iter().take(10).collect();
    assert!(passed.is_empty(), "{} forgeries passed on {path} over {version:?}, such as {examples:?}", passed.len());
}

/// The headers that the service receives for a request with these headers, each with a forged value.
async fn send_forged(
    listener: &HttpClient,
    version: HttpVersion,
    path: &str,
    token: Option<&str>,
    forged: &[String],
) -> Value {
    let response = match version {
        HttpVersion::Http1 => {
            let request = forged.iter().fold(RawRequest::get(path), |request, name| request.with(name, "forged"));
            token.into_iter().fold(request, RawRequest::bearer).send_until_checked(listener).await
        }
        HttpVersion::Http2 => {
            let client = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
            let listener = HttpClient::new(listener.url.clone(), client);
            let checked = async || {
                let request =
                    forged.iter().fold(listener.request("GET", path), |request, name| request.header(name, "forged"));
                let request = token.into_iter().fold(request, reqwest::RequestBuilder::bearer_auth);
                Some(HttpResponse::send(request).await).filter(|response| response.status != 503)
            };
            eventually("the sidecar responds in time", checked, String::new).await
        }
    };
    response.expect(200)
}

/// Every spelling of the identity headers with other separators and alternating case.
fn spellings() -> Vec<String> {
    let separated = IDENTITY_HEADERS.into_iter().flat_map(|name| {
        let mut parts = name.split('-');
        let first = vec![parts.next().unwrap().to_owned()];
        parts.fold(first, |prefix, part| {
            prefix
                .iter()
                .flat_map(|prefix| SEPARATORS.map(|byte| format!("{prefix}{}{part}", char::from(byte))))
                .collect()
        })
    });
    separated.enumerate().map(|(position, name)| with_letter_case(&name, position)).collect()
}

fn with_letter_case(name: &str, style: usize) -> String {
    let letter = |(position, letter): (usize, char)| match style % 4 {
        1 => letter.to_ascii_uppercase(),
        2 if position % 2 == 0 => letter.to_ascii_uppercase(),
        3 if position % 3 == 0 => letter.to_ascii_uppercase(),
        _ => letter,
    };
    name.chars().enumerate().map(letter).collect()
}

/// The headers that a service could mistake for identity headers.
fn identity_headers(received_headers: &Value) -> BTreeMap<String, Value> {
    let normalize = |name: &str| -> String {
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect()
    };
    let headers = received_headers.as_object().expect("the headers are an object").iter();
    headers
        .filter(|(name, _)| IDENTITY_HEADERS.contains(&normalize(name).as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn first_value(identity: &BTreeMap<String, Value>, name: &str) -> String {
    identity[name][0].as_str().unwrap().to_owned()
}

/// The decoded items of a header with one value, split as a service would split them.
fn decode_items(values: &Value) -> Vec<String> {
    let [value] = values.as_array().unwrap().as_slice() else { panic!("{values}") };
    value.as_str().unwrap().split(',').map(percent_decoded).collect()
}

fn sorted(items: impl IntoIterator<Item = impl Into<String>>) -> Vec<String> {
    let mut items: Vec<String> = items.into_iter().map(Into::into).collect();
    items.sort();
    items
}
