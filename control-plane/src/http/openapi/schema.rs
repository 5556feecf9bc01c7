//! Schemas of values in the API description: ids, names, texts, timestamps, each with the format that its parser requires.
//!
//! `body` parses the values; `body::typed` maps each field to its schema. The limits in a schema come from the type that
//! enforces them. Invariant: a schema states only what the parser checks. The name of a schema component is the name of its
//! Rust type without `Schema`.

mod ids;
mod values;

pub use ids::*;
pub use values::*;

use utoipa::openapi::{
    OneOfBuilder, Schema,
    schema::{ArrayBuilder, ObjectBuilder},
};

/// Builds a schema whose description is the doc comment of its type.
pub trait SchemaBuilder {
    fn build_with_description(self, description: String) -> Schema;
}

impl SchemaBuilder for ObjectBuilder {
    fn build_with_description(self, description: String) -> Schema {
        Schema::Object(self.description(Some(description)).build())
    }
}

impl SchemaBuilder for ArrayBuilder {
    fn build_with_description(self, description: String) -> Schema {
        Schema::Array(self.description(Some(description)).build())
    }
}

impl SchemaBuilder for OneOfBuilder {
    fn build_with_description(self, description: String) -> Schema {
        Schema::OneOf(self.description(Some(description)).build())
    }
}

/// Implements the schemas of types.
macro_rules! describe {
    ($($(#[doc = $doc:literal])+ $name:ident = $schema:expr;)+) => {$(
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let doc = [$($doc.trim()),+].join("\n");
                $crate::http::openapi::schema::SchemaBuilder::build_with_description($schema, doc).into()
            }
        }

        impl utoipa::ToSchema for $name {
            fn name() -> std::borrow::Cow<'static, str> {
                let type_name = stringify!($name);
                type_name.strip_suffix("Schema").unwrap_or(type_name).into()
            }
        }
    )+};
}

/// Declares types that have a schema and no values.
macro_rules! schemas {
    ($($(#[doc = $doc:literal])+ $name:ident = $schema:expr;)+) => {
        $(
            $(#[doc = $doc])+
            pub enum $name {}
        )+

        $crate::http::openapi::schema::describe! { $($(#[doc = $doc])+ $name = $schema;)+ }
    };
}

use describe;
use schemas;
