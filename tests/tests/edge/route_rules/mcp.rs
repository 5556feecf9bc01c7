//! Rules about MCP behind the real Envoy, with the filters that the manual describes.

use super::Fixture;
use countersign_tests::{
    Agent, Envoy, HttpResponse, RawRequest, Upstream, envoy::replaced, eventually, sidecar::run_command, tools,
};
use serde_json::json;
use std::{fs, process::Command};

const RULES: &str = r#"
[[rules]]
name = "weather"
path = "/mcp"
[rules.mcp.tools]
get_weather = ["weather:read"]
get_time = []
delete_city = ["weather:read", "weather:admin"]
[rules.mcp.prompts]
"*" = []
[rules.mcp.resources]
"file:///cities.json" = ["weather:read"]
[rules.mcp.methods]
"resources/subscribe" = ["weather:admin"]
"#;

const PAGE: &str = "docs/run/route-rules.md";

/// The settings of `ext_authz` that rules about MCP need, as the manual states them.
fn settings_of_manual() -> String {
    let page = fs::read_to_string(tools::root().join(PAGE)).unwrap();
    let (_, rest) = page.split_once("      with_request_body:\n").unwrap();
    let (settings, _) = rest.split_once("      grpc_service:").unwrap();
    let settings = settings.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    format!("with_request_body: {{ {} }}", settings.collect::<Vec<_>>().join(", "))
}

/// The status, and the reason in the error response of JSON-RPC.
fn reason(response: &HttpResponse) -> (u16, &str) {
    (response.status, response.text("/error/data/reason"))
}

/// Starts Envoy with this setting of `ext_authz`.
async fn envoy(fixture: &Fixture, upstream: u16, setting: &str) -> Envoy {
    let minimal = include_str!("minimal.yaml");
    let text = replaced(minimal, "# <grpc_service>", "timeout: 5s");
    let text = replaced(&text, "# <filter>", setting);
    Envoy::start(&text, &fixture.sidecar.socket(), upstream).await
}

async fn envoy_of_manual(fixture: &Fixture, upstream: u16) -> Envoy {
    envoy(fixture, upstream, &settings_of_manual()).await
}

fn message(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#)
}

