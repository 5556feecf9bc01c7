//! Typed request bodies, declared once for parsing and for the OpenAPI description.
//!
//! The macro [`body`] declares a struct. Each field has its JSON name, a type with a parser, and the schema of that type, so
//! that the description always matches the parser. The keyword `as` selects another schema for a field.

use super::{BodyFields, FromField};
use crate::http::{
    error::ApiError,
    request::ids::{ResourceId, parse_id},
};
use serde_json::Value;
use std::{borrow::Cow, marker::PhantomData};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        OneOfBuilder, Ref, RefOr, Schema, Type,
        schema::{AdditionalProperties, ArrayBuilder, ObjectBuilder},
    },
};

/// A body with declared fields.
pub trait TypedBody: Sized {
    /// Reads all fields, so that all errors are reported at once.
    fn read(fields: &mut BodyFields) -> Option<Self>;
}

impl BodyFields {
    /// Reads the body as this type.
    pub fn read<T: TypedBody>(self) -> Result<T, ApiError> {
        self.parse(T::read)
    }
}

/// The text of an id. Handlers parse it after the rest of the body: errors in fields are reported first, and only then the 404
/// error of an id that does not parse.
pub struct UnparsedId<T>(String, PhantomData<T>);

impl<T: ResourceId> UnparsedId<T> {
    /// The id, or the 404 error of its resource.
    pub fn parse(&self) -> Result<T, ApiError> {
        parse_id(&self.0)
    }
}

impl<T: ResourceId> FromField for UnparsedId<T> {
    type Schema = T::Schema;

    fn from_field(value: Value) -> Result<Self, String> {
        String::from_field(value).map(|text| Self(text, PhantomData))
    }
}

/// A list of 1 to `MAX` objects.
pub struct ObjectList<T, const MAX: usize>(pub Vec<T>);

impl<T: TypedBody + ToSchema, const MAX: usize> FromField for ObjectList<T, MAX> {
    type Schema = Self;

    fn from_field(value: Value) -> Result<Self, String> {
        let Value::Array(items) = value else { return Err("must be an array of objects".into()) };
        if items.is_empty() || items.len() > MAX {
            return Err(format!("must have 1 to {MAX} items"));
        }
        let parse = |(position, item)| {
            let Value::Object(fields) = item else { return Err(format!("item {position} must be an object")) };
            let item = BodyFields::of_object(fields).read();
            item.map_err(|error: ApiError| format!("item {position}: {}", error.body().error.message))
        };
        items.into_iter().enumerate().map(parse).collect::<Result<_, _>>().map(Self)
    }
}

impl<T: ToSchema, const MAX: usize> PartialSchema for ObjectList<T, MAX> {
    fn schema() -> RefOr<Schema> {
        let items = Ref::from_schema_name(T::name());
        ArrayBuilder::new().items(items).min_items(Some(1)).max_items(Some(MAX)).into()
    }
}

impl<T: ToSchema, const MAX: usize> ToSchema for ObjectList<T, MAX> {
    fn name() -> Cow<'static, str> {
        format!("{}List", T::name()).into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        collect_schemas::<T>(schemas);
    }
}

/// Builds the schema of a body.
pub struct BodySchema {
    object: ObjectBuilder,
    is_form: bool,
}

impl BodySchema {
    /// Begins the schema of a JSON object. It has no fields yet, and unknown fields are errors.
    pub fn json(doc: &[&str]) -> Self {
        let Self { object, .. } = Self::form(doc);
        let no_others = AdditionalProperties::<Schema>::FreeForm(false);
        Self { object: object.additional_properties(Some(no_others)), is_form: false }
    }

    /// Begins the schema of a form. It has no fields yet, unknown fields are ignored, and no value can be null.
    pub fn form(doc: &[&str]) -> Self {
        let object = ObjectBuilder::new().schema_type(Type::Object).description(Some(join_lines(doc)));
        Self { object, is_form: true }
    }

    /// Adds a required field whose value has the schema `S`.
    pub fn required<S: ToSchema>(self, name: &str, doc: &[&str]) -> Self {
        let object = self.object.property(name, described_reference::<S>(doc)).required(name);
        Self { object, ..self }
    }

    /// Adds a field whose value has the schema `S`, and which may be absent, or null in JSON.
    pub fn optional<S: ToSchema>(self, name: &str, doc: &[&str]) -> Self {
        if self.is_form {
            let object = self.object.property(name, described_reference::<S>(doc));
            return Self { object, ..self };
        }
        let value = RefOr::<Schema>::from(Ref::from_schema_name(S::name()));
        let null = ObjectBuilder::new().schema_type(Type::Null);
        let description = Some(join_lines(doc)).filter(|doc| !doc.is_empty());
        let nullable = OneOfBuilder::new().item(value).item(null).description(description);
        Self { object: self.object.property(name, nullable), ..self }
    }

    pub fn build(self) -> RefOr<Schema> {
        Schema::Object(self.object.build()).into()
    }
}

fn described_reference<S: ToSchema>(doc: &[&str]) -> RefOr<Schema> {
    let mut schema = Ref::from_schema_name(S::name());
    schema.description = join_lines(doc);
    schema.into()
}

/// The text of a doc comment.
fn join_lines(doc: &[&str]) -> String {
    doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join("\n")
}

/// Adds the schema `S`, and the schemas that it refers to, to the components of the description.
pub fn collect_schemas<S: ToSchema>(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    schemas.push((S::name().into_owned(), S::schema()));
    S::schemas(schemas);
}

/// Declares bodies in JSON, or as forms after the keyword `form`. A field consists of `required` or `optional`, its name in the body,
/// its name in Rust and its type.
macro_rules! body {
    (form $($bodies:tt)+) => { $crate::http::request::body::typed::body!(@declare form $($bodies)+); };
    (@declare $encoding:ident $($(#[doc = $doc:literal])+ $name:ident {
        $($(#[doc = $field_doc:literal])* $presence:ident $text:literal $field:ident: $type:ty $(as $schema:ty)?,)+
    })+) => {$(
        $(#[doc = $doc])+
        pub struct $name {
            $($(#[doc = $field_doc])* pub $field: $crate::http::request::body::typed::body!(@type $presence $type),)+
        }

        impl $crate::http::request::body::typed::TypedBody for $name {
            fn read(fields: &mut $crate::http::request::body::BodyFields) -> Option<Self> {
                $(let $field = fields.$presence($text);)+
                Some(Self { $($field: $field?,)+ })
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                use $crate::http::request::body::typed;

                typed::BodySchema::$encoding(&[$($doc),+])
                    $(.$presence::<typed::body!(@schema $type $(as $schema)?)>($text, &[$($field_doc),*]))+
                    .build()
            }
        }

        impl utoipa::ToSchema for $name {
            fn name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn schemas(schemas: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::Schema>)>) {
                use $crate::http::request::body::typed;

                $(typed::collect_schemas::<typed::body!(@schema $type $(as $schema)?)>(schemas);)+
            }
        }
    )+};
    (@type required $type:ty) => { $type };
    (@type optional $type:ty) => { Option<$type> };
    (@schema $type:ty as $schema:ty) => { $schema };
    (@schema $type:ty) => { <$type as $crate::http::request::body::FromField>::Schema };
    ($($bodies:tt)+) => { $crate::http::request::body::typed::body!(@declare json $($bodies)+); };
}

pub(in crate::http) use body;
