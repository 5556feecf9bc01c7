//! The metadata that Envoy's MCP filter has set about the message in the body of a request.
//!
//! The metadata is a `google.protobuf.Struct`. The messages here have the same field numbers, and decode two levels: `method`, for
//! example, and `params.name`. Deeper fields, such as those in `params._meta`, are skipped, so deep nesting costs nothing.

use crate::rules::{McpMessage, NamingMethod};
use bytes::Bytes;
use prost::{Message, Oneof};
use prost_types::{Struct, Value as EnvoyValue, value::Kind as EnvoyKind};
use std::str::from_utf8;

pub const MCP_FILTER: &str = "envoy.filters.http.mcp";

const IS_MCP_REQUEST: &str = "is_mcp_request";
const STATUS: &str = "status";
const STATUS_OK: &str = "mcp_ok";
const JSONRPC: &str = "jsonrpc";
const JSONRPC_VERSION: &str = "2.0";
const METHOD: &str = "method";
const PARAMS: &str = "params";
/// The filter sets these fields if it has not parsed the whole message. Its status can be `mcp_ok` nevertheless.
const SIGNS_OF_INCOMPLETE_PARSING: [&str; 2] = ["passthrough_reason", "is_exceeding_limit"];

/// The metadata. Of fields with the same name, only the last one counts.
#[derive(Clone, PartialEq, Message)]
pub struct McpMetadata {
    #[prost(message, repeated, tag = "1")]
    fields: Vec<Field>,
}

#[derive(Clone, PartialEq, Message)]
struct Field {
    #[prost(bytes = "bytes", tag = "1")]
    name: Bytes,
    #[prost(message, optional, tag = "2")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Kind {
    #[prost(int32, tag = "1")]
    Null(i32),
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(bytes = "bytes", tag = "3")]
    Text(Bytes),
    #[prost(bool, tag = "4")]
    Bool(bool),
    #[prost(message, tag = "5")]
    Object(Params),
    #[prost(message, tag = "6")]
    List(Skipped),
}

#[derive(Clone, PartialEq, Message)]
struct Params {
    #[prost(message, repeated, tag = "1")]
    fields: Vec<Param>,
}

#[derive(Clone, PartialEq, Message)]
struct Param {
    #[prost(bytes = "bytes", tag = "1")]
    name: Bytes,
    #[prost(message, optional, tag = "2")]
    value: Option<ParamValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ParamValue {
    #[prost(oneof = "ParamKind", tags = "1, 2, 3, 4, 5, 6")]
    kind: Option<ParamKind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum ParamKind {
    #[prost(int32, tag = "1")]
    Null(i32),
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(bytes = "bytes", tag = "3")]
    Text(Bytes),
    #[prost(bool, tag = "4")]
    Bool(bool),
    #[prost(message, tag = "5")]
    Object(Skipped),
    #[prost(message, tag = "6")]
    List(Skipped),
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Skipped {}

impl McpMetadata {
    /// Decodes the parts of the metadata, and merges them: Protobuf requires this if a message is sent several times.
    pub fn decode_parts(parts: &[Bytes]) -> Result<Self, &'static str> {
        let mut metadata = Self::default();
        let merged = parts.iter().try_for_each(|part| metadata.merge(part.clone()));
        merged.map(|()| metadata).map_err(|_| "the metadata of the MCP filter is malformed")
    }

    /// The message that the filter has parsed. The error says why there is not exactly one.
    pub fn message(&self) -> Result<McpMessage<'_>, &'static str> {
        if !matches!(self.kind(IS_MCP_REQUEST), Some(Kind::Bool(true))) || self.text(STATUS) != Some(STATUS_OK) {
            return Err("the MCP filter has not parsed the message");
        }
        if SIGNS_OF_INCOMPLETE_PARSING.into_iter().any(|name| self.field(name).is_some()) {
            return Err("the MCP filter has not parsed the whole message");
        }
        if self.text(JSONRPC) != Some(JSONRPC_VERSION) {
            return Err("the message is not JSON-RPC 2.0");
        }
        let method = self.text(METHOD).ok_or("the method of the MCP message is missing or not a string")?;
        let name = NamingMethod::find(method).and_then(|naming| self.param(naming.parameter));
        Ok(McpMessage { method, name })
    }

    fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().rev().find(|field| field.name == name)
    }

    fn kind(&self, name: &str) -> Option<&Kind> {
        self.field(name)?.value.as_ref()?.kind.as_ref()
    }

    fn text(&self, name: &str) -> Option<&str> {
        match self.kind(name)? {
            Kind::Text(text) => from_utf8(text).ok(),
            Kind::Null(_) | Kind::Number(_) | Kind::Bool(_) | Kind::Object(_) | Kind::List(_) => None,
        }
    }

    fn param(&self, name: &str) -> Option<&str> {
        let Some(Kind::Object(params)) = self.kind(PARAMS) else { return None };
        let param = params.fields.iter().rev().find(|param| param.name == name)?;
        match param.value.as_ref()?.kind.as_ref()? {
            ParamKind::Text(text) => from_utf8(text).ok(),
            ParamKind::Null(_)
            | ParamKind::Number(_)
            | ParamKind::Bool(_)
            | ParamKind::Object(_)
            | ParamKind::List(_) => None,
        }
    }
}

/// The metadata that the filter would set about a message, for commands that explain decisions.
pub fn metadata_of(McpMessage { method, name }: McpMessage<'_>) -> Struct {
    let value = |kind| EnvoyValue { kind: Some(kind) };
    let text = |text: &str| value(EnvoyKind::StringValue(text.to_owned()));
    let object = |fields: Vec<(&str, EnvoyValue)>| Struct {
        fields: fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
    };
    let mut fields = vec![
        (IS_MCP_REQUEST, value(EnvoyKind::BoolValue(true))),
        (STATUS, text(STATUS_OK)),
        (JSONRPC, text(JSONRPC_VERSION)),
        (METHOD, text(method)),
    ];
    if let (Some(naming), Some(name)) = (NamingMethod::find(method), name) {
        let params = object(vec![(naming.parameter, text(name))]);
        fields.push((PARAMS, value(EnvoyKind::StructValue(params))));
    }
    object(fields)
}
