//! Headers of Envoy's responses, and the encoding of their values.

use envoy_types::{
    ext_authz::v3::pb::{HeaderAppendAction, HeaderValue, HeaderValueOption},
    pb::google::protobuf::BoolValue,
};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// Characters that are percent-encoded: control characters, the escape character `%` and the list separator `,`.
const ENCODED_CHARACTERS: &AsciiSet = &CONTROLS.add(b'%').add(b',');

/// Creates a header option that overwrites the value of the client. `append` and `append_action` are both set, because
/// Envoy versions differ in which of these two fields they read and in the default of the field.
#[expect(deprecated, reason = "older Envoy versions read only `append`")]
pub fn overwriting_header(name: &str, value: String) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue { key: name.to_owned(), value, raw_value: vec![] }),
        append: Some(BoolValue { value: false }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        keep_empty_value: true,
    }
}

/// Joins items with commas. Percent-encodes special and non-ASCII characters.
pub fn join_encoded<'a>(items: impl IntoIterator<Item = &'a str>) -> String {
    let mut value = String::new();
    for (position, item) in items.into_iter().enumerate() {
        if position > 0 {
            value.push(',');
        }
        value.extend(utf8_percent_encode(item, ENCODED_CHARACTERS));
    }
    value
}
