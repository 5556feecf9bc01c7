//! Property tests of rules about MCP: a message is allowed only if a simple reference implementation allows it.

use super::{super::fuzz::check_decoded, *};
use countersign_mangle::{any_bytes, any_text, cases_divided_by, mutated_bytes};
use proptest::{collection::vec, prelude::*, sample::select};
use std::{collections::BTreeSet, sync::LazyLock};

static MCP_AUTHORIZER: LazyLock<Authorizer> = LazyLock::new(|| mcp_authorizer(RULES));

/// The names of tools, methods and other values, valid and invalid ones.
const TEXTS: [&str; 11] = [
    "read_tool",
    "open_tool",
    "admin_tool",
    "tools/call",
    "prompts/get",
    "resources/read",
    "file:///a",
    "tools/list",
    "resources/subscribe",
    "2.0",
    "",
];

/// Keys that are read, and others that a parser could take for them.
const KEYS: [&str; 12] =
    ["jsonrpc", "id", "method", "params", "result", "error", "name", "uri", "Method", "paramſ", "NAME", "name\0"];

/// A JSON value, with the fields of objects in their order, and perhaps twice.
#[derive(Debug, Clone)]
enum Json {
    Text(String),
    Other(&'static str),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
}

impl Json {
    fn encode(&self) -> String {
        match self {
            Self::Text(text) => Value::from(text.as_str()).to_string(),
            Self::Other(other) => (*other).to_owned(),
            Self::List(items) => format!("[{}]", items.iter().map(Self::encode).collect::<Vec<_>>().join(" , ")),
            Self::Object(fields) => {
                let field =
                    |(key, value): &(String, Self)| format!("{}: {}", Value::from(key.as_str()), value.encode());
                format!("{{{}}}", fields.iter().map(field).collect::<Vec<_>>().join(","))
            }
        }
    }

    fn has_key_twice(&self) -> bool {
        match self {
            Self::Text(_) | Self::Other(_) => false,
            Self::List(items) => items.iter().any(Self::has_key_twice),
            Self::Object(fields) => {
                let keys: BTreeSet<_> = fields.iter().map(|(key, _)| key).collect();
                keys.len() < fields.len() || fields.iter().any(|(_, value)| value.has_key_twice())
            }
        }
    }

    fn field(&self, key: &str) -> Option<&Self> {
        let Self::Object(fields) = self else { return None };
        fields.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    fn text(&self, key: &str) -> Option<&str> {
        match self.field(key)? {
            Self::Text(text) => Some(text),
            Self::Other(_) | Self::List(_) | Self::Object(_) => None,
        }
    }
}

fn any_json() -> BoxedStrategy<Json> {
    let scalar = prop_oneof![
        6 => select(&TEXTS[..]).prop_map(|it| Json::Text(it.to_owned())),
        1 => any_text().prop_map(Json::Text),
        2 => select(&["null", "true", "-1.5e3"][..]).prop_map(Json::Other),
    ];
    let nested = |inner: BoxedStrategy<Json>| {
        let fields = vec((select(&KEYS[..]).prop_map(str::to_owned), inner.clone()), 0..3).prop_map(Json::Object);
        prop_oneof![fields, vec(inner, 0..3).prop_map(Json::List)].boxed()
    };
    scalar.boxed().prop_recursive(3, 8, 3, nested).boxed()
}

/// A message that is usually valid but for one or two fields.
fn messages() -> BoxedStrategy<Json> {
    let name = prop_oneof![3 => select(&TEXTS[..]).prop_map(Some), 1 => Just(None)];
    let valid = (select(&TEXTS[3..9]), select(&["name", "uri"][..]), name).prop_map(|(method, key, name)| {
        let text = |text: &str| Json::Text(text.to_owned());
        let params = name.map(|name| (key.to_owned(), text(name))).into_iter().collect();
        let fields = [("jsonrpc", text("2.0")), ("method", text(method)), ("params", Json::Object(params))];
        fields.map(|(key, value)| (key.to_owned(), value)).to_vec()
    });
    let further = vec((select(&KEYS[..]).prop_map(str::to_owned), any_json()), 1..3);
    let changes = prop_oneof![2 => Just(vec![]), 3 => further];
    (valid, changes, any::<bool>())
        .prop_map(|(mut fields, changes, replaces)| {
            if replaces {
                fields.retain(|(key, _)| !changes.iter().any(|(changed, _)| changed == key));
            }
            fields.extend(changes);
            Json::Object(fields)
        })
        .boxed()
}

/// A request, and its message.
fn requests() -> BoxedStrategy<(CheckRequest, Option<Json>)> {
    let headers = vec((select(&["mcp-method", "Mcp-Name", "content-length"][..]), select(&TEXTS[..])), 0..2);
    let headers = prop_oneof![2 => Just(vec![]), 1 => headers];
    let message = prop_oneof![8 => messages().prop_map(Some), 1 => any_json().prop_map(Some), 1 => Just(None)];
    let method = prop_oneof![6 => Just("POST"), 2 => select(&["GET", "DELETE", "PUT", "post"][..])];
    (method, headers, message)
        .prop_map(|(method, headers, message)| {
            let body = message.as_ref().map(Json::encode).unwrap_or_default();
            (mcp_request(method, &headers, body), message)
        })
        .boxed()
}

/// The reason of a denial by [`RULES`] for a request with a valid token; empty if it is allowed.
fn expected_reason(request: &mut CheckRequest, message: Option<&Json>) -> &'static str {
    let http = http_of(request);
    match (http.method.as_str(), message) {
        ("GET" | "DELETE", None) if !http.headers.keys().any(|name| name != "authorization") => "",
        ("POST", Some(message)) => match read(message) {
            Some(Read::Response) if headers_agree(http, None, None) => "",
            Some(Read::Call(method, name)) if headers_agree(http, Some(&method), name.as_deref()) => {
                required(&method, name.as_deref())
            }
            _ => "mcp_request_invalid",
        },
        _ => "mcp_request_invalid",
    }
}

/// A valid message.
enum Read {
    /// The method and the name.
    Call(String, Option<String>),
    Response,
}

/// Reads a message; `None` if it is not valid.
fn read(message: &Json) -> Option<Read> {
    let has_one_of = |json: &Json, keys: &[&str]| keys.iter().any(|key| json.field(key).is_some());
    let params = message.field("params");
    let is_ambiguous = message.has_key_twice()
        || has_one_of(message, &["Method", "paramſ", "name\0"])
        || params.is_some_and(|params| has_one_of(params, &["NAME", "name\0"]));
    if is_ambiguous || message.text("jsonrpc") != Some("2.0") {
        return None;
    }
    let answers = message.field("result").is_some() || message.field("error").is_some();
    if message.field("method").is_none() {
        return answers.then_some(Read::Response);
    }
    if answers {
        return None;
    }
    let is_valid = |text: &&str| !text.is_empty() && !text.contains(char::is_control);
    let method = message.text("method").filter(is_valid)?;
    let parameter = match method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        _ => return Some(Read::Call(method.to_owned(), None)),
    };
    let name = params?.text(parameter).filter(is_valid)?;
    Some(Read::Call(method.to_owned(), Some(name.to_owned())))
}

