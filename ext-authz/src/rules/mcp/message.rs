//! Reads the body of a request as exactly one JSON-RPC message.
//!
//! The service reads the same bytes, perhaps with another parser. So a message is refused if two parsers could read it differently: if
//! an object has a key twice, or if a key could be taken for one that is read here. Anyone can send a body, so of all else only the
//! keys of the objects that are open are in memory.

use super::{McpMessage, NamingMethod};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::{borrow::Cow, collections::HashSet, fmt};

const JSONRPC_VERSION: &str = "2.0";

/// What is read of a message.
const MESSAGE: Reader = Reader::object_with(&[
    ("jsonrpc", Reader::TEXT),
    ("method", Reader::TEXT),
    ("params", Reader::object_with(&[("name", Reader::TEXT), ("uri", Reader::TEXT)])),
    ("result", Reader::NOTHING),
    ("error", Reader::NOTHING),
]);

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
        let mut json = serde_json::Deserializer::from_slice(body);
        let message = MESSAGE.deserialize(&mut json).and_then(|message| json.end().map(|()| message));
        let message =
            message.map_err(|_| "the body is not exactly one JSON value without repeated or respelled keys")?;
        if message.text("jsonrpc") != Some(JSONRPC_VERSION) {
            return Err("the message is not JSON-RPC 2.0");
        }
        let answers = message.field("result").is_some() || message.field("error").is_some();
        match (message.field("method"), answers) {
            (None, true) => Ok(Self::Response),
            (Some(_), true) => Err("the message has a method, and a `result` or an `error`"),
            (_, false) => {
                let method = message.text("method").ok_or("the method of the MCP message is missing or not a text")?;
                let name = NamingMethod::find(method).and_then(|it| message.field("params")?.text(it.parameter));
                Ok(Self::Call { method: method.to_owned(), name: name.map(str::to_owned) })
            }
        }
    }

    pub fn as_message(&self) -> McpMessage<'_> {
        match self {
            Self::Call { method, name } => McpMessage::Call { method, name: name.as_deref() },
            Self::Response => McpMessage::Response,
        }
    }
}

/// What was read of a JSON value.
enum Json {
    Text(String),
    Object(Vec<(&'static str, Self)>),
    /// Something else, or nothing was to be kept.
    Other,
}

impl Json {
    fn field(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(fields) => fields.iter().find(|(name, _)| *name == key).map(|(_, value)| value),
            Self::Text(_) | Self::Other => None,
        }
    }

    fn text(&self, key: &str) -> Option<&str> {
        match self.field(key)? {
            Self::Text(text) => Some(text),
            Self::Object(_) | Self::Other => None,
        }
    }
}

/// Reads a JSON value, and keeps what is wanted of it.
#[derive(Clone, Copy)]
struct Reader {
    keeps_text: bool,
    /// The keys of an object that are kept, with the readers of their values.
    keys: &'static [(&'static str, Self)],
}

impl Reader {
    const NOTHING: Self = Self { keeps_text: false, keys: &[] };
    const TEXT: Self = Self { keeps_text: true, keys: &[] };

    /// Keeps the values of these keys of an object.
    const fn object_with(keys: &'static [(&'static str, Self)]) -> Self {
        Self { keeps_text: false, keys }
    }

    /// The entry for a key; `None` if its value is not kept. The error is for a key that some parsers would take for one that is kept:
    /// Go's ignores case, and C's end a key at a zero byte.
    fn entry(self, key: &str) -> Result<Option<(&'static str, Self)>, &'static str> {
        let find = |key: &str| self.keys.iter().find(|(name, _)| *name == key).copied();
        let found = find(key);
        let is_respelled = || find(&fold(key)).is_some() || key.contains(char::is_control);
        if found.is_none() && !self.keys.is_empty() && is_respelled() { Err("a respelled key") } else { Ok(found) }
    }
}

/// Folds the case. Some letters outside ASCII have one in ASCII as their other case, such as `ſ`, whose upper case is `S`, and the Kelvin
/// sign, whose lower case is `k`.
fn fold(key: &str) -> String {
    key.to_uppercase().to_lowercase()
}

impl<'de> DeserializeSeed<'de> for Reader {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(if self.keeps_text { Json::Text(text.to_owned()) } else { Json::Other })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        while items.next_element_seed(Self::NOTHING)?.is_some() {}
        Ok(Json::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let (mut keys, mut fields) = (HashSet::new(), Vec::new());
        while let Some(key) = entries.next_key_seed(Key)? {
            match self.entry(&key).map_err(A::Error::custom)? {
                Some((name, reader)) => fields.push((name, entries.next_value_seed(reader)?)),
                None => drop(entries.next_value_seed(Self::NOTHING)?),
            }
            if !keys.insert(key) {
                return Err(A::Error::custom("a repeated key"));
            }
        }
        Ok(Json::Object(fields))
    }
}

/// Reads a key, which borrows from the body unless it has an escape.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
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
            ("a method with a zero byte", replaced("\"id\":1", r#""method\u0000":"ping""#)),
            ("a name with a zero byte", replaced("\"name\"", r#""name\u0000":"b","name""#)),
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
