//! Headers of Envoy's responses.

use envoy_types::{
    ext_authz::v3::pb::{HeaderAppendAction, HeaderValue, HeaderValueOption},
    pb::google::protobuf::BoolValue,
};

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
