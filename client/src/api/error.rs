//! Errors of requests to the control plane.

use super::{redact::redacted_url, response::read_json};
use crate::{KeyError, Scope};
use reqwest::{Response, header::RETRY_AFTER};
use serde_json::{Map, Value};
use std::{fmt::Write, time::Duration};

/// The HTTP status of a request that exceeds a rate limit.
const TOO_MANY_REQUESTS: u16 = 429;

/// Details of an error response, for callers that need more than its code and message.
#[derive(Debug, Default)]
pub struct ErrorDetails {
    /// The object `error.details` of the response.
    pub fields: Map<String, Value>,
    /// The header `X-Request-Id`, with which the operator can find the request in the log.
    pub request_id: Option<String>,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The connection or TLS failed, or the request timed out.
    #[error("cannot reach {url}: {}", innermost(error))]
    Unreachable {
        /// The URL of the control plane, with its port and without secrets.
        url: String,
        /// The error of the HTTP client.
        error: reqwest::Error,
    },
    /// The control plane returned an error response, in the form of the API or of the OAuth token endpoint (RFC 6749, section 5.2).
    #[error("{status} {code}: {message}{}", requirement(&details.fields))]
    Refused {
        /// The HTTP status.
        status: u16,
        /// `error.code` of the response, or `error` of the token endpoint.
        code: String,
        /// `error.message` of the response, or `error_description` of the token endpoint.
        message: String,
        /// `error.details.reason` of the response, or `reason` of the token endpoint.
        reason: Option<String>,
        /// All details of the response, which include the reason, and the id of the request.
        details: Box<ErrorDetails>,
        /// The response header `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// The response does not have the format that the API documents. The text is the URL without secrets, or only its path.
    #[error("{0} returned a response that Countersign does not send")]
    Unreadable(String),
    /// The tokens have permissions that were not requested. The tokens are discarded.
    #[error("the control plane granted permissions that were not requested: `{0}`")]
    WiderScope(Scope),
    /// The URL of the control plane is not an https URL.
    #[error("`{}` is not an https URL", redacted_url(.0))]
    Url(String),
    /// The CA certificates to trust cannot be loaded: those in the PEM file, or if none is set, those of the system.
    #[error("the trusted CA certificates cannot be loaded: {0}")]
    CaCertificates(String),
    /// The agent's key cannot be read or cannot sign.
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl ApiError {
    /// Parses an error response; `None` if its body cannot be read as JSON.
    pub(super) async fn from_response(response: Response) -> Option<Self> {
        let status = response.status().as_u16();
        let header = |name: &str| response.headers().get(name)?.to_str().ok().map(str::to_owned);
        let request_id = header("x-request-id");
        let retry_after = header(RETRY_AFTER.as_str());
        let retry_after = retry_after.and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
        Some(Self::from_body(status, &read_json(response).await?, request_id, retry_after))
    }

    /// Parses an error from the body of a response, or from one item of a batch.
    pub(super) fn from_body(
        status: u16,
        body: &Value,
        request_id: Option<String>,
        retry_after: Option<Duration>,
    ) -> Self {
        // The API nests its errors in an object, and the token endpoint returns flat members.
        let text_at = |pointer, flat| {
            let text = body.pointer(pointer).or_else(|| body.get(flat)).and_then(Value::as_str);
            text.map(replace_unprintable)
        };
        Self::Refused {
            status,
            code: text_at("/error/code", "error").unwrap_or_default(),
            message: text_at("/error/message", "error_description").unwrap_or_default(),
            reason: text_at("/error/details/reason", "reason"),
            details: Box::new(ErrorDetails {
                fields: body.pointer("/error/details").and_then(Value::as_object).cloned().unwrap_or_default(),
                request_id,
            }),
            retry_after,
        }
    }

    /// Whether the session has ended, so that a new login is required. For an ended session, the token endpoint returns the code
    /// `invalid_grant`, and the API returns a reason that begins with `refresh_`.
    pub fn ends_session(&self) -> bool {
        match self {
            Self::Refused { status: 401, reason: Some(reason), .. } if reason.starts_with("refresh_") => true,
            Self::Refused { code, .. } => code == "invalid_grant",
            _ => false,
        }
    }

    /// The time to wait before the request is sent again, from the header `Retry-After`.
    pub const fn retry_after(&self) -> Option<Duration> {
        if let Self::Refused { retry_after, .. } = self { *retry_after } else { None }
    }

    /// Whether the control plane refused the request because of a rate limit.
    pub const fn is_rate_limited(&self) -> bool {
        matches!(self, Self::Refused { status: TOO_MANY_REQUESTS, .. })
    }

    /// Whether the same request may succeed later: the control plane is unreachable, has an internal error or limits the rate, or
    /// something else, such as a proxy, has answered in its place.
    pub const fn is_outage(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Unreadable(_) => true,
            Self::Refused { status, .. } => *status >= 500 || *status == TOO_MANY_REQUESTS,
            Self::WiderScope(_) | Self::Url(_) | Self::CaCertificates(_) | Self::Key(_) => false,
        }
    }
}

/// Returns the message of the innermost cause of an error, which is usually an error of the operating system or of TLS.
pub fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    if error.is_timeout() {
        return "the request timed out".to_owned();
    }
    // The messages of reqwest end with the whole URL, which may contain a secret.
    let text = cause.to_string();
    text.split(" for url (").next().unwrap_or_default().to_owned()
}

