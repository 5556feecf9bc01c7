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

/// The text in the manual at which the filters before `ext_authz` begin.
const FILTERS_BEGIN: &str = "  # Reads the whole body";
/// The text in the manual at which the filters before `ext_authz` end.
const FILTERS_END: &str = "  # After the MCP filter";
/// The first line of the MCP filter, indented as in the configuration.
const MCP_FILTER: &str = "                  - name: envoy.filters.http.mcp\n";
/// The setting that `ext_authz` needs for rules about MCP, as the manual states it.
const NAMESPACES: &str = "metadata_context_namespaces: [envoy.filters.http.mcp]";

/// The filters before `ext_authz`, as the manual states them.
fn filters_of_manual() -> String {
    let page = fs::read_to_string(tools::root().join(PAGE)).unwrap();
    assert!(page.contains(NAMESPACES), "{PAGE}");
    let (_, rest) = page.split_once(FILTERS_BEGIN).unwrap();
    let (filters, _) = rest.split_once(FILTERS_END).unwrap();
    let indented = |line: &str| format!("                {line}\n");
    format!("{FILTERS_BEGIN}{filters}").lines().map(indented).collect::<Vec<_>>().concat()
}

/// The status, and the reason in the error response of JSON-RPC.
fn reason(response: &HttpResponse) -> (u16, &str) {
    (response.status, response.text("/error/data/reason"))
}

/// Starts Envoy with these filters before `ext_authz`, and with this further setting of `ext_authz`.
async fn envoy(fixture: &Fixture, upstream: u16, filters: &str, setting: &str) -> Envoy {
    let minimal = include_str!("minimal.yaml");
    let text = replaced(minimal, "# <grpc_service>", "timeout: 5s");
    let text = replaced(&text, "# <filter>", setting);
    let text = replaced(&text, "http_filters:\n", &format!("http_filters:\n{filters}"));
    Envoy::start(&text, &fixture.sidecar.socket(), upstream).await
}

async fn envoy_of_manual(fixture: &Fixture, upstream: u16) -> Envoy {
    envoy(fixture, upstream, &filters_of_manual(), NAMESPACES).await
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
        ("response of the client", &[], r#"{"jsonrpc":"2.0","id":1,"result":{}}"#.into(), (403, "mcp_request_invalid")),
        // Envoy takes a call that has a `result` for a response, but the Python SDK executes it.
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
        ("repeated method", allowed.replace(r#""method":"#, r#""method":"tools/list","method":"#)),
        ("repeated name", allowed.replace(r#""name":"get"#, r#""name":"delete_city","name":"get"#)),
        ("repeated params", allowed.replace(r#""params":"#, r#""params":{"name":"delete_city"},"params":"#)),
        ("no JSON", "get_weather".to_owned()),
        ("other version", allowed.replace("2.0", "1.0")),
    ] {
        let response = post(&envoy, &token, &[], body).await;
        assert_eq!(response.status, 400, "{name}: {response:?}");
    }
    // A service that decodes this charset reads another message than Envoy.
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

#[tokio::test]
async fn messages_are_refused_without_the_metadata_of_the_filter() {
    let fixture = Fixture::start(RULES).await;
    let upstream = Upstream::start().await;
    let token = fixture.token("reader", &["weather:read"]).await;
    let filters = filters_of_manual();
    // Leave out the buffer filter, which would answer 413 itself: the MCP filter also sets the limit of the buffer.
    let (_, unbuffered) = filters.split_once(MCP_FILTER).unwrap();
    let passing = replaced(unbuffered, "traffic_mode: REJECT_NO_MCP", "traffic_mode: PASS_THROUGH");
    let small = replaced(&passing, "max_request_body_size: 1048576", "max_request_body_size: 64");
    let small = format!("{MCP_FILTER}{small}");
    for (name, filters, setting, is_valid) in [
        ("all settings", filters.as_str(), NAMESPACES, true),
        ("no filter", "", NAMESPACES, false),
        ("no namespace", &filters, "", false),
        ("a message above the limit", &small, NAMESPACES, false),
    ] {
        let envoy = envoy(&fixture, upstream.port, filters, setting).await;
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
