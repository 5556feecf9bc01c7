//! Request bodies: one JSON object, every field named, all problems told at once. Where OAuth clients ask, also a form.
//!
//! A field that is not known is an error, since a misspelt `expiresAt` must not become a role for ever.

pub mod shape;

use super::{idempotency::BodyDigest, json::Object, timestamp};
use crate::{
    domain::{
        agent::parse_status,
        service::KeyScope,
        text::{Description, DisplayName, EmailAddress, Metadata},
        trust::{InvalidScore, Score},
    },
    http::{
        error::{ApiError, Problem},
        openapi::schema,
    },
};
use axum::{
    body::{Body, Bytes, to_bytes},
    extract::{FromRequest, Request},
    http::header,
    middleware::Next,
    response::{IntoResponse, Response},
};
use countersign_identity::{AgentStatus, P256PublicKey, Permission, RoleName, Timestamp};
use secrecy::SecretString;
use serde_json::{Map, Value};
use std::time::Duration;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use utoipa::ToSchema;

/// Largest body under `/auth`, in bytes.
const AUTH_LIMIT: usize = 16 * 1024;

/// Below `/auth`, but an access token comes in the body: the longest have more than what the rest may.
const TAKES_ACCESS_TOKENS: &str = "/auth/revoke";

/// Largest body elsewhere, in bytes.
const LIMIT: usize = 64 * 1024;

/// What is read and thrown away beyond the limit, in bytes, so that the refusal reaches the sender.
const OVERFLOW: usize = 2 * 1024 * 1024;

/// What OAuth clients send.
const FORM: &str = "application/x-www-form-urlencoded";

/// What a caller sent is repeated to them up to this many characters.
const LONGEST_ECHO: usize = 160;

/// How long a body may take to arrive.
const PATIENCE: Duration = Duration::from_secs(10);

/// Takes the whole body in before anything is decided: an answer to a request whose body is still on
/// its way is lost on some clients.
pub async fn take_in(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let limit = if path.starts_with("/auth/") && path != TAKES_ACCESS_TOKENS { AUTH_LIMIT } else { LIMIT };
    let (mut parts, body) = request.into_parts();
    match timeout(PATIENCE, read(body, limit)).await {
        Ok(Ok(bytes)) => {
            if let Some(digest) = BodyDigest::of(&parts.headers, &bytes) {
                parts.extensions.insert(digest);
            }
            next.run(Request::from_parts(parts, Body::from(bytes))).await
        }
        Ok(Err(error)) => error.into_response(),
        Err(_) => ApiError::unreadable("The body did not arrive in time").into_response(),
    }
}

async fn read(body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let (mut stream, mut bytes, mut overflow) = (body.into_data_stream(), Vec::new(), 0);
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|_| ApiError::unreadable("The body did not arrive whole"))?;
        if bytes.len() + chunk.len() <= limit && overflow == 0 {
            bytes.extend_from_slice(&chunk);
        } else {
            overflow += chunk.len();
        }
        if overflow > OVERFLOW {
            break;
        }
    }
    if overflow == 0 { Ok(bytes) } else { Err(ApiError::too_large(limit)) }
}

/// The fields of a body that nobody has asked for yet.
pub struct Fields {
    unread: Map<String, Value>,
    problems: Vec<Problem>,
    ignore_unknown: bool,
}

/// The same of a body that may also be a form.
pub struct FormOrJson(pub Fields);

impl<S: Sync> FromRequest<S> for Fields {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        require_json(&request)?;
        let Object { fields, ambiguous } = serde_json::from_slice(&whole(request).await?)
            .map_err(|error| ApiError::unreadable(shorten(format!("The body must be one JSON object: {error}"))))?;
        let problem = |(field, message): (String, &str)| Problem { field: shorten(field), message: message.into() };
        let problems = ambiguous.into_iter().map(problem).collect();
        Ok(Self { unread: fields, problems, ignore_unknown: false })
    }
}

