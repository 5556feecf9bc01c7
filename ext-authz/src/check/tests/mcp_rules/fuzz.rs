//! Property tests of rules about MCP: the metadata is read as by Envoy's definition, and a message is allowed only if a simple reference
//! implementation allows it.

use super::{super::fuzz::check_decoded, *};
use countersign_mangle::{any_bytes, any_text, cases_divided_by, mutated_bytes};
use proptest::{collection::vec, prelude::*, sample::select};
use std::sync::LazyLock;

static MCP_AUTHORIZER: LazyLock<Authorizer> = LazyLock::new(|| mcp_authorizer(RULES));

/// The names of tools, methods and other values, valid and invalid ones.
const TEXTS: [&str; 12] = [
    "read_tool",
    "open_tool",
    "admin_tool",
    "tools/call",
    "prompts/get",
    "resources/read",
    "file:///a",
    "tools/list",
    "resources/subscribe",
    "mcp_ok",
    "2.0",
    "",
];

/// The fields of the metadata.
const FIELDS: [&str; 8] =
    ["is_mcp_request", "status", "jsonrpc", "method", "params", "passthrough_reason", "is_exceeding_limit", "id"];

fn any_value() -> BoxedStrategy<Value> {
    let scalar = prop_oneof![
        6 => select(&TEXTS[..]).prop_map(text),
        1 => any_text().prop_map(|it| text(&it)),
        1 => any::<bool>().prop_map(|it| value(Kind::BoolValue(it))),
        1 => any::<f64>().prop_map(|it| value(Kind::NumberValue(it))),
        1 => Just(value(Kind::NullValue(0))),
        1 => Just(Value { kind: None }),
    ];
    let nested = |inner: BoxedStrategy<Value>| {
        let fields = vec((select(&["name", "uri", "_meta"][..]), inner.clone()), 0..3);
        let list = vec(inner, 0..3).prop_map(|values| value(Kind::ListValue(ListValue { values })));
        prop_oneof![fields.prop_map(|fields| object(&fields)), list].boxed()
    };
    scalar.boxed().prop_recursive(3, 8, 3, nested).boxed()
}

/// Metadata that is usually valid but for one or two fields.
fn metadata() -> BoxedStrategy<Struct> {
    let message = (select(&TEXTS[3..9]), prop_oneof![3 => select(&TEXTS[..]).prop_map(Some), 1 => Just(None)]);
    let message = message.prop_map(|(method, name)| mcp::metadata_of(McpMessage { method, name }));
    let change = (select(&FIELDS[..]), prop_oneof![3 => any_value().prop_map(Some), 1 => Just(None)]);
    (message, prop_oneof![2 => Just(vec![]), 3 => vec(change, 1..3)])
        .prop_map(|(mut metadata, changes)| {
            for (name, change) in changes {
                match change {
                    Some(value) => drop(metadata.fields.insert(name.to_owned(), value)),
                    None => drop(metadata.fields.remove(name)),
                }
            }
            metadata
        })
        .boxed()
}

fn requests() -> BoxedStrategy<CheckRequest> {
    let headers = vec((select(&["mcp-method", "Mcp-Name", "content-length"][..]), select(&TEXTS[..])), 0..2);
    let headers = prop_oneof![2 => Just(vec![]), 1 => headers];
    let metadata = prop_oneof![8 => metadata().prop_map(Some), 1 => Just(None)];
    let method = prop_oneof![6 => Just("POST"), 2 => select(&["GET", "DELETE", "PUT", "post"][..])];
    (method, headers, metadata).prop_map(|(method, headers, metadata)| mcp_request(method, &headers, metadata)).boxed()
}

/// The reason of a denial by [`RULES`] for a request with a valid token; empty if it is allowed.
fn expected_reason(request: &CheckRequest) -> &'static str {
    let attributes = request.attributes.as_ref().unwrap();
    let http = attributes.request.as_ref().unwrap().http.as_ref().unwrap();
    let metadata = attributes.metadata_context.as_ref().and_then(|it| it.filter_metadata.get(mcp::MCP_FILTER));
    match (http.method.as_str(), metadata) {
        ("GET" | "DELETE", None) if !http.headers.keys().any(|name| name != "authorization") => "",
        ("POST", Some(metadata)) => match parse_message(metadata) {
            Some((method, name)) if headers_agree(http, &method, name.as_deref()) => required(&method, name.as_deref()),
            _ => "mcp_request_invalid",
        },
        _ => "mcp_request_invalid",
    }
}

