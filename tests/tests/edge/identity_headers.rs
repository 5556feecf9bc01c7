//! Identity headers cannot be forged: in no spelling, on no path and with no version of HTTP.
//!
//! Listener and sidecar both remove them; each is also tested without the other.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test says what it expects")]

use countersign_tests::{
    Agent, Environment, Envoy, HttpResponse, RawRequest, Sidecar, envoy::replaced, eventually, http::HttpClient,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The headers with which the sidecar describes an agent or a refusal.
const OURS: [&str; 8] = [
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
const BATCH: usize = 80;

#[derive(Debug, Clone, Copy)]
enum Wire {
    Http1,
    Http2,
}

#[tokio::test]
async fn example_envoy_removes_every_spelling_of_identity_headers() {
    let (environment, token) = environment().await;
    for wire in [Wire::Http1, Wire::Http2] {
        assert_forgeries_fail(&environment.envoy.site, wire, "/", Some(&token)).await;
        assert_forgeries_fail(&environment.envoy.site, wire, "/open", Some(&token)).await;
        assert_forgeries_fail(&environment.envoy.site, wire, "/open", None).await;
        assert_forgeries_fail(&environment.envoy.site, wire, "/health", None).await;
    }
}

#[tokio::test]
async fn sidecar_alone_removes_every_spelling_of_identity_headers() {
    let (environment, token) = environment().await;
    let envoy = unstripped(&environment).await;
    assert_forgeries_fail(&envoy.site, Wire::Http1, "/", Some(&token)).await;
    assert_forgeries_fail(&envoy.site, Wire::Http1, "/open", None).await;
}

#[tokio::test]
async fn listener_removes_spellings_that_the_sidecar_does_not_receive() {
    let (environment, token) = environment().await;
    let filter = "failure_mode_allow: false";
    let blinkers = "allowed_headers: { patterns: [{ exact: authorization }] }";
    let edit = |text: String| replaced(&text, filter, &format!("{filter}\n{}{blinkers}", " ".repeat(22)));
    let envoy = Envoy::edited(&environment.sidecar.socket(), environment.upstream.port, edit).await;
    assert_forgeries_fail(&envoy.site, Wire::Http1, "/", Some(&token)).await;
    assert_forgeries_fail(&envoy.site, Wire::Http1, "/open", None).await;
}

#[tokio::test]
async fn envoy_refuses_invalid_header_names() {
    let (environment, token) = environment().await;
    for (case, line) in [
        ("a space before the colon", b"x-agent-id : forged".as_slice()),
        ("a tab before the colon", b"x-agent-id\t: forged"),
        ("a space within", b"x agent id: forged"),
        ("a byte above ASCII", b"x\xadagent-id: forged"),
        ("a dash that is not ASCII", "x‐agent‐id: forged".as_bytes()),
        ("a letter that folds to ASCII", "x-agent-ıd: forged".as_bytes()),
        ("a zero byte", b"x-agent-id\0: forged"),
        ("a colon at the beginning", b":x-agent-id: forged"),
        ("a slash", b"x/agent/id: forged"),
    ] {
        let answer = RawRequest::get("/").bearer(&token).line(line).send_until_checked(&environment.envoy.site).await;
        assert_eq!(answer.status, 400, "{case}: {answer:?}");
    }
    assert_eq!(environment.upstream.received(), 0);
}

#[tokio::test]
async fn other_headers_neither_add_nor_remove_an_identity() {
    let (environment, token) = environment().await;
    let bare = unstripped(&environment).await;
    let get = || RawRequest::get("/").bearer(&token);
    for (envoy, site) in [("shipped", &environment.envoy.site), ("sidecar alone", &bare.site)] {
        let truth = identity(&get().send_until_checked(site).await.expect(200));
        let (id, roles) = (value(&truth, "x-agent-id"), value(&truth, "x-agent-roles"));
        for (case, request) in [
            ("the true value and another", get().with("x-agent-id", &id).with("x-agent-id", "agt_forged")),
            ("another and the true value", get().with("X-Agent-Id", "agt_forged").with("x-agent-id", &id)),
            ("both in one", get().with("x-agent-id", format!("{id},agt_forged"))),
            ("roles beside the true ones", get().with("x-agent-roles", &roles).with("x-agent-roles", "admin")),
            ("an empty value", get().with("x-agent-roles", "")),
            ("hop by hop", get().with("connection", "x-agent-id, x-agent-roles")),
            ("after a bare carriage return", get().line("x-note: a\rx-agent-id: forged")),
            ("after a bare line feed", get().line("x-note: a\nx-agent-id: forged")),
            ("a folded line", get().with("x-note", "a").line(" x-agent-id: forged")),
        ] {
            let answer = request.send_until_checked(site).await;
            let refused = case == "a folded line" && answer.status == 400;
            assert!(refused || identity(&answer.expect(200)) == truth, "{case}, {envoy}");
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
            let seen = request
                .with(name, "blue")
                .with(name, "green")
                .send_until_checked(&environment.envoy.site)
                .await
                .expect(200);
            assert_eq!(seen[name], json!(["blue", "green"]), "{name} on {path}");
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
            ("in Authorization, shouted", get().with("AUTHORIZATION", bearer.replace("Bearer", "BEARER")), Value::Null),
            ("in its own header", get().with("X-Agent-Token", &bearer), Value::Null),
            ("in its own header, bare", get().with("x-agent-token", &token), Value::Null),
            (
                "beside Basic",
                get().with("X-Agent-Token", &token).with("authorization", "Basic YTpi"),
                json!(["Basic YTpi"]),
            ),
            (
                "beside another bearer",
                get().with("authorization", "Bearer theirs").with("x-agent-token", &token),
                json!(["Bearer theirs"]),
            ),
        ] {
            let seen = request.send_until_checked(&environment.envoy.site).await.expect(200);
            assert_eq!(seen["authorization"], authorization, "{case} on {path}");
            assert_eq!(seen["x-agent-token"], Value::Null, "{case} on {path}");
            assert_eq!(identity(&seen).len(), 7, "{case} on {path}");
            assert!(!seen.to_string().contains(&token), "{case} on {path}");
        }
    }
    let anonymous =
        RawRequest::get("/open").with("authorization", "Basic YTpi").send_until_checked(&environment.envoy.site).await;
    assert_eq!(anonymous.expect(200)["authorization"], json!(["Basic YTpi"]));
}

#[tokio::test]
async fn other_spellings_of_the_token_header_are_ignored_and_removed() {
    let (environment, token) = environment().await;
    for name in ["x_agent_token", "x-agent_token", "X-Agent.Token", "x~agent!token"] {
        let refused = RawRequest::get("/").with(name, &token).send_until_checked(&environment.envoy.site).await;
        assert_eq!(refused.error(), (401, "AUTHENTICATION_FAILED", "token_missing"), "{name}");
        for request in [RawRequest::get("/open"), RawRequest::get("/").bearer(&token)] {
            let seen = request.with(name, "forged").send_until_checked(&environment.envoy.site).await.expect(200);
            assert_eq!(seen[name.to_lowercase()], Value::Null, "{name}");
        }
    }
}

#[tokio::test]
async fn names_arrive_percent_encoded() {
    let environment = Environment::start().await;
    let roles = ["billing, eu", "Größe 100%", "plain"];
    let permissions = ["a:read", "100%", "%2C", r#"say:"hi""#];
    let mut made = Vec::new();
    for role in roles {
        made.push(environment.control.create_role(role, &permissions).await);
    }
    for (name, encoded) in [
        (r#"Zoë, "the" agent%"#, r#"Zo%C3%AB%2C "the" agent%25"#),
        ("%2C", "%252C"),
        ("a=b; c\\d", "a=b; c\\d"),
        ("機器人 🤖", "%E6%A9%9F%E5%99%A8%E4%BA%BA %F0%9F%A4%96"),
        ("tab-less, comma,full", "tab-less%2C comma%2Cfull"),
    ] {
        let agent = Agent::register(&environment.control, name).await;
        for role in &made {
            environment.control.assign(&agent.id, role).await;
        }
        let request = RawRequest::get("/").bearer(&agent.token().await);
        let seen = request.send_until_checked(&environment.envoy.site).await.expect(200);
        assert_eq!(seen["x-agent-name"], json!([encoded]), "{name}");
        assert_eq!(decoded(&seen["x-agent-name"]), [name]);
        assert_eq!(sorted(decoded(&seen["x-agent-roles"])), sorted(roles), "{name}");
        assert_eq!(sorted(decoded(&seen["x-agent-permissions"])), sorted(permissions), "{name}");
    }
}

#[tokio::test]
async fn configured_prefix_is_protected_like_the_default() {
    let (environment, token) = environment().await;
    let key = environment.control.create_key(environment.control.service(), "sync").await;
    let sidecar = Sidecar::start_with(&environment.control, &[&key], &["headers.prefix=x-caller-"]);
    sidecar.await_ready().await;
    let envoy = Envoy::shipped(&sidecar.socket(), environment.upstream.port).await;
    for name in ["x-caller-id", "X-CALLER-ID", "x_caller.id", "x-caller_id"] {
        let request = |path| RawRequest::get(path).with(name, "forged");
        let seen = request("/").bearer(&token).send_until_checked(&envoy.site).await.expect(200);
        assert!(seen["x-caller-id"][0].as_str().unwrap().starts_with("agent_"), "{name}: {seen}");
        assert!(!seen.to_string().contains("forged"), "{name}: {seen}");
        let seen = request("/open").send_until_checked(&envoy.site).await.expect(200);
        assert!(!seen.to_string().contains("forged"), "{name}: {seen}");
    }
}

/// All servers, and the token of an agent with a role.
async fn environment() -> (Environment, String) {
    let environment = Environment::start().await;
    let (agent, _) = environment.agent("reader", &["read"]).await;
    let token = agent.token().await;
    (environment, token)
}

/// The example Envoy with a listener that removes no headers.
async fn unstripped(environment: &Environment) -> Envoy {
    let edit = |text: String| replaced(&text, "(?i)x[^a-z0-9]agent", "nothing");
    Envoy::edited(&environment.sidecar.socket(), environment.upstream.port, edit).await
}

/// Sends every spelling of the identity headers. The service must receive the same as without them: the real identity
/// with a token, none without.
async fn assert_forgeries_fail(site: &HttpClient, wire: Wire, path: &str, token: Option<&str>) {
    let truth = identity(&sent(site, wire, path, token, &[]).await);
    assert_eq!(truth.len(), if token.is_some() { 7 } else { 0 }, "{path}: {truth:?}");
    let mut passed = Vec::new();
    for batch in spellings().chunks(BATCH) {
        let seen = identity(&sent(site, wire, path, token, batch).await);
        passed.extend(seen.into_iter().filter(|(name, value)| truth.get(name) != Some(value)));
    }
    let few: Vec<_> = passed.iter().take(10).collect();
    assert!(passed.is_empty(), "{} forgeries passed on {path} over {wire:?}, such as {few:?}", passed.len());
}

/// The headers that the service receives for a request with these headers, each with a forged value.
async fn sent(site: &HttpClient, wire: Wire, path: &str, token: Option<&str>, forged: &[String]) -> Value {
    let answer = match wire {
        Wire::Http1 => {
            let request = forged.iter().fold(RawRequest::get(path), |request, name| request.with(name, "forged"));
            token.into_iter().fold(request, RawRequest::bearer).send_until_checked(site).await
        }
        Wire::Http2 => {
            let client = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
            let site = HttpClient { url: site.url.clone(), client };
            let judged = async || {
                let request =
                    forged.iter().fold(site.request("GET", path), |request, name| request.header(name, "forged"));
                let request = token.into_iter().fold(request, reqwest::RequestBuilder::bearer_auth);
                Some(HttpResponse::send(request).await).filter(|answer| answer.status != 503)
            };
            eventually("the sidecar answers in time", judged, String::new).await
        }
    };
    answer.expect(200)
}

/// Every spelling of the identity headers with other separators and alternating case.
fn spellings() -> Vec<String> {
    let separated = OURS.into_iter().flat_map(|name| {
        let mut parts = name.split('-');
        let first = vec![parts.next().unwrap().to_owned()];
        parts.fold(first, |begun, part| {
            begun.iter().flat_map(|begun| SEPARATORS.map(|byte| format!("{begun}{}{part}", char::from(byte)))).collect()
        })
    });
    separated.enumerate().map(|(position, name)| in_case(&name, position)).collect()
}

fn in_case(name: &str, style: usize) -> String {
    let letter = |(position, letter): (usize, char)| match style % 4 {
        1 => letter.to_ascii_uppercase(),
        2 if position % 2 == 0 => letter.to_ascii_uppercase(),
        3 if position % 3 == 0 => letter.to_ascii_uppercase(),
        _ => letter,
    };
    name.chars().enumerate().map(letter).collect()
}

/// The headers that a service could mistake for identity headers.
fn identity(seen: &Value) -> BTreeMap<String, Value> {
    let fold = |name: &str| -> String {
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect()
    };
    let headers = seen.as_object().expect("an object of headers").iter();
    headers
        .filter(|(name, _)| OURS.contains(&fold(name).as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn value(identity: &BTreeMap<String, Value>, name: &str) -> String {
    identity[name][0].as_str().unwrap().to_owned()
}

/// The items of a header with one value, split as a service would.
fn decoded(values: &Value) -> Vec<String> {
    let [value] = values.as_array().unwrap().as_slice() else { panic!("{values}") };
    value.as_str().unwrap().split(',').map(percent_decoded).collect()
}

fn percent_decoded(text: &str) -> String {
    let mut pieces = text.split('%');
    let mut bytes = pieces.next().unwrap().as_bytes().to_vec();
    for piece in pieces {
        bytes.push(u8::from_str_radix(&piece[..2], 16).unwrap());
        bytes.extend_from_slice(&piece.as_bytes()[2..]);
    }
    String::from_utf8(bytes).unwrap()
}

fn sorted(items: impl IntoIterator<Item = impl Into<String>>) -> Vec<String> {
    let mut items: Vec<String> = items.into_iter().map(Into::into).collect();
    items.sort();
    items
}