impl<S: Sync> FromRequest<S> for FormOrJson {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        if !only_type(&request).is_some_and(is_form) {
            return Fields::from_request(request, state).await.map(Self);
        }
        let mut unread = Map::new();
        for (name, value) in form_urlencoded::parse(&whole(request).await?) {
            // RFC 6749, 3.2: a parameter without a value was not sent, none may stand twice, unknown ones are ignored.
            let sent = (!value.is_empty()).then(|| unread.insert(name.into_owned(), Value::String(value.into_owned())));
            if sent.flatten().is_some() {
                return Err(ApiError::unreadable("A parameter of the form stands twice"));
            }
        }
        Ok(Self(Fields { unread, problems: Vec::new(), ignore_unknown: true }))
    }
}

async fn whole(request: Request) -> Result<Bytes, ApiError> {
    to_bytes(request.into_body(), LIMIT).await.map_err(|_| ApiError::too_large(LIMIT))
}

/// A missing type is JSON; a wrong one is refused. So is what another reader of the same bytes, a filter
/// in front of us perhaps, would read otherwise: two types, another charset, a coding that nobody undoes.
fn require_json(request: &Request) -> Result<(), ApiError> {
    let untyped = !request.headers().contains_key(header::CONTENT_TYPE);
    let json = (untyped && is_plain(request)) || only_type(request).is_some_and(is_json);
    if json { Ok(()) } else { Err(ApiError::unsupported_media_type()) }
}

/// The one content type of a body that is not compressed.
fn only_type(request: &Request) -> Option<&str> {
    let mut types = request.headers().get_all(header::CONTENT_TYPE).iter();
    let first = types.next()?.to_str().ok()?;
    (types.next().is_none() && is_plain(request)).then_some(first)
}

fn is_plain(request: &Request) -> bool {
    let codings = request.headers().get_all(header::CONTENT_ENCODING).iter().map(|value| value.to_str().ok());
    let plain = |coding: &str| ["", "identity"].contains(&coding.to_ascii_lowercase().trim());
    codings.into_iter().all(|coding| coding.is_some_and(plain))
}

fn is_form(content_type: &str) -> bool {
    essence_in_utf8(content_type).is_some_and(|essence| essence == FORM)
}

fn is_json(content_type: &str) -> bool {
    let json = |essence: String| {
        essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
    };
    essence_in_utf8(content_type).is_some_and(json)
}

/// The media type without its parameters, in lower case; none if another charset is said, or another type.
fn essence_in_utf8(content_type: &str) -> Option<String> {
    let content_type = content_type.to_ascii_lowercase();
    let mut parts = content_type.split(';').map(str::trim);
    let essence = parts.next().filter(|essence| !essence.contains(','))?;
    let mut charsets =
        parts.filter_map(|parameter| parameter.split_once('=')).filter(|(name, _)| name.trim() == "charset");
    charsets.all(|(_, charset)| charset.trim().trim_matches('"') == "utf-8").then(|| essence.to_owned())
}

impl Fields {
    /// Reads the body; whatever `read` did not ask for is unknown.
    pub fn parse<T>(mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Result<T, ApiError> {
        let parsed = read(&mut self);
        let unknown = self
            .unread
            .into_iter()
            .map(|(field, _)| Problem { field: shorten(field), message: "is not known here".into() });
        if !self.ignore_unknown {
            self.problems.extend(unknown);
        }
        match parsed {
            Some(parsed) if self.problems.is_empty() => Ok(parsed),
            _ => Err(ApiError::invalid(&self.problems)),
        }
    }

    /// The text of a field that is not taken yet.
    pub fn peek(&self, name: &str) -> Option<&str> {
        self.unread.get(name).and_then(Value::as_str)
    }

    /// A field that must be there.
    pub fn required<T: FromField>(&mut self, name: &'static str) -> Option<T> {
        match self.optional(name)? {
            Some(value) => Some(value),
            None => self.problem(name, "is required".into()),
        }
    }

    /// A field that may be left out; `null` is left out. The outer option is `None` if it is wrong.
    #[expect(clippy::option_option, reason = "wrong, absent and present are three things")]
    pub fn optional<T: FromField>(&mut self, name: &'static str) -> Option<Option<T>> {
        match self.unread.remove(name) {
            None | Some(Value::Null) => Some(None),
            Some(value) => match T::from_field(value) {
                Ok(value) => Some(Some(value)),
                Err(message) => self.problem(name, message),
            },
        }
    }

    fn problem<T>(&mut self, name: &str, message: String) -> Option<T> {
        self.problems.push(Problem { field: name.to_owned(), message });
        None
    }
}

/// What a caller sent is repeated to them at a bounded length.
fn shorten(text: String) -> String {
    if text.chars().count() > LONGEST_ECHO { text.chars().take(LONGEST_ECHO).chain(['…']).collect() } else { text }
}

/// What a field's JSON value can become.
pub trait FromField: Sized {
    /// How the value is described.
    type Word: ToSchema;