fn parse_message(metadata: &Struct) -> Option<(String, Option<String>)> {
    let kind = |name: &str| metadata.fields.get(name)?.kind.clone();
    let is_text = |name: &str, text: &str| kind(name) == Some(Kind::StringValue(text.to_owned()));
    let non_empty = |kind: Option<Kind>| match kind {
        Some(Kind::StringValue(text)) if !text.is_empty() && !text.contains(char::is_control) => Some(text),
        _ => None,
    };
    let is_parsed = kind("is_mcp_request") == Some(Kind::BoolValue(true)) && is_text("status", "mcp_ok");
    let is_whole = ["passthrough_reason", "is_exceeding_limit"].iter().all(|name| !metadata.fields.contains_key(*name));
    if !is_parsed || !is_whole || !is_text("jsonrpc", "2.0") {
        return None;
    }
    let method = non_empty(kind("method"))?;
    let parameter = match method.as_str() {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        _ => return Some((method, None)),
    };
    let Some(Kind::StructValue(params)) = kind("params") else { return None };
    let name = non_empty(params.fields.get(parameter)?.kind.clone())?;
    Some((method, Some(name)))
}

fn headers_agree(http: &HttpRequest, method: &str, name: Option<&str>) -> bool {
    http.headers.iter().all(|(header, value)| match header.to_ascii_lowercase().as_str() {
        "mcp-method" => value == method,
        "mcp-name" => Some(value.as_str()) == name,
        _ => true,
    })
}

fn required(method: &str, name: Option<&str>) -> &'static str {
    match (method, name) {
        ("tools/call", Some("read_tool" | "open_tool" | "été" | "=?base64?eA==?="))
        | ("prompts/get", Some(_))
        | ("resources/read", Some("file:///a"))
        | ("resources/subscribe" | "tools/list" | "initialize" | "ping", None) => "",
        ("tools/call", Some("admin_tool")) | ("logging/setLevel", None) => "permission_missing",
        _ => "mcp_not_allowed",
    }
}

fn valid_request() -> CheckRequest {
    let nested = object(&[("name", text("read_tool")), ("_meta", object(&[("name", text("x"))]))]);
    mcp_request("POST", &[("mcp-name", "read_tool")], Some(changed_metadata(&[("params", Some(nested))])))
}

proptest! {
    #![proptest_config(cases_divided_by(1))]

    #[test]
    fn messages_get_the_expected_verdict(request in requests()) {
        let expected = expected_reason(&request);
        prop_assert_eq!(reason(&MCP_AUTHORIZER, request), expected);
    }

    /// If Envoy's definition can decode some bytes, they get the same response as the canonical encoding of the decoded request.
    #[test]
    fn mutated_messages_are_decoded_as_by_the_definition_of_envoy(bytes in mutated_bytes(&valid_request().encode_to_vec())) {
        if let Ok(request) = CheckRequest::decode(&bytes[..]) {
            check_decoded(&MCP_AUTHORIZER, &bytes, request)?;
        }
    }

    #[test]
    fn merged_messages_are_decoded_as_by_the_definition_of_envoy(
        requests in vec(requests(), 1..4), parts in vec(vec(metadata(), 1..3), 0..3), bytes in any_bytes(),
    ) {
        // Encodings that follow each other are merged: entries of maps occur twice, and so does the value of an entry.
        let mut encoded: Vec<u8> = requests.iter().flat_map(Message::encode_to_vec).collect();
        encoded.extend(parts.iter().flat_map(|parts| with_metadata_parts(parts.iter().map(Message::encode_to_vec))));
        let end = encoded.len();
        encoded.extend(bytes);
        for end in [end, encoded.len(), encoded.len() / 2] {
            if let Ok(request) = CheckRequest::decode(&encoded[..end]) {
                check_decoded(&MCP_AUTHORIZER, &encoded[..end], request)?;
            }
        }
    }
}
