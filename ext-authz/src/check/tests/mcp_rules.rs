//! Tests of rules about MCP: which body, headers and HTTP method make a valid request, and which permissions it needs.

mod fuzz;

use super::*;
use serde_json::{Value, json};

/// The agent of the tests has the permission `read`.
const RULES: &str = r#"
[[rules]]
name = "mcp"
[rules.mcp.tools]
read_tool = ["read"]
open_tool = []
"été" = []
admin_tool = ["admin"]
"=?base64?eA==?=" = []
[rules.mcp.prompts]
"*" = []
[rules.mcp.resources]
"file:///a" = []
[rules.mcp.methods]
"resources/subscribe" = ["read"]
"logging/setLevel" = ["admin"]
"#;

fn mcp_authorizer(rules: &str) -> Authorizer {
    let authorizer = authorizer(FixedClock);
    authorizer.rules.store(Arc::new(RuleSet::parse(rules.as_bytes()).unwrap()));
    authorizer
}

/// A request with a valid token, these headers and this body, as Envoy sends it. With a body, the default content type is JSON.
fn mcp_request(method: &str, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> CheckRequest {
    let (bearer, body) = (format!("Bearer {}", TestIssuer::new(1).sign(&claims())), body.into());
    let has_type = body.is_empty() || headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    let content_type = [("content-type", "application/json")].into_iter().filter(|_| !has_type);
    let partial = [("x-envoy-auth-partial-body", "false")].into_iter().filter(|_| !body.is_empty());
    let headers: Vec<_> = [("authorization", bearer.as_str())]
        .into_iter()
        .chain(content_type)
        .chain(partial)
        .chain(headers.iter().copied())
        .collect();
    let mut request = request(&headers, &[]);
    let http = http_of(&mut request);
    (http.method, http.raw_body) = (method.to_owned(), body);
    request
}

fn http_of(request: &mut CheckRequest) -> &mut HttpRequest {
    request.attributes.as_mut().unwrap().request.as_mut().unwrap().http.as_mut().unwrap()
}

fn message(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string()
}

/// A call of a tool.
fn call_tool(name: &str) -> String {
    message("tools/call", &json!({ "name": name }))
}

/// The reason of a denial; empty if the request is allowed.
fn reason(authorizer: &Authorizer, request: CheckRequest) -> String {
    let response = check(authorizer, request);
    if response.status.as_ref().unwrap().code == 0 { String::new() } else { expect_denied(response).1 }
}

#[test]
fn only_one_whole_message_is_valid() {
    let authorizer = mcp_authorizer(RULES);
    let named = |name: Value| message("tools/call", &json!({ "name": name }));
    let deep = (0..1000).fold(json!(1), |value, _| json!([value]));
    for (case, body, is_valid) in [
        ("a call", call_tool("read_tool"), true),
        ("white space around it", format!(" \n{}\r\n\t ", call_tool("read_tool")), true),
        (
            "a name that is nested elsewhere",
            message("tools/call", &json!({ "name": "read_tool", "_meta": { "name": "x" } })),
            true,
        ),
        ("a response", r#"{"jsonrpc":"2.0","id":1,"result":{}}"#.to_owned(), true),
        ("two messages", call_tool("read_tool").repeat(2), false),
        (
            "two messages, far apart",
            format!("{}{}{}", call_tool("read_tool"), " ".repeat(17_000), call_tool("admin_tool")),
            false,
        ),
        ("a batch", format!("[{}]", call_tool("read_tool")), false),
        ("a part", call_tool("read_tool").trim_end_matches('}').to_owned(), false),
        ("a repeated key", call_tool("read_tool").replace(r#""name""#, r#""name":"admin_tool","name""#), false),
        ("another case", call_tool("read_tool").replace(r#""name""#, r#""Name":"admin_tool","name""#), false),
        ("another version", call_tool("read_tool").replace("2.0", "1.0"), false),
        ("no method", json!({ "jsonrpc": "2.0" }).to_string(), false),
        ("an empty method", message("", &json!({})), false),
        ("a control character in the method", message("a\u{85}", &json!({})), false),
        ("no name", message("tools/call", &json!({ "uri": "read_tool" })), false),
        ("an empty name", named(json!("")), false),
        ("a zero byte in the name", named(json!("read_tool\0")), false),
        ("a name that is a list", named(json!(["read_tool"])), false),
        ("a name that is an object", named(json!({ "name": "read_tool" })), false),
        ("a method and a result", call_tool("read_tool").replace(r#""id":1"#, r#""result":{}"#), false),
        ("a depth of 1,000", message("tools/call", &json!({ "name": "read_tool", "arguments": deep })), false),
    ] {
        let expected = if is_valid { "" } else { "mcp_request_invalid" };
        assert_eq!(reason(&authorizer, mcp_request("POST", &[], body)), expected, "{case}");
    }
}

#[test]
fn only_a_whole_body_as_bytes_counts() {
    let authorizer = mcp_authorizer(RULES);
    let partial = |request: &mut CheckRequest, value: Option<&str>| {
        let headers = &mut http_of(request).headers;
        headers.remove("x-envoy-auth-partial-body");
        headers.extend(value.map(|value| ("x-envoy-auth-partial-body".to_owned(), value.to_owned())));
    };
    let changed = |change: &dyn Fn(&mut CheckRequest)| {
        let mut request = mcp_request("POST", &[], call_tool("read_tool"));
        change(&mut request);
        reason(&authorizer, request)
    };
    assert_eq!(changed(&|_| ()), "");
    assert_eq!(changed(&|request| partial(request, Some("true"))), "mcp_request_invalid");
    assert_eq!(changed(&|request| partial(request, None)), "mcp_request_invalid");
    // The client has sent the header too, and Envoy sends a list of all headers.
    let by_the_client = |request: &mut CheckRequest| {
        let of_list = [("x-envoy-auth-partial-body", "false"), ("x-envoy-auth-partial-body", "true")];
        let header =
            |(key, value): (&str, &str)| HeaderValue { key: key.into(), value: value.into(), ..HeaderValue::default() };
        partial(request, None);
        http_of(request).header_map = Some(HeaderMap { headers: of_list.map(header).into() });
    };
    assert_eq!(changed(&by_the_client), "mcp_request_invalid");
    let as_text = |request: &mut CheckRequest| {
        let http = http_of(request);
        http.body = String::from_utf8(std::mem::take(&mut http.raw_body)).unwrap();
    };
    assert_eq!(changed(&as_text), "mcp_request_invalid");
    assert_eq!(changed(&|request| http_of(request).body = "x".to_owned()), "mcp_request_invalid");
    let without_mcp = mcp_authorizer("[[rules]]\nname = 'a'\n");
    assert_eq!(reason(&without_mcp, mcp_request("POST", &[], "no JSON")), "", "a rule without `mcp` does not read it");
}

#[test]
fn headers_must_agree_with_the_message() {
    let authorizer = mcp_authorizer(RULES);
    let list = || message("tools/list", &json!({}));
    for (headers, body, is_valid) in [
        (&[("mcp-method", "tools/call"), ("mcp-name", "read_tool")][..], call_tool("read_tool"), true),
        (&[("Mcp-Method", "tools/call")], call_tool("read_tool"), true),
        (&[("mcp-name", "=?base64?cmVhZF90b29s?=")], call_tool("read_tool"), true),
        (&[("mcp-name", "=?base64?w6l0w6k=?=")], call_tool("été"), true),
        (&[("mcp-name", "=?base64?eA==?=")], call_tool("=?base64?eA==?="), false),
        (&[("mcp-name", "=?base64?PT9iYXNlNjQ/ZUE9PT89?=")], call_tool("=?base64?eA==?="), true),
        (&[("mcp-method", "tools/list")], call_tool("read_tool"), false),
        (&[("mcp-method", "Tools/call")], call_tool("read_tool"), false),
        (&[("mcp-method", "")], call_tool("read_tool"), false),
        (&[("mcp-name", "admin_tool")], call_tool("read_tool"), false),
        (&[("mcp-name", "=?base64?YWRtaW5fdG9vbA==?=")], call_tool("read_tool"), false),
        (&[("mcp-name", "=?BASE64?cmVhZF90b29s?=")], call_tool("read_tool"), false),
        (&[("mcp-name", "=?base64?cmVhZF90b29s")], call_tool("read_tool"), false),
        (&[("mcp-name", "=?base64??=")], call_tool("read_tool"), false),
        (&[("mcp-name", "read_tool,read_tool")], call_tool("read_tool"), false),
        (&[("mcp-name", "read_tool"), ("Mcp-Name", "read_tool")], call_tool("read_tool"), false),
        (&[("mcp-method", "tools/list")], list(), true),
        (&[("mcp-name", "read_tool")], list(), false),
        (&[("mcp-name", "")], list(), false),
    ] {
        let expected = if is_valid { "" } else { "mcp_request_invalid" };
        assert_eq!(reason(&authorizer, mcp_request("POST", headers, body)), expected, "{headers:?}");
    }
    for repeated in ["mcp-method", "mcp-name"] {
        let mut request = mcp_request("POST", &[], call_tool("read_tool"));
        let http = http_of(&mut request);
        let value = if repeated == "mcp-name" { "read_tool" } else { "tools/call" };
        let bearer = http.headers.remove("authorization").unwrap();
        let json = http.headers.remove("content-type").unwrap();
        http.headers.clear();
        let whole = ("x-envoy-auth-partial-body", "false");
        let headers =
            [("authorization", bearer.as_str()), ("content-type", &json), whole, (repeated, value), (repeated, value)];
        let header = |(key, value): &(&str, &str)| HeaderValue {
            key: (*key).into(),
            raw_value: (*value).into(),
            value: String::new(),
        };
        http.header_map = Some(HeaderMap { headers: headers.iter().map(header).collect() });
        assert_eq!(reason(&authorizer, request), "mcp_request_invalid", "{repeated} in a list");
    }
}

/// A service that decodes bodies by their charset would read another message than the sidecar: in UTF-7, `+ACI-` is a quotation mark.
#[test]
fn message_is_json_in_utf_8_without_a_coding() {
    let authorizer = mcp_authorizer(RULES);
    for (headers, is_valid) in [
        (&[("content-type", "application/json")][..], true),
        (&[("Content-Type", "Application/JSON ; charset=UTF-8")], true),
        (&[("content-type", "application/json;charset=\"utf-8\"")], true),
        (&[("content-type", "application/json"), ("content-encoding", "identity")], true),
        (&[("content-type", "application/json; charset=utf-7")], false),
        (&[("content-type", "application/json; charset=utf-16")], false),
        (&[("content-type", "application/json; charset=utf-8; charset=utf-7")], false),
        (&[("content-type", "application/json; charset=utf-8, application/json; charset=utf-7")], false),
        (&[("content-type", "application/json; a=b")], false),
        (&[("content-type", "application/jsonp")], false),
        (&[("content-type", "application/json-rpc")], false),
        (&[("content-type", "text/plain")], false),
        (&[("content-type", "")], false),
        (&[("content-type", "application/json"), ("Content-Type", "application/json")], false),
        (&[("content-type", "application/json"), ("content-encoding", "br")], false),
        (&[("content-type", "application/json"), ("content-encoding", "identity, gzip")], false),
    ] {
        let expected = if is_valid { "" } else { "mcp_request_invalid" };
        let request = mcp_request("POST", headers, call_tool("read_tool"));
        assert_eq!(reason(&authorizer, request), expected, "{headers:?}");
    }
}

#[test]
fn session_requests_have_neither_message_nor_body() {
    let authorizer = mcp_authorizer(RULES);
    for (method, headers, has_message, is_valid) in [
        ("GET", &[][..], false, true),
        ("DELETE", &[("mcp-session-id", "1")], false, true),
        ("GET", &[("content-length", "0")], false, true),
        ("GET", &[("content-length", "1")], false, false),
        ("DELETE", &[("Content-Length", "1")], false, false),
        ("GET", &[("transfer-encoding", "chunked")], false, false),
        ("GET", &[("upgrade", "websocket")], false, false),
        ("GET", &[("mcp-method", "tools/call")], false, false),
        ("GET", &[], true, false),
        ("DELETE", &[], true, false),
        ("PUT", &[], true, false),
        ("post", &[], true, false),
        ("POST", &[], false, false),
        ("HEAD", &[], false, false),
        ("OPTIONS", &[], false, false),
        ("", &[], false, false),
    ] {
        let body = if has_message { call_tool("read_tool") } else { String::new() };
        let expected = if is_valid { "" } else { "mcp_request_invalid" };
        assert_eq!(reason(&authorizer, mcp_request(method, headers, body)), expected, "{method} {headers:?}");
    }
}

#[test]
fn rule_itself_still_applies() {
    let authorizer = mcp_authorizer(&RULES.replace("name = \"mcp\"", "name = \"mcp\"\nrequire_roles = \"auditor\""));
    assert_eq!(reason(&authorizer, mcp_request("GET", &[], "")), "role_missing");
    assert_eq!(reason(&authorizer, mcp_request("POST", &[], call_tool("open_tool"))), "role_missing");
    let mut without_token = mcp_request("POST", &[], call_tool("read_tool"));
    http_of(&mut without_token).headers.remove("authorization");
    assert_eq!(reason(&authorizer, without_token), "token_missing");
}

#[test]
fn refusals_name_the_rule_and_have_no_challenge() {
    let authorizer = mcp_authorizer(RULES);
    let response = check(&authorizer, mcp_request("POST", &[], ""));
    let metadata = format!("{:?}", response.dynamic_metadata);
    assert!(metadata.contains("\"rule\": Value { kind: Some(StringValue(\"mcp\"))"), "{metadata}");
    let Some(HttpResponse::DeniedResponse(denied)) = response.http_response else { panic!("it is denied") };
    let names: Vec<_> = denied.headers.iter().map(|option| option.header.as_ref().unwrap().key.as_str()).collect();
    assert_eq!((denied.status.unwrap().code, names), (403, vec!["content-type", "x-agent-reason"]));
}

#[test]
fn dry_run_allows_refused_messages_without_identity() {
    let authorizer = mcp_authorizer(&RULES.replace("name = \"mcp\"", "name = \"mcp\"\ndry_run = true"));
    for body in [String::new(), call_tool("unknown"), call_tool("admin_tool")] {
        let ok_response = expect_allowed(check(&authorizer, mcp_request("POST", &[], body)));
        assert!(ok_response.headers.is_empty());
        assert_eq!(ok_response.headers_to_remove, ["authorization"]);
    }
    let allowed = expect_allowed(check(&authorizer, mcp_request("POST", &[], call_tool("read_tool"))));
    assert_eq!(allowed.headers.len(), 7);
}

#[test]
fn explanation_describes_the_message() {
    let authorizer = mcp_authorizer(RULES);
    let answer = |request: &CheckRequest, question: &str| {
        let explanation = authorizer.explain(&decoded(request)).unwrap();
        let answer = explanation.questions.iter().find(|it| it.question == question).unwrap();
        format!("{} {}", answer.answer, answer.detail)
    };
    let call = |name| mcp_request("POST", &[], call_tool(name));
    assert_eq!(
        answer(&call("admin_tool"), "rule"),
        "ok `mcp`, line 2 of the rules file; require_permissions = admin; MCP: tools/call admin_tool"
    );
    assert_eq!(answer(&call("unknown"), "rule"), "ok `mcp`, line 2 of the rules file; MCP: tools/call unknown");
    let refused = "refused No rule allows this MCP method, tool, prompt or resource";
    assert_eq!(answer(&call("unknown"), "mcp"), refused, "the token is checked before");
    assert_eq!(
        answer(&mcp_request("POST", &[], ""), "rule"),
        "refused The request is not exactly one MCP message, or its headers could mean another one: `mcp`, line 2 of the rules file; \
         MCP: there is no body, or the proxy does not send it: set `with_request_body`"
    );
}