fn headers_agree(http: &HttpRequest, method: Option<&str>, name: Option<&str>) -> bool {
    http.headers.iter().all(|(header, value)| match header.to_ascii_lowercase().as_str() {
        "mcp-method" => Some(value.as_str()) == method,
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

proptest! {
    #![proptest_config(cases_divided_by(1))]

    #[test]
    fn messages_get_the_expected_verdict((request, message) in requests()) {
        let expected = expected_reason(&mut request.clone(), message.as_ref());
        prop_assert_eq!(reason(&MCP_AUTHORIZER, request), expected);
    }

    /// A body that differs from a valid one in a few bytes never causes a panic, and is read as by a general parser, or refused.
    #[test]
    fn mutated_bodies_are_read_as_by_a_general_parser(body in mutated_bytes(call_tool("read_tool").as_bytes())) {
        let verdict = reason(&MCP_AUTHORIZER, mcp_request("POST", &[], body.clone()));
        if verdict != "mcp_request_invalid" {
            let parsed: Value = serde_json::from_slice(&body).unwrap();
            let (method, name) = (parsed["method"].as_str(), parsed["params"]["name"].as_str());
            let name = name.filter(|_| method == Some("tools/call"));
            prop_assert_eq!(verdict, method.map_or("", |method| required(method, name)));
        }
    }

    /// If Envoy's definition can decode some bytes, they get the same response as the canonical encoding of the decoded request.
    #[test]
    fn mutated_messages_are_decoded_as_by_the_definition_of_envoy(
        bytes in mutated_bytes(&mcp_request("POST", &[("mcp-name", "read_tool")], call_tool("read_tool")).encode_to_vec()),
    ) {
        if let Ok(request) = CheckRequest::decode(&bytes[..]) {
            check_decoded(&MCP_AUTHORIZER, &bytes, request)?;
        }
    }

    #[test]
    fn merged_messages_are_decoded_as_by_the_definition_of_envoy(requests in vec(requests(), 1..4), bytes in any_bytes()) {
        // Encodings that follow each other are merged: entries of maps occur twice, and so do the body and the method.
        let mut encoded: Vec<u8> = requests.iter().flat_map(|(request, _)| request.encode_to_vec()).collect();
        let end = encoded.len();
        encoded.extend(bytes);
        for end in [end, encoded.len(), encoded.len() / 2] {
            if let Ok(request) = CheckRequest::decode(&encoded[..end]) {
                check_decoded(&MCP_AUTHORIZER, &encoded[..end], request)?;
            }
        }
    }
}
