//! Headers of Envoy's responses.

use countersign_proto::envoy::config::core::v3::{
    HeaderValue, HeaderValueOption, header_value_option::HeaderAppendAction,
};

/// Creates a header option that overwrites the value of the client. `append` and `append_action` are both set, because
/// Envoy versions differ in which of these two fields they read and in the default of the field.
#[expect(deprecated, reason = "older Envoy versions read only `append`")]
pub fn overwriting_header(name: &str, value: String) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue { key: name.to_owned(), value, raw_value: vec![] }),
        append: Some(false),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        keep_empty_value: true,
    }
}