/// Formats the members `required` and `actual` of `error.details` as `" (required: …; actual: …)"`. A missing member is left out.
pub fn requirement(details: &Map<String, Value>) -> String {
    let part = |name| details.get(name).map(|value| format!("{name}: {}", replace_unprintable(&describe(value))));
    let parts: Vec<_> = ["required", "actual"].into_iter().filter_map(part).collect();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join("; ")) }
}

/// Formats `{"roles": ["a", "b"], "scope": "full"}` as `roles a, b, scope full`.
fn describe(value: &Value) -> String {
    let list = |items: &[Value], separator: &str| items.iter().map(describe).collect::<Vec<_>>().join(separator);
    let member = |(name, value): (&String, &Value)| match value {
        // One item of the list `access` suffices, so `or` joins its items; of any other list, all items are needed.
        Value::Array(kinds) if name == "access" => format!("{name} {}", list(kinds, " or ")),
        value => format!("{name} {}", describe(value)),
    };
    match value {
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Array(items) => list(items, ", "),
        Value::Object(fields) => fields.iter().map(member).collect::<Vec<_>>().join(", "),
        Value::String(text) => text.clone(),
        Value::Null => "none".to_owned(),
        other => other.to_string(),
    }
}

/// Whether a character is safe on a terminal: no control character, no line separator and no mark that changes the direction of text.
pub fn is_printable(character: char) -> bool {
    !character.is_control()
        && !matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Replaces characters that are not printable with `?`. Text from another party must neither control the terminal nor look
/// like a line of this program.
pub fn replace_unprintable(text: &str) -> String {
    text.chars().map(|character| if is_printable(character) { character } else { '?' }).collect()
}

/// Escapes the characters in JSON that are not printable. `serde_json` leaves those above U+007E as they are.
pub fn escape_unprintable(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        if is_printable(character) || character == '\n' {
            escaped.push(character);
        } else {
            let _infallible = write!(escaped, "\\u{:04x}", u32::from(character));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requirement_lists_required_before_actual() {
        let requirement_of = |details: Value| requirement(details.as_object().unwrap());
        assert_eq!(requirement_of(json!({ "reason": "no_role" })), "");
        let scopes = json!({ "actual": { "scope": "sync" }, "required": { "scope": "full" } });
        assert_eq!(requirement_of(scopes), " (required: scope full; actual: scope sync)");
        let access = json!({ "required": { "access": ["owner", "administrator"] }, "actual": { "subject": "ann" } });
        assert_eq!(requirement_of(access), " (required: access owner or administrator; actual: subject ann)");
        let roles = json!({ "actual": { "roles": [] }, "required": { "roles": ["reader", "writer"] } });
        assert_eq!(requirement_of(roles), " (required: roles reader, writer; actual: roles none)");
    }

    #[test]
    fn errors_of_the_api_and_of_the_token_endpoint_have_the_same_fields() {
        for (status, body, ends_session) in [
            (401, json!({ "error": { "code": "C", "message": "m", "details": { "reason": "refresh_used" } } }), true),
            (401, json!({ "error": { "code": "C", "message": "m", "details": { "reason": "r" } } }), false),
            (400, json!({ "error": "invalid_grant", "error_description": "m", "reason": "refresh_used" }), true),
            (400, json!({ "error": "invalid_grant", "error_description": "m" }), true),
            (400, json!({ "error": "invalid_scope", "error_description": "m", "reason": "r" }), false),
        ] {
            let error = ApiError::from_body(status, &body, None, None);
            assert_eq!(error.ends_session(), ends_session, "{body}");
            let ApiError::Refused { code, message, .. } = error else { panic!("{body}") };
            assert_eq!((code.is_empty(), message.as_str()), (false, "m"), "{body}");
        }
    }

    #[test]
    fn json_escapes_what_serde_json_leaves() {
        let value = json!({ "a": "\u{9b}31m\u{202e}é\n\u{7f}" });
        let escaped = escape_unprintable(&format!("{value:#}"));
        assert_eq!(escaped, "{\n  \"a\": \"\\u009b31m\\u202eé\\n\\u007f\"\n}");
        assert_eq!(serde_json::from_str::<Value>(&escaped).unwrap(), value);
    }

    #[test]
    fn requirement_contains_no_control_characters() {
        let details = json!({ "required": { "a\u{1b}[2J": "x\nNext: run this" } });
        assert_eq!(requirement(details.as_object().unwrap()), " (required: a?[2J x?Next: run this)");
    }
}
