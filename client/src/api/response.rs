//! Reads responses of the control plane and of OIDC issuers.
//!
//! The server may be malicious, or not the one that the user means. So this module limits the size of a response, replaces
//! characters that control the terminal, and checks the form of ids: commands print and save them, and suggest them to a shell.

use super::error::is_printable;
use reqwest::Response;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error},
};
use serde_json::Value;
use std::str::FromStr;

/// Maximum size of a body in bytes. A page of the largest records is smaller than this maximum.
const MAX_BODY_SIZE: usize = 8 * 1024 * 1024;

/// Reads a JSON body. `None` if the body is not a `T`, is too large or ends early.
pub(super) async fn read_json<T: DeserializeOwned>(response: Response) -> Option<T> {
    read_json_up_to(response, MAX_BODY_SIZE).await
}

/// Reads a JSON body of at most `max_size` bytes. `None` if the body is not a `T`, is too large or ends early.
pub(crate) async fn read_json_up_to<T: DeserializeOwned>(mut response: Response, max_size: usize) -> Option<T> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.ok()? {
        if body.len() + chunk.len() > max_size {
            return None;
        }
        body.extend_from_slice(&chunk);
    }
    let mut value = serde_json::from_slice(&body).ok()?;
    make_printable(&mut value);
    serde_json::from_value(value).ok()
}

/// Replaces control characters other than line breaks and tabs with `?` in all text.
pub(crate) fn make_printable(value: &mut Value) {
    match value {
        Value::String(text) => {
            let is_allowed = |character: char| is_printable(character) || matches!(character, '\n' | '\t');
            if !text.chars().all(is_allowed) {
                *text = text.chars().map(|character| if is_allowed(character) { character } else { '?' }).collect();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(make_printable),
        Value::Object(fields) => fields.values_mut().for_each(make_printable),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Deserializes an id, which must have the form of an `Id`.
pub(super) fn id<'de, D: Deserializer<'de>, Id: FromStr>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.parse::<Id>().is_ok() { Ok(text) } else { Err(D::Error::custom("an id has the wrong form")) }
}

/// Deserializes text of one line, without a tab.
pub(crate) fn line<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.chars().all(is_printable) { Ok(text) } else { Err(D::Error::custom("a text has more than one line")) }
}

/// Deserializes text of one line without a tab, or null.
pub(crate) fn optional_line<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let is_line = text.iter().all(|text| text.chars().all(is_printable));
    if is_line { Ok(text) } else { Err(D::Error::custom("a text has more than one line")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_identity::AgentId;
    use serde_json::json;

    #[test]
    fn text_is_made_printable_at_any_depth() {
        let mut value = json!({ "a": ["x\u{1b}[2J\u{9b}31m\u{202e}y", { "b": "one\n\ttwo" }], "c": 7 });
        make_printable(&mut value);
        assert_eq!(value, json!({ "a": ["x?[2J?31m?y", { "b": "one\n\ttwo" }], "c": 7 }));
    }

    #[test]
    fn ids_and_lines_are_checked() {
        let agent = AgentId::from_bits(1).to_string();
        assert_eq!(id::<_, AgentId>(json!(agent)).ok(), Some(agent));
        for invalid in
            ["", "agent_x; true", "svc_00000000000000000000000001", "agent_00000000000000000000000001\nNext: x"]
        {
            assert!(id::<_, AgentId>(json!(invalid)).is_err(), "{invalid}");
        }
        assert!(line(json!("2026-11-22T03:00:00Z")).is_ok());
        assert!(line(json!("one\nNext: two")).is_err());
        assert!(optional_line(Value::Null).is_ok_and(|text| text.is_none()));
    }
}
