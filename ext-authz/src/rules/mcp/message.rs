//! Reads the body of a request as exactly one JSON-RPC message.
//!
//! The service reads the same bytes, perhaps with another parser. So a message is refused if two parsers could read it differently: if
//! an object has a key twice, or if a key differs only in case from one that is read here.

use super::{McpMessage, NamingMethod};
use countersign_identity::json::JsonObject;
use serde_json::{Map, Value};

const JSONRPC_VERSION: &str = "2.0";

/// The keys of a message that are read here.
const MESSAGE_KEYS: [&str; 5] = ["jsonrpc", "method", "params", "result", "error"];

/// The keys of `params` that are read here.
const PARAMS_KEYS: [&str; 2] = ["name", "uri"];

/// A message that a client has sent.
#[derive(Debug, PartialEq, Eq)]
pub enum ReceivedMessage {
    /// A request or a notification.
    Call { method: String, name: Option<String> },
    /// A response to a request of the server.
    Response,
}

impl ReceivedMessage {
    /// Parses a body. The error says why it is not exactly one message.
    pub fn parse(body: &[u8]) -> Result<Self, &'static str> {
        let JsonObject { fields: message, duplicates } =
            serde_json::from_slice(body).map_err(|_| "the body is not exactly one JSON object")?;
        if !duplicates.is_empty() {
            return Err("an object in the message has a key twice");
        }
        if has_respelled_key(&message, &MESSAGE_KEYS) {
            return Err("a key of the message differs only in case from one of JSON-RPC");
        }
        if text(&message, "jsonrpc") != Some(JSONRPC_VERSION) {
            return Err("the message is not JSON-RPC 2.0");
        }
        let answers = message.contains_key("result") || message.contains_key("error");
        match (message.contains_key("method"), answers) {
            (false, true) => Ok(Self::Response),
            (true, true) => Err("the message has a method, and a `result` or an `error`"),
            (_, false) => Self::parse_call(&message),
        }
    }

    fn parse_call(message: &Map<String, Value>) -> Result<Self, &'static str> {
        let method = text(message, "method").ok_or("the method of the MCP message is missing or not a text")?;
        let params = message.get("params").and_then(Value::as_object);
        if params.is_some_and(|params| has_respelled_key(params, &PARAMS_KEYS)) {
            return Err("a parameter of the message differs only in case from `name` or `uri`");
        }
        let name = NamingMethod::find(method).and_then(|naming| text(params?, naming.parameter));
        Ok(Self::Call { method: method.to_owned(), name: name.map(str::to_owned) })
    }

    pub fn as_message(&self) -> McpMessage<'_> {
        match self {
            Self::Call { method, name } => McpMessage::Call { method, name: name.as_deref() },
            Self::Response => McpMessage::Response,
        }
    }
}

fn text<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    object.get(key)?.as_str()
}

/// Whether a key has the letters of one of these, but not its case. Some parsers, such as Go's, would take it for this key.
fn has_respelled_key(object: &Map<String, Value>, keys: &[&str]) -> bool {
    object.keys().any(|key| !keys.contains(&key.as_str()) && keys.contains(&fold(key).as_str()))
}

