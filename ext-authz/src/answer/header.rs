//! One header, as Envoy wants it.

use envoy_types::{
    ext_authz::v3::pb::{HeaderAppendAction, HeaderValue, HeaderValueOption},
    pb::google::protobuf::BoolValue,
};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// What is not plain: it would break the header, the encoding itself, or the list.
const NOT_PLAIN: &AsciiSet = &CONTROLS.add(b'%').add(b',');

/// Sets a header over whatever the client sent. Both fields say so, since versions of Envoy differ on
/// which one they read and on the default of either.
#[expect(deprecated, reason = "older Envoys read `append` only")]
pub fn set(name: &str, value: String) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue { key: name.to_owned(), value, raw_value: vec![] }),
        append: Some(BoolValue { value: false }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        keep_empty_value: true,
    }
}

/// Items with commas between them, percent-encoded where not plain.
pub fn joined<'a>(items: impl IntoIterator<Item = &'a str>) -> String {
    let mut value = String::new();
    for (position, item) in items.into_iter().enumerate() {
        if position > 0 {
            value.push(',');
        }
        value.extend(utf8_percent_encode(item, NOT_PLAIN));
    }
    value
}
