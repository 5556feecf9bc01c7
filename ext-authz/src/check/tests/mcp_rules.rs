//! Tests of rules about MCP: which metadata of Envoy, headers and HTTP method make a valid request, and which permissions it needs.

mod fuzz;

use super::*;
use crate::rules::McpMessage;
use countersign_proto::envoy::config::core::v3::Metadata;
use prost_types::{ListValue, Struct, Value, value::Kind};

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

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

fn text(text: &str) -> Value {
    value(Kind::StringValue(text.to_owned()))
}

fn object(fields: &[(&str, Value)]) -> Value {
    let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    value(Kind::StructValue(Struct { fields }))
}

/// A request with a valid token, these headers and this metadata of the MCP filter. With metadata, the default content type is
/// JSON.
fn mcp_request(method: &str, headers: &[(&str, &str)], metadata: Option<Struct>) -> CheckRequest {
    let bearer = format!("Bearer {}", TestIssuer::new(1).sign(&claims()));
    let has_type = metadata.is_none() || headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    let content_type = [("content-type", "application/json")];
    let content_type = if has_type { &[][..] } else { &content_type };
    let headers = [&[("authorization", bearer.as_str())], content_type, headers].concat();
    let mut request = request(&headers, &[]);
    let attributes = request.attributes.as_mut().unwrap();
    attributes.request.as_mut().unwrap().http.as_mut().unwrap().method = method.to_owned();
    let filter_metadata = metadata.map(|metadata| (mcp::MCP_FILTER.to_owned(), metadata)).into_iter().collect();
    attributes.metadata_context = Some(Metadata { filter_metadata, ..Metadata::default() });
    request
}

/// The metadata of a call of a tool.
fn tool(name: &str) -> Struct {
    mcp::metadata_of(McpMessage { method: "tools/call", name: Some(name) })
}

/// The metadata of a call of the tool `read_tool`, with other values of these fields. `None` removes a field.
fn changed_metadata(changes: &[(&str, Option<Value>)]) -> Struct {
    let mut metadata = tool("read_tool");
    metadata.fields.insert("id".to_owned(), value(Kind::NumberValue(1.0)));
    for (name, change) in changes {
        match change {
            Some(value) => drop(metadata.fields.insert((*name).to_owned(), value.clone())),
            None => drop(metadata.fields.remove(*name)),
        }
    }
    metadata
}

/// The reason of a denial; empty if the request is allowed.
fn reason(authorizer: &Authorizer, request: CheckRequest) -> String {
    let response = check(authorizer, request);
    if response.status.as_ref().unwrap().code == 0 { String::new() } else { expect_denied(response).1 }
}

#[test]
fn only_metadata_of_one_parsed_message_is_valid() {
    let authorizer = mcp_authorizer(RULES);
    let null = || value(Kind::NullValue(0));
    let list = || value(Kind::ListValue(ListValue { values: vec![text("read_tool")] }));
    let params = |name: Value| object(&[("name", name)]);
    for (field, change) in [
        ("is_mcp_request", None),
        ("is_mcp_request", Some(value(Kind::BoolValue(false)))),
        ("is_mcp_request", Some(text("true"))),
        ("is_mcp_request", Some(value(Kind::NumberValue(1.0)))),
        ("status", None),
        ("status", Some(text("mcp_body_too_large"))),
        ("status", Some(null())),
        ("jsonrpc", None),
        ("jsonrpc", Some(text("1.0"))),
        ("jsonrpc", Some(value(Kind::NumberValue(2.0)))),
        ("passthrough_reason", Some(text("mcp_body_too_large"))),
        ("passthrough_reason", Some(null())),
        ("is_exceeding_limit", Some(value(Kind::BoolValue(false)))),
        ("is_exceeding_limit", Some(Value { kind: None })),
        ("method", None),
        ("method", Some(text(""))),
        ("method", Some(text("a\u{85}"))),
        ("method", Some(null())),
        ("method", Some(list())),
        ("params", None),
        ("params", Some(list())),
        ("params", Some(object(&[]))),
        ("params", Some(object(&[("Name", text("read_tool"))]))),
        ("params", Some(object(&[("uri", text("read_tool"))]))),
        ("params", Some(params(text("")))),
        ("params", Some(params(text("read_tool\0")))),
        ("params", Some(params(null()))),
        ("params", Some(params(value(Kind::NumberValue(5.0))))),
        ("params", Some(params(value(Kind::BoolValue(true))))),
        ("params", Some(params(list()))),
        ("params", Some(params(object(&[("name", text("read_tool"))])))),
    ] {
        let metadata = changed_metadata(&[(field, change.clone())]);
        let reason = reason(&authorizer, mcp_request("POST", &[], Some(metadata)));
        assert_eq!(reason, "mcp_request_invalid", "{field} {change:?}");
    }
    let with_meta = params(text("read_tool"));
    let Some(Kind::StructValue(mut with_meta)) = with_meta.kind else { panic!("it is a struct") };
    with_meta.fields.insert("_meta".to_owned(), object(&[("name", object(&[("name", text("admin_tool"))]))]));
    let metadata = changed_metadata(&[("params", Some(value(Kind::StructValue(with_meta))))]);
    assert_eq!(reason(&authorizer, mcp_request("POST", &[], Some(metadata))), "");
}