/// Folds the case. Some letters outside ASCII have one in ASCII as their other case, such as `ſ`, whose upper case is `S`, and the Kelvin
/// sign, whose lower case is `k`.
fn fold(key: &str) -> String {
    key.to_uppercase().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: &str, name: Option<&str>) -> ReceivedMessage {
        ReceivedMessage::Call { method: method.to_owned(), name: name.map(str::to_owned) }
    }

    #[test]
    fn reads_the_method_and_the_name_that_it_uses() {
        for (body, expected) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, call("ping", None)),
            (r#"{"params":{"name":"a"},"method":"tools/call","jsonrpc":"2.0"}"#, call("tools/call", Some("a"))),
            (
                r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"\u0061\u00e9"}}"#,
                call("tools/call", Some("aé")),
            ),
            (
                r#"{"jsonrpc":"2.0","method":"prompts/get","params":{"uri":"u","name":"a"}}"#,
                call("prompts/get", Some("a")),
            ),
            (r#"{"jsonrpc":"2.0","method":"resources/read","params":{"uri":"u"}}"#, call("resources/read", Some("u"))),
            (r#"{"jsonrpc":"2.0","method":"tools/list","params":{"name":"a"}}"#, call("tools/list", None)),
            (r#"{"jsonrpc":"2.0","method":"tools/list","params":null}"#, call("tools/list", None)),
            (r#"{"jsonrpc":"2.0","method":"tools/call","params":["a"]}"#, call("tools/call", None)),
            (r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":5}}"#, call("tools/call", None)),
            (
                r#"{"jsonrpc":"2.0","method":"tools/call","params":{"arguments":{"Name":"b"},"name":"a"}}"#,
                call("tools/call", Some("a")),
            ),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"method":"tools/call"}}"#, ReceivedMessage::Response),
            (r#"{"jsonrpc":"2.0","id":1,"error":{"code":1}}"#, ReceivedMessage::Response),
            (" \r\n\t{\"jsonrpc\":\"2.0\",\"method\":\"ping\"} \r\n\t", call("ping", None)),
        ] {
            assert_eq!(ReceivedMessage::parse(body.as_bytes()), Ok(expected), "{body}");
        }
    }

    #[test]
    fn refuses_what_two_parsers_could_read_differently() {
        let message =
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"x":[{"y":1}]}}}"#;
        let replaced = |from: &str, to: &str| {
            assert!(message.contains(from), "{from}");
            message.replacen(from, to, 1).into_bytes()
        };
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        for (case, body) in [
            ("nothing", Vec::new()),
            ("only white space", b"  ".to_vec()),
            ("a batch", format!("[{message}]").into_bytes()),
            ("a text", b"\"a\"".to_vec()),
            ("two messages", message.repeat(2).into_bytes()),
            ("two messages, far apart", format!("{message}{}{message}", " ".repeat(70_000)).into_bytes()),
            ("a zero byte at the end", [message.as_bytes(), b"\0"].concat()),
            ("a byte order mark", [b"\xef\xbb\xbf", message.as_bytes()].concat()),
            ("a part of a message", message.as_bytes()[..message.len() - 1].to_vec()),
            (
                "bytes that are not UTF-8",
                replaced("\"a\"", "\"?\"").iter().map(|byte| if *byte == b'?' { 0xff } else { *byte }).collect(),
            ),
            ("half of a surrogate pair", replaced("\"a\"", r#""\ud800""#)),
            ("a comma at the end", replaced("1}]}}}", "1}]}},}")),
            ("a comment", replaced("\"id\"", "/**/\"id\"")),
            ("single quotes", replaced("\"a\"", "'a'")),
            ("too deep", replaced("1}]", &format!("{deep}}}]"))),
            ("two methods", replaced("\"id\":1", r#""method":"ping""#)),
            ("two methods, one of them escaped", replaced("\"id\":1", r#""\u006dethod":"ping""#)),
            ("two names", replaced("\"name\"", r#""name":"b","name""#)),
            ("two params", replaced("\"id\":1", r#""params":{"name":"b"}"#)),
            ("two equal arguments", replaced("\"y\":1", r#""y":1,"y":2"#)),
            ("a method in another case", replaced("\"id\":1", r#""Method":"ping""#)),
            ("params in another case", replaced("\"id\":1", r#""PARAMS":{"name":"b"}"#)),
            ("params with a long s", replaced("\"id\":1", r#""paramſ":{"name":"b"}"#)),
            ("a name in another case", replaced("\"name\"", r#""Name":"b","name""#)),
            ("a URI in another case", replaced("\"name\"", r#""URI":"b","name""#)),
            ("a method and a result", replaced("\"id\":1", r#""result":{}"#)),
            ("a method and an error", replaced("\"id\":1", r#""error":null"#)),
            ("no method", replaced("\"method\"", "\"other\"")),
            ("a method that is a list", replaced("\"tools/call\"", "[\"tools/call\"]")),
            ("another version", replaced("2.0", "1.0")),
            ("a version that is a number", replaced("\"2.0\"", "2.0")),
            ("no version", replaced("\"jsonrpc\"", "\"other\"")),
        ] {
            assert!(ReceivedMessage::parse(&body).is_err(), "{case}: {}", String::from_utf8_lossy(&body));
        }
        assert!(ReceivedMessage::parse(message.as_bytes()).is_ok());
    }
}