fn call(tool: &str) -> String {
    message("tools/call", &format!(r#"{{"name":"{tool}","arguments":{{"name":"other"}}}}"#))
}

/// Sends a message as an MCP client does, with these further headers.
async fn post(envoy: &Envoy, token: &str, headers: &[(&str, &str)], body: String) -> HttpResponse {
    let request = envoy.listener.request("POST", "/mcp").bearer_auth(token);
    let request = request.header("accept", "application/json, text/event-stream");
    let is_typed = headers.iter().any(|(name, _)| *name == "content-type");
    let json = (!is_typed).then_some(("content-type", "application/json"));
    let headers = headers.iter().copied().chain(json);
    let request = request.body(body);
    let with_header = |request: reqwest::RequestBuilder, (name, value): (&str, &str)| request.header(name, value);
    HttpResponse::send(headers.fold(request, with_header)).await
}

#[tokio::test]
async fn tools_need_their_permissions_behind_envoy() {
    let fixture = Fixture::start(RULES).await;
    let upstream = Upstream::start().await;
    let envoy = envoy_of_manual(&fixture, upstream.port).await;
    let (agent, _) = Agent::with_role(&fixture.control, "reader", &["weather:read"]).await;
    let token = agent.token().await;
    for (name, headers, body, expected) in [
        ("allowed tool", &[][..], call("get_weather"), (200, "")),
        ("tool without permissions", &[], call("get_time"), (200, "")),
        ("escaped name", &[], call("get\\u005fweather"), (200, "")),
        ("refused tool", &[], call("delete_city"), (403, "permission_missing")),
        ("unknown tool", &[], call("drop_city"), (403, "mcp_not_allowed")),
        ("other case", &[], call("Get_Weather"), (403, "mcp_not_allowed")),
        ("prompt", &[], message("prompts/get", r#"{"name":"any"}"#), (200, "")),
        ("resource", &[], message("resources/read", r#"{"uri":"file:///cities.json"}"#), (200, "")),
        ("other resource", &[], message("resources/read", r#"{"uri":"file:///x"}"#), (403, "mcp_not_allowed")),
        ("method", &[], message("resources/subscribe", r#"{"uri":"file:///x"}"#), (403, "permission_missing")),
        ("other method", &[], message("completion/complete", "{}"), (403, "mcp_not_allowed")),
        ("list", &[], message("tools/list", "{}"), (200, "")),
        ("initialize", &[], message("initialize", r#"{"protocolVersion":"2025-11-25"}"#), (200, "")),
        ("notification", &[], r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.into(), (200, "")),
        ("response of the client", &[], r#"{"jsonrpc":"2.0","id":1,"result":{}}"#.into(), (200, "")),
        // Envoy's own filter takes a call that has a `result` for a response, but the Python SDK executes it.
        (
            "call with a result",
            &[],
            call("delete_city").replace(r#""method":"#, r#""result":{},"method":"#),
            (403, "mcp_request_invalid"),
        ),
        ("large message", &[], call("get_weather").replace("other", &"x".repeat(500_000)), (200, "")),
        ("name that is a number", &[], message("tools/call", r#"{"name":5}"#), (403, "mcp_request_invalid")),
        ("name that is a list", &[], message("tools/call", r#"{"name":["x"]}"#), (403, "mcp_request_invalid")),
        ("no name", &[], message("tools/call", r#"{"arguments":{"name":"x"}}"#), (403, "mcp_request_invalid")),
        ("zero in a name", &[], call("get_time\\u0000"), (403, "mcp_request_invalid")),
        ("right headers", &[("mcp-method", "tools/call"), ("mcp-name", "get_time")], call("get_time"), (200, "")),
        ("encoded header", &[("mcp-name", "=?base64?Z2V0X3RpbWU=?=")], call("get_time"), (200, "")),
        ("wrong method", &[("mcp-method", "tools/list")], call("get_time"), (403, "mcp_request_invalid")),
        ("wrong name", &[("mcp-name", "delete_city")], call("get_time"), (403, "mcp_request_invalid")),
        (
            "repeated header",
            &[("mcp-name", "get_time"), ("mcp-name", "get_time")],
            call("get_time"),
            (403, "mcp_request_invalid"),
        ),
    ] {
        let response = post(&envoy, &token, headers, body).await;
        assert_eq!(reason(&response), expected, "{name}: {response:?}");
        assert_eq!(response.header("www-authenticate"), "", "no other token helps");
    }
    let admin = fixture.control.create_role("admin", &["weather:admin"]).await;
    fixture.control.assign(&agent.id, &admin).await;
    let is_allowed = async || (post(&envoy, &token, &[], call("delete_city")).await.status == 200).then_some(());
    eventually("the granted role allows the tool", is_allowed, || fixture.sidecar.log()).await;
    assert_eq!(reason(&post(&envoy, &token, &[], call("drop_city")).await), (403, "mcp_not_allowed"));
}

#[tokio::test]
async fn nobody_without_a_token_learns_which_tools_have_an_entry() {
    let fixture = Fixture::start(RULES).await;
    let upstream = Upstream::start().await;
    let envoy = envoy_of_manual(&fixture, upstream.port).await;
    for tool in ["get_weather", "get_time", "drop_city"] {
        let response = post(&envoy, "a.b.c", &[], call(tool)).await;
        assert_eq!(reason(&response), (401, "token_malformed"), "{tool}");
        let error = &response.body["error"];
        assert_eq!((&response.body["jsonrpc"], &error["code"]), (&json!("2.0"), &json!(401)), "{response:?}");
    }
}

#[tokio::test]
async fn what_is_not_one_message_does_not_reach_the_service() {
    let fixture = Fixture::start(RULES).await;
    let upstream = Upstream::start().await;
    let envoy = envoy_of_manual(&fixture, upstream.port).await;
    let token = fixture.token("reader", &["weather:read"]).await;
    let (allowed, refused) = (call("get_weather"), call("delete_city"));
    for (name, body) in [
        ("batch", format!("[{allowed}]")),
        ("batch of two", format!("[{allowed},{refused}]")),
        ("two messages", format!("{allowed}{refused}")),
        ("two messages, far apart", format!("{allowed}{}{refused}", " ".repeat(17_000))),
        ("two messages, farther apart", format!("{allowed}{}{refused}", " ".repeat(900_000))),
        ("a name in another case", allowed.replace(r#""name":"get"#, r#""Name":"delete_city","name":"get"#)),
        ("repeated method", allowed.replace(r#""method":"#, r#""method":"tools/list","method":"#)),
        ("repeated name", allowed.replace(r#""name":"get"#, r#""name":"delete_city","name":"get"#)),
        ("repeated params", allowed.replace(r#""params":"#, r#""params":{"name":"delete_city"},"params":"#)),
        ("no JSON", "get_weather".to_owned()),
        ("other version", allowed.replace("2.0", "1.0")),
    ] {
        let response = post(&envoy, &token, &[], body).await;
        assert_eq!(reason(&response), (403, "mcp_request_invalid"), "{name}: {response:?}");
    }
    let too_long = post(&envoy, &token, &[], format!("{allowed}{}", " ".repeat(1 << 20))).await;
    assert_eq!(too_long.status, 413);
    // The client sends the header that tells the sidecar whether the body is whole.
    let whole = post(&envoy, &token, &[("x-envoy-auth-partial-body", "false")], format!("{allowed}{refused}")).await;
    assert_eq!(reason(&whole), (403, "mcp_request_invalid"));
    // A service that decodes this charset reads another message than the sidecar.
    let hidden = allowed.replace("other", "+ACI-+AH0-,+ACI-name+ACI-:+ACI-delete_city+ACI-,+ACI-x+ACI-:+AHs-+ACI-x");
    for headers in [
        [("content-type", "application/json; charset=utf-7"), ("x-any", "")],
        [("content-type", "application/json"), ("content-encoding", "gzip")],
    ] {
        let response = post(&envoy, &token, &headers, hidden.clone()).await;
        assert_eq!(reason(&response), (403, "mcp_request_invalid"), "{headers:?}");
    }
    let session = |method| {
        let request = RawRequest::new(method, "/mcp").bearer(&token);
        request.with("accept", "text/event-stream").with("mcp-session-id", "1")
    };
    let chunked = |method| session(method).with("transfer-encoding", "chunked").line("").line("2").line("{}").line("0");
    for method in ["GET", "DELETE"] {
        let response = chunked(method).send(&envoy.listener).await;
        assert_eq!(reason(&response), (403, "mcp_request_invalid"), "{method} with a body");
    }
    assert_eq!(upstream.received(), 0);
    for method in ["GET", "DELETE"] {
        assert_eq!(session(method).send(&envoy.listener).await.status, 200, "{method}");
    }
    let without_token = RawRequest::get("/mcp").with("accept", "text/event-stream").send(&envoy.listener).await;
    assert_eq!(reason(&without_token), (401, "token_missing"));
}

/// Sends a message in chunks.
async fn post_in_chunks(envoy: &Envoy, token: &str, chunks: &[&str]) -> HttpResponse {
    let request = RawRequest::new("POST", "/mcp").bearer(token).with("content-type", "application/json");
    let request = request.with("transfer-encoding", "chunked").line("");
    let with_chunk =
        |request: RawRequest, chunk: &&str| request.line(format!("{:x}", chunk.len())).line(chunk.as_bytes());
    chunks.iter().fold(request, with_chunk).line("0").send(&envoy.listener).await
}

#[tokio::test]
async fn chunked_message_is_read_to_its_end() {
    let fixture = Fixture::start(RULES).await;
    let upstream = Upstream::start().await;
    let envoy = envoy_of_manual(&fixture, upstream.port).await;
    let token = fixture.token("reader", &["weather:read"]).await;
    let (allowed, refused, blanks) = (call("get_weather"), call("delete_city"), " ".repeat(5000));
    let (first, last) = allowed.split_at(20);
    assert_eq!(post_in_chunks(&envoy, &token, &[first, last, &blanks]).await.status, 200);
    let response = post_in_chunks(&envoy, &token, &[&allowed, &blanks, &refused]).await;
    assert_eq!(reason(&response), (403, "mcp_request_invalid"));
    assert_eq!(upstream.received(), 1);
}

/// A route whose requests Envoy does not hold, as the manual describes it.
const UNBUFFERED_ROUTE: &str = r#"
                        - match: { prefix: /files }
                          route: { cluster: service }
                          typed_per_filter_config:
                            envoy.filters.http.ext_authz:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute
                              check_settings: { disable_request_body_buffering: true }
"#;

#[tokio::test]
async fn other_routes_of_the_listener_take_larger_bodies() {
    let fixture = Fixture::start(RULES).await;
    let upstream = Upstream::start().await;
    let token = fixture.token("reader", &["weather:read"]).await;
    let text = replaced(include_str!("minimal.yaml"), "# <grpc_service>", "timeout: 5s");
    let text = replaced(&text, "# <filter>", &settings_of_manual());
    let text = replaced(&text, "routes:\n", &format!("routes:{UNBUFFERED_ROUTE}"));
    let envoy = Envoy::start(&text, &fixture.sidecar.socket(), upstream.port).await;
    let request = envoy.listener.request("POST", "/files/1").bearer_auth(&token).body(" ".repeat(3 << 19));
    HttpResponse::send(request).await.expect(200);
    assert_eq!(post(&envoy, &token, &[], call("get_weather")).await.status, 200);
}

#[tokio::test]
async fn messages_are_refused_if_envoy_does_not_send_the_whole_body_as_bytes() {
    let fixture = Fixture::start(RULES).await;
    let upstream = Upstream::start().await;
    let token = fixture.token("reader", &["weather:read"]).await;
    let settings = settings_of_manual();
    for (name, setting, is_valid) in [
        ("all settings", settings.clone(), true),
        ("raw headers", format!("{settings}\n                      encode_raw_headers: true"), true),
        ("no body", String::new(), false),
        ("as text", replaced(&settings, "pack_as_bytes: true", "pack_as_bytes: false"), false),
        (
            "a part",
            replaced(&settings, "1048576, allow_partial_message: false", "64, allow_partial_message: true"),
            false,
        ),
    ] {
        let envoy = envoy(&fixture, upstream.port, &setting).await;
        let response = post(&envoy, &token, &[], call("get_weather")).await;
        let expected = if is_valid { (200, "") } else { (403, "mcp_request_invalid") };
        assert_eq!(reason(&response), expected, "{name}: {response:?}");
    }
}

#[tokio::test]
async fn commands_explain_the_requirement_of_a_message() {
    let fixture = Fixture::start(RULES).await;
    let token = fixture.token("reader", &["weather:read"]).await;
    let run = |command: &[&str], arguments: &[&str]| {
        let mut process = Command::new(tools::binary("countersign-ext-authz"));
        process.args(command).args(["--host", "x", "--path", "/mcp"]).args(arguments);
        let (code, output, _) = run_command(process, &token);
        (code, output)
    };
    let rules = fixture.rules_file().display().to_string();
    let admin = fixture.sidecar.admin.url.strip_prefix("http://").unwrap().to_owned();
    let commands: [&[&str]; 3] = [
        &["rules", "explain", &rules],
        &["explain", "--admin", &admin],
        &["check", "--address", &fixture.sidecar.listen],
    ];
    let refused = "require_permissions = weather:read, weather:admin";
    for (tool, code_of_rules, code, in_rules, in_explain, in_check) in [
        ("get_weather", 0, 0, "require_permissions = weather:read\n", "MCP: tools/call get_weather\n", "allowed\n"),
        ("delete_city", 0, 3, refused, refused, "denied: 403 permission_missing\n"),
        (
            "x",
            3,
            3,
            "the request is refused with the reason mcp_not_allowed\n",
            "mcp          refused",
            "mcp_not_allowed",
        ),
    ] {
        for (command, code, text) in
            [(commands[0], code_of_rules, in_rules), (commands[1], code, in_explain), (commands[2], code, in_check)]
        {
            let (actual, output) = run(command, &["--mcp-method", "tools/call", "--mcp-name", tool]);
            assert!(actual == Some(code) && output.contains(text), "{command:?} {tool}: {actual:?} {output}");
        }
    }
    assert_eq!(run(commands[1], &[]).0, Some(0), "GET needs only what the rule requires");
    assert_eq!(run(commands[2], &["--method", "POST", "--expect", "mcp_request_invalid"]).0, Some(0));
}