#[test]
fn only_the_metadata_of_the_filter_counts() {
    let authorizer = mcp_authorizer(RULES);
    let mut request = mcp_request("POST", &[], Some(changed_metadata(&[])));
    let metadata = request.attributes.as_mut().unwrap().metadata_context.as_mut().unwrap();
    let of_filter = metadata.filter_metadata.remove(mcp::MCP_FILTER).unwrap();
    metadata.filter_metadata.insert("mcp_proxy".to_owned(), of_filter);
    assert_eq!(reason(&authorizer, request.clone()), "mcp_request_invalid");
    let without_mcp = mcp_authorizer("[[rules]]\nname = 'a'\n");
    assert_eq!(reason(&without_mcp, request), "", "a rule without `mcp` does not read it");
    let without_metadata = mcp_request("POST", &[("content-type", "application/json")], None);
    assert_eq!(reason(&authorizer, without_metadata), "mcp_request_invalid");
}

/// Encodes a Protobuf field whose value is a message, a string or bytes.
fn encoded_field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut encoded = vec![number << 3 | 2];
    prost::encode_length_delimiter(content.len(), &mut encoded).unwrap();
    encoded.extend(content);
    encoded
}

/// Encodes a request whose only entry of metadata has all these values, which decoders merge.
fn with_metadata_parts(values: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let values = values.map(|value| encoded_field(2, &value));
    let entry: Vec<u8> =
        std::iter::once(encoded_field(1, mcp::MCP_FILTER.as_bytes())).chain(values).flatten().collect();
    // `attributes.metadata_context.filter_metadata`
    encoded_field(1, &encoded_field(11, &encoded_field(1, &entry)))
}

#[test]
fn repeated_parts_of_metadata_are_merged_and_repeated_entries_replaced() {
    let authorizer = mcp_authorizer(RULES);
    let params = |name| object(&[("name", text(name))]);
    // The entry `params` of a map, whose value is a message that occurs twice.
    let value = [params("admin_tool"), params("read_tool")].map(|value| value.encode_to_vec()).concat();
    let repeated = encoded_field(1, &[encoded_field(1, b"params"), encoded_field(2, &value)].concat());
    let without_status = changed_metadata(&[("status", None)]);
    let status = Struct { fields: [("status".to_owned(), text("mcp_ok"))].into() };
    let encoded = |parts: &[&Struct]| with_metadata_parts(parts.iter().map(|part| part.encode_to_vec()));
    let unparsed = Struct::default();
    for (name, metadata, expected) in [
        ("merged", encoded(&[&without_status, &status]), ""),
        ("last field", encoded(&[&tool("admin_tool"), &tool("read_tool")]), ""),
        ("last field, refused", encoded(&[&tool("read_tool"), &tool("admin_tool")]), "permission_missing"),
        ("last parameter", with_metadata_parts([tool("x").encode_to_vec(), repeated].into_iter()), ""),
        ("last entry", [encoded(&[&tool("read_tool")]), encoded(&[&unparsed])].concat(), "mcp_request_invalid"),
        ("last entry, valid", [encoded(&[&unparsed]), encoded(&[&tool("read_tool")])].concat(), ""),
    ] {
        let json = [("content-type", "application/json")];
        let bytes = [mcp_request("POST", &json, None).encode_to_vec(), metadata].concat();
        let read = super::super::CheckRequest::decode(&bytes[..]).unwrap();
        let response = authorizer.check(&read);
        assert_eq!(
            response,
            check(&authorizer, CheckRequest::decode(&bytes[..]).unwrap()),
            "{name}: as Envoy's definition"
        );
        let reason =
            if response.status.as_ref().unwrap().code == 0 { String::new() } else { expect_denied(response).1 };
        assert_eq!(reason, expected, "{name}");
    }
}

