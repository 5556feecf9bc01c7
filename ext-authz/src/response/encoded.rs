//! Responses that allow a request with an identity, encoded as a `CheckResponse` without building one.
//!
//! Almost all requests get such a response, and most of its bytes depend only on the identity. They are encoded once per
//! identity.

use super::{HeaderNames, header::overwriting_header, metadata};
use crate::decide::{EncodedIdentity, Validity};
use countersign_identity::{ServiceId, VerifiedIdentity, identity_headers};
use countersign_proto::envoy::service::auth::v3::OkHttpResponse;
use prost::{
    Message,
    bytes::BufMut,
    encoding::{WireType, encode_key, encode_varint, encoded_len_varint, message},
};
use prost_types::Value;
use std::sync::Arc;

/// The numbers of fields in Envoy's and Google's protocol definitions.
mod field {
    /// `CheckResponse.status`.
    pub const STATUS: u32 = 1;
    /// `CheckResponse.ok_response`.
    pub const OK_RESPONSE: u32 = 3;
    /// `CheckResponse.dynamic_metadata`.
    pub const DYNAMIC_METADATA: u32 = 4;
    /// `OkHttpResponse.headers_to_remove`.
    pub const HEADERS_TO_REMOVE: u32 = 5;
    /// `Struct.fields`, whose entries have a key and a value.
    pub const FIELDS: u32 = 1;
    /// The key of an entry of `Struct.fields`.
    pub const ENTRY_KEY: u32 = 1;
    /// The value of an entry of `Struct.fields`.
    pub const ENTRY_VALUE: u32 = 2;
    /// `Value.string_value`.
    pub const STRING_VALUE: u32 = 3;
    /// `Value.struct_value`.
    pub const STRUCT_VALUE: u32 = 5;
}

/// The length of a key of a field with a number below 16.
const KEY_LENGTH: usize = 1;

/// The names of the request headers that Envoy removes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemovedHeaders {
    /// At most one header, with a name that is known in advance.
    Known(Option<&'static str>),
    /// Any headers, sorted and distinct.
    Any(Vec<String>),
}

impl RemovedHeaders {
    fn for_each<'a>(&'a self, mut action: impl FnMut(&'a str)) {
        match self {
            Self::Known(name) => name.iter().copied().for_each(action),
            Self::Any(names) => names.iter().for_each(|name| action(name)),
        }
    }

    /// The names as the response contains them.
    pub fn into_names(self) -> Vec<String> {
        match self {
            Self::Known(name) => name.map(str::to_owned).into_iter().collect(),
            Self::Any(names) => names,
        }
    }
}

/// A response that allows a request with an identity.
#[derive(Debug)]
pub struct VerifiedReply {
    pub(super) identity: Arc<EncodedIdentity>,
    pub(super) validity: Validity,
    /// The rule of the rules file that decided.
    pub(super) rule: Option<Arc<str>>,
    pub(super) removed: RemovedHeaders,
}

impl VerifiedReply {
    /// Encodes the response as a `CheckResponse`.
    pub fn encode(&self, buffer: &mut impl BufMut) {
        let EncodedIdentity { headers, metadata } = &*self.identity;
        let validity = metadata::validity_fields(self.validity);

        let mut removed_length = 0;
        self.removed.for_each(|name| removed_length += text_length(name));
        let rule_length = self.rule.as_deref().map_or(0, |rule| message_length(rule_entry_length(rule)));
        let validity_length: usize = validity.iter().map(|entry| message_length(number_entry_length(entry))).sum();

        // The status is `OK`, a message without fields.
        put_head(buffer, field::STATUS, 0);
        put_head(buffer, field::OK_RESPONSE, headers.len() + removed_length);
        buffer.put_slice(headers);
        self.removed.for_each(|name| put_text(buffer, field::HEADERS_TO_REMOVE, name));

        let fields = metadata.len() + rule_length + validity_length;
        let value = message_length(fields);
        let entry = text_length(metadata::NAMESPACE) + message_length(value);
        put_head(buffer, field::DYNAMIC_METADATA, message_length(entry));
        put_head(buffer, field::FIELDS, entry);
        put_text(buffer, field::ENTRY_KEY, metadata::NAMESPACE);
        put_head(buffer, field::ENTRY_VALUE, value);
        put_head(buffer, field::STRUCT_VALUE, fields);
        buffer.put_slice(metadata);
        if let Some(rule) = self.rule.as_deref() {
            put_head(buffer, field::FIELDS, rule_entry_length(rule));
            put_text(buffer, field::ENTRY_KEY, metadata::RULE);
            put_head(buffer, field::ENTRY_VALUE, text_length(rule));
            put_text(buffer, field::STRING_VALUE, rule);
        }
        for entry in validity {
            put_head(buffer, field::FIELDS, number_entry_length(&entry));
            put_text(buffer, field::ENTRY_KEY, entry.0);
            message::encode(field::ENTRY_VALUE, &entry.1, buffer);
        }
    }
}

/// Encodes what depends only on the identity and on its service. All seven identity headers are set, because the client could
/// have sent any header that is left out.
pub fn encode_identity(names: &HeaderNames, service: ServiceId, identity: &VerifiedIdentity) -> EncodedIdentity {
    let values = identity_headers::values(identity, Some(service));
    let headers = names.identity_names().into_iter().zip(values);
    let headers = headers.map(|(name, value)| overwriting_header(name, value)).collect();
    let headers = OkHttpResponse { headers, ..OkHttpResponse::default() }.encode_to_vec();
    let metadata = metadata::of_identity(service, identity).encode_to_vec();
    EncodedIdentity { headers: headers.into(), metadata: metadata.into() }
}

fn rule_entry_length(rule: &str) -> usize {
    text_length(metadata::RULE) + message_length(text_length(rule))
}

fn number_entry_length((name, value): &(&str, Value)) -> usize {
    text_length(name) + message::encoded_len(field::ENTRY_VALUE, value)
}

/// The length of a field with a message or a text of this length.
const fn message_length(length: usize) -> usize {
    KEY_LENGTH + encoded_len_varint(length as u64) + length
}

const fn text_length(text: &str) -> usize {
    message_length(text.len())
}

/// The key and the length of a field.
fn put_head(buffer: &mut impl BufMut, field: u32, length: usize) {
    encode_key(field, WireType::LengthDelimited, buffer);
    encode_varint(length as u64, buffer);
}

fn put_text(buffer: &mut impl BufMut, field: u32, text: &str) {
    put_head(buffer, field, text.len());
    buffer.put_slice(text.as_bytes());
}
