//! Tests of the table `mcp`: which requests it allows, with which permissions, and how they are explained.

use crate::rules::{McpMessage, McpRequest, RequestTarget, RuleSet};

const RULES: &str = r#"
[[rules]]
name = "weather"
path = "/mcp"
require_permissions = ["use"]

[rules.mcp.tools]
get_weather = ["weather:read", "use"]
get_time = []
"delete city" = ["weather:admin"]

[rules.mcp.prompts]
"*" = ["prompts"]

[rules.mcp.resources]
"file:///a" = []
"*" = ["files"]

[rules.mcp.methods]
"resources/subscribe" = ["weather:read"]
"tools/list" = ["list"]

[[rules]]
name = "empty"
path = "/empty"
dry_run = true
mcp = {}

[[rules]]
name = "other"
path = "/other"
"#;

fn request<'a>(method: &'a str, name: &'a str) -> Result<McpRequest<'a>, &'static str> {
    McpRequest::new("POST", Some(McpMessage::Call { method, name: Some(name) }))
}

/// The permissions that a request needs.
fn required(path: &str, request: McpRequest<'_>) -> String {
    let rules = RuleSet::parse(RULES.as_bytes()).unwrap();
    let rule = rules.select(RequestTarget { method: "POST", host: "x", path }).unwrap().unwrap();
    match rule.mcp.as_ref().unwrap().policy(request) {
        Some(policy) => policy.require_permissions.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
        None => "no entry".into(),
    }
}

#[test]
fn entries_add_permissions_to_those_of_the_rule() {
    for (method, name, expected) in [
        ("tools/call", "get_weather", "use weather:read"),
        ("tools/call", "get_time", "use"),
        ("tools/call", "delete city", "use weather:admin"),
        ("tools/call", "Get_weather", "no entry"),
        ("tools/call", "get_weather ", "no entry"),
        ("tools/call", "*", "no entry"),
        ("prompts/get", "get_weather", "use prompts"),
        ("resources/read", "file:///a", "use"),
        ("resources/read", "file:///b/../a", "use files"),
        ("resources/subscribe", "file:///a", "use weather:read"),
        ("resources/unsubscribe", "file:///a", "no entry"),
        ("tools/list", "", "use list"),
        ("prompts/list", "", "use"),
        ("initialize", "", "use"),
        ("__jsonrpc_response", "", "no entry"),
        ("notifications/cancelled", "", "use"),
        ("notifications/unknown", "", "no entry"),
        ("Tools/call", "get_time", "no entry"),
        ("tools/call ", "get_time", "no entry"),
        ("completion/complete", "", "no entry"),
        ("subscriptions/listen", "", "no entry"),
    ] {
        assert_eq!(required("/mcp", request(method, name).unwrap()), expected, "{method} {name}");
    }
    assert_eq!(required("/mcp", McpRequest::Session), "use");
    assert_eq!(required("/mcp", McpRequest::new("POST", Some(McpMessage::Response)).unwrap()), "use");
    assert!(McpRequest::new("GET", Some(McpMessage::Response)).is_err());
    assert_eq!(required("/empty", request("tools/call", "get_time").unwrap()), "no entry");
    assert_eq!(required("/empty", request("ping", "").unwrap()), "");
}

#[test]
fn entries_without_permissions_share_the_policy_of_the_rule() {
    let rules = RuleSet::parse(RULES.as_bytes()).unwrap();
    let rule = rules.select(RequestTarget { method: "POST", host: "x", path: "/mcp" }).unwrap().unwrap();
    let policy = rule.mcp.as_ref().unwrap().policy(request("tools/call", "get_time").unwrap());
    assert!(std::sync::Arc::ptr_eq(policy.unwrap(), &rule.policy));
}

#[test]
fn explanation_shows_the_requirement_of_the_message() {
    let rules = RuleSet::parse(RULES.as_bytes()).unwrap();
    let explain = |method, path, message: Option<(&'static str, &'static str)>| {
        let message =
            message.map(|(method, name)| McpMessage::Call { method, name: Some(name).filter(|it| !it.is_empty()) });
        let explanation = rules.explain(RequestTarget { method, host: "x", path }, message);
        (explanation.to_string(), explanation.is_refused())
    };
    let weather = "method   POST\nhost     x\npath     /mcp\nmessage  tools/call get_weather\n\
                   rule     weather (line 2): any host, path /mcp, any method, mcp\n\
                   requires require_permissions = use, weather:read\n";
    assert_eq!(explain("POST", "/mcp", Some(("tools/call", "get_weather"))), (weather.to_owned(), false));
    for (method, path, message, expected, is_refused) in [
        ("POST", "/mcp", Some(("tools/call", "x")), "the request is refused with the reason mcp_not_allowed\n", true),
        ("POST", "/mcp", None, "refused with the reason mcp_request_invalid: there is no MCP message\n", true),
        ("POST", "/empty", Some(("tools/call", "x")), "is allowed with the reason mcp_not_allowed\n", false),
        ("GET", "/mcp", None, "requires require_permissions = use\n", false),
        ("POST", "/other", Some(("ping", "")), "rule     other (line 29): any host, path /other, any method\n", false),
    ] {
        let (text, refused) = explain(method, path, message);
        assert!(text.ends_with(expected), "{method} {path}: {text}");
        assert_eq!(refused, is_refused, "{text}");
    }
}