#[test]
fn depth_of_a_message_is_no_grpc_error() {
    let deep = (0..1000).fold(text("x"), |value, _| object(&[("a", value)]));
    let metadata = changed_metadata(&[("params", Some(object(&[("name", text("read_tool")), ("_meta", deep)])))]);
    assert_eq!(reason(&mcp_authorizer(RULES), mcp_request("POST", &[], Some(metadata))), "");
}

#[test]
fn headers_must_agree_with_the_message() {
    let authorizer = mcp_authorizer(RULES);
    let list = || mcp::metadata_of(McpMessage { method: "tools/list", name: None });
    for (headers, metadata, is_valid) in [
        (&[("mcp-method", "tools/call"), ("mcp-name", "read_tool")][..], tool("read_tool"), true),
        (&[("Mcp-Method", "tools/call")], tool("read_tool"), true),
        (&[("mcp-name", "=?base64?cmVhZF90b29s?=")], tool("read_tool"), true),
        (&[("mcp-name", "=?base64?w6l0w6k=?=")], tool("été"), true),
        (&[("mcp-name", "=?base64?eA==?=")], tool("=?base64?eA==?="), false),
        (&[("mcp-name", "=?base64?PT9iYXNlNjQ/ZUE9PT89?=")], tool("=?base64?eA==?="), true),
        (&[("mcp-method", "tools/list")], tool("read_tool"), false),
        (&[("mcp-method", "Tools/call")], tool("read_tool"), false),
        (&[("mcp-method", "")], tool("read_tool"), false),
        (&[("mcp-name", "admin_tool")], tool("read_tool"), false),
        (&[("mcp-name", "=?base64?YWRtaW5fdG9vbA==?=")], tool("read_tool"), false),
        (&[("mcp-name", "=?BASE64?cmVhZF90b29s?=")], tool("read_tool"), false),
        (&[("mcp-name", "=?base64?cmVhZF90b29s")], tool("read_tool"), false),
        (&[("mcp-name", "=?base64??=")], tool("read_tool"), false),
        (&[("mcp-name", "read_tool,read_tool")], tool("read_tool"), false),
        (&[("mcp-name", "read_tool"), ("Mcp-Name", "read_tool")], tool("read_tool"), false),
        (&[("mcp-method", "tools/list")], list(), true),
        (&[("mcp-name", "read_tool")], list(), false),
        (&[("mcp-name", "")], list(), false),
    ] {
        let expected = if is_valid { "" } else { "mcp_request_invalid" };
        assert_eq!(reason(&authorizer, mcp_request("POST", headers, Some(metadata))), expected, "{headers:?}");
    }
    for repeated in ["mcp-method", "mcp-name"] {
        let mut request = mcp_request("POST", &[], Some(tool("read_tool")));
        let http = request.attributes.as_mut().unwrap().request.as_mut().unwrap().http.as_mut().unwrap();
        let value = if repeated == "mcp-name" { "read_tool" } else { "tools/call" };
        let bearer = http.headers.remove("authorization").unwrap();
        let json = http.headers.remove("content-type").unwrap();
        let headers =
            [("authorization", bearer.as_str()), ("content-type", &json), (repeated, value), (repeated, value)];
        let header = |(key, value): &(&str, &str)| HeaderValue {
            key: (*key).into(),
            raw_value: (*value).into(),
            value: String::new(),
        };
        http.header_map = Some(HeaderMap { headers: headers.iter().map(header).collect() });
        assert_eq!(reason(&authorizer, request), "mcp_request_invalid", "{repeated} in a list");
    }
}