    /// Reads the value; the error says what it must be.
    fn from_field(value: Value) -> Result<Self, String>;
}

impl FromField for String {
    type Word = schema::Text;

    fn from_field(value: Value) -> Result<Self, String> {
        match value {
            Value::String(text) => Ok(text),
            _ => Err("must be a string".into()),
        }
    }
}

impl FromField for SecretString {
    type Word = schema::AnyToken;

    fn from_field(value: Value) -> Result<Self, String> {
        match value {
            Value::String(text) if !text.is_empty() => Ok(text.into()),
            _ => Err("must be a string that is not empty".into()),
        }
    }
}

impl FromField for bool {
    type Word = schema::Truth;

    fn from_field(value: Value) -> Result<Self, String> {
        value.as_bool().ok_or_else(|| "must be true or false".into())
    }
}

impl FromField for Vec<Permission> {
    type Word = schema::Permissions;

    fn from_field(value: Value) -> Result<Self, String> {
        let Value::Array(items) = value else { return Err("must be an array of strings".into()) };
        let named = items.into_iter().enumerate().map(|(position, item)| {
            Permission::from_field(item).map_err(|message| format!("item {position} {message}"))
        });
        let mut permissions = named.collect::<Result<Self, _>>()?;
        permissions.sort();
        permissions.dedup();
        Ok(permissions)
    }
}

impl FromField for Score {
    type Word = schema::Score;

    fn from_field(value: Value) -> Result<Self, String> {
        let points = value.as_f64().ok_or(InvalidScore);
        points.and_then(Self::from_points).map_err(|error| error.to_string())
    }
}

impl FromField for Metadata {
    type Word = schema::Metadata;

    fn from_field(value: Value) -> Result<Self, String> {
        match value {
            Value::Object(map) => Self::try_from(map).map_err(|error| error.to_string()),
            _ => Err("must be an object".into()),
        }
    }
}

macro_rules! from_text {
    ($($name:ty as $word:ident: $parse:expr;)+) => {$(
        impl FromField for $name {
            type Word = schema::$word;

            fn from_field(value: Value) -> Result<Self, String> {
                let parse: fn(String) -> Result<Self, String> = $parse;
                parse(String::from_field(value)?)
            }
        }
    )+};
}

from_text! {
    EmailAddress as Email: |text| Self::try_from(text).map_err(|error| error.to_string());
    DisplayName as DisplayName: |text| Self::try_from(text).map_err(|error| error.to_string());
    Description as Description: |text| Self::try_from(text).map_err(|error| error.to_string());
    RoleName as RoleName: |text| Self::try_from(text).map_err(|error| error.to_string());
    Permission as Permission: |text| Self::try_from(text).map_err(|error| error.to_string());
    P256PublicKey as PublicKey: |text| Self::from_pem(&text).map_err(|error| error.to_string());
    KeyScope as Scope: |text| Self::parse(&text).ok_or_else(|| "must be `full` or `sync`".into());
    AgentStatus as AgentStatus: |text| parse_status(&text).ok_or_else(|| "must be `active`, `suspended` or `revoked`".into());
    Timestamp as End: |text| timestamp::parse(&text).ok_or_else(|| "must be an instant such as 2030-01-31T12:00:00Z".into());
}

#[cfg(test)]
mod fuzz;
