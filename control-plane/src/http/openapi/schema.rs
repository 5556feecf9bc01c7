//! Schemas of values in the API description: ids, names, texts, timestamps, each with the format that its parser requires.
//!
//! `body` parses the values; `body::typed` maps each field to its schema. The limits in a schema come from the type that
//! enforces them. Invariant: a schema states only what the parser checks. The name of a schema component is the name of its
//! Rust type without `Schema`.

mod ids;
mod values;

pub use ids::*;
pub use values::*;

/// Declares types that have a schema and no values.
macro_rules! schemas {
    ($($(#[doc = $doc:literal])+ $name:ident = $schema:expr;)+) => {$(
        $(#[doc = $doc])+
        pub enum $name {}

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let schema: utoipa::openapi::schema::ObjectBuilder = $schema;
                let doc = [$($doc.trim()),+].join("\n");
                utoipa::openapi::Schema::Object(schema.description(Some(doc)).build()).into()
            }
        }

        impl utoipa::ToSchema for $name {
            fn name() -> std::borrow::Cow<'static, str> {
                $crate::http::openapi::schema::component_name(stringify!($name))
            }
        }
    )+};
}

use schemas;

/// The name of the component that this type describes.
pub fn component_name(type_name: &'static str) -> std::borrow::Cow<'static, str> {
    type_name.strip_suffix("Schema").unwrap_or(type_name).into()
}