/// A service that decodes bodies by their charset would read another message than Envoy: in UTF-7, `+ACI-` is a quotation mark.
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
        let request = mcp_request("POST", headers, Some(changed_metadata(&[])));
        assert_eq!(reason(&authorizer, request), expected, "{headers:?}");
    }
}

#[test]
fn session_requests_have_neither_message_nor_body() {
    let authorizer = mcp_authorizer(RULES);
    for (method, headers, has_metadata, is_valid) in [
        ("GET", &[][..], false, true),
        ("DELETE", &[("mcp-session-id", "1")], false, true),
        ("GET", &[("content-length", "0")], false, true),
        ("GET", &[("content-length", "1")], false, false),
        ("DELETE", &[("Content-Length", "1")], false, false),
        ("GET", &[("transfer-encoding", "chunked")], false, false),
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
        let metadata = has_metadata.then(|| changed_metadata(&[]));
        let expected = if is_valid { "" } else { "mcp_request_invalid" };
        assert_eq!(reason(&authorizer, mcp_request(method, headers, metadata)), expected, "{method} {headers:?}");
    }
}

#[test]
fn rule_itself_still_applies() {
    let authorizer = mcp_authorizer(&RULES.replace("name = \"mcp\"", "name = \"mcp\"\nrequire_roles = \"auditor\""));
    assert_eq!(reason(&authorizer, mcp_request("GET", &[], None)), "role_missing");
    let open_tool = tool("open_tool");
    assert_eq!(reason(&authorizer, mcp_request("POST", &[], Some(open_tool))), "role_missing");
    let mut without_token = mcp_request("POST", &[], Some(changed_metadata(&[])));
    let attributes = without_token.attributes.as_mut().unwrap();
    attributes.request.as_mut().unwrap().http.as_mut().unwrap().headers.remove("authorization");
    assert_eq!(reason(&authorizer, without_token), "token_missing");
}

#[test]
fn refusals_name_the_rule_and_have_no_challenge() {
    let authorizer = mcp_authorizer(RULES);
    let response = check(&authorizer, mcp_request("POST", &[], None));
    let metadata = format!("{:?}", response.dynamic_metadata);
    assert!(metadata.contains("\"rule\": Value { kind: Some(StringValue(\"mcp\"))"), "{metadata}");
    let Some(HttpResponse::DeniedResponse(denied)) = response.http_response else { panic!("it is denied") };
    let names: Vec<_> = denied.headers.iter().map(|option| option.header.as_ref().unwrap().key.as_str()).collect();
    assert_eq!((denied.status.unwrap().code, names), (403, vec!["content-type", "x-agent-reason"]));
}

#[test]
fn dry_run_allows_refused_messages_without_identity() {
    let authorizer = mcp_authorizer(&RULES.replace("name = \"mcp\"", "name = \"mcp\"\ndry_run = true"));
    for metadata in [None, Some(tool("unknown")), Some(tool("admin_tool"))] {
        let ok_response = expect_allowed(check(&authorizer, mcp_request("POST", &[], metadata)));
        assert!(ok_response.headers.is_empty());
        assert_eq!(ok_response.headers_to_remove, ["authorization"]);
    }
    let allowed = expect_allowed(check(&authorizer, mcp_request("POST", &[], Some(tool("read_tool")))));
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
    let call = |name| mcp_request("POST", &[], Some(tool(name)));
    assert_eq!(
        answer(&call("admin_tool"), "rule"),
        "ok `mcp`, line 2 of the rules file; require_permissions = admin; MCP: tools/call admin_tool"
    );
    assert_eq!(answer(&call("unknown"), "rule"), "ok `mcp`, line 2 of the rules file; MCP: tools/call unknown");
    let refused = "refused No rule allows this MCP method, tool, prompt or resource";
    assert_eq!(answer(&call("unknown"), "mcp"), refused, "the token is checked before");
    assert_eq!(
        answer(&mcp_request("POST", &[], None), "rule"),
        "refused The request is not exactly one MCP message that the proxy has parsed, or its headers could mean another one: `mcp`, line 2 of the rules file; \
         MCP: there is no MCP message"
    );
}
