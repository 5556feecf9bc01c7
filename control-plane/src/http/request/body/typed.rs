//! Typed request bodies, declared once for parsing and for the OpenAPI description.
//!
//! The macro [`body`] declares a struct. Each field has its JSON name, a type with a parser, and the schema of that type, so
//! that the description always matches the parser. The keyword `as` selects another schema for a field.

use super::{BodyFields, FromField};
use crate::http::{
    error::ApiError,
    openapi::schema,
    request::ids::{ResourceId, parse_id},
};
use serde_json::Value;
use std::borrow::Cow;
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

/// The text of an id. The id is parsed after the rest of the body, because an id that does not parse is a 404 error and not
/// an invalid field.
pub struct UnparsedId<T>(String, std::marker::PhantomData<T>);

impl<T: ResourceId> UnparsedId<T> {
    /// The id, or the 404 error of its resource.
    pub fn parse(&self) -> Result<T, ApiError> {
        parse_id(&self.0)
    }
}

impl<T: IdSchema> FromField for UnparsedId<T> {
    type Schema = T::Schema;

    fn from_field(value: Value) -> Result<Self, String> {
        String::from_field(value).map(|text| Self(text, std::marker::PhantomData))
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
            item.map_err(|error: ApiError| format!("item {position}: {}", error.body().message()))
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
        schemas.push((T::name().into_owned(), T::schema()));
        T::schemas(schemas);
    }
}

/// An id type with a schema in the API description.
pub trait IdSchema {
    /// The schema.
    type Schema: ToSchema;
}

impl IdSchema for countersign_identity::AgentId {
    type Schema = schema::AgentIdSchema;
}

impl IdSchema for countersign_identity::ServiceId {
    type Schema = schema::ServiceIdSchema;
}

impl IdSchema for countersign_identity::RoleId {
    type Schema = schema::RoleIdSchema;
}

/// The description of a field in the API description.
pub trait FieldSchema {
    /// Schema of the value of the field.
    type Schema: ToSchema;
    /// Whether the field may be absent or null.
    const OPTIONAL: bool;
}

/// A required field with the schema `S`.
pub struct RequiredField<S>(std::marker::PhantomData<S>);

/// An optional field with the schema `S`.
pub struct OptionalField<S>(std::marker::PhantomData<S>);

impl<S: ToSchema> FieldSchema for RequiredField<S> {
    type Schema = S;
    const OPTIONAL: bool = false;
}

impl<S: ToSchema> FieldSchema for OptionalField<S> {
    type Schema = S;
    const OPTIONAL: bool = true;
}

/// How a body is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// A JSON object, in which unknown fields are errors.
    Json,
    /// A form, in which unknown fields are ignored, and which has no `null`.
    Form,
}

/// The schema of a body without fields.
pub fn empty_body(encoding: Encoding, doc: &str) -> ObjectBuilder {
    let body = ObjectBuilder::new().schema_type(Type::Object).description(Some(doc));
    match encoding {
        Encoding::Json => body.additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(false))),
        Encoding::Form => body,
    }
}

/// Adds a field to the schema of a body.
pub fn add_property<F: FieldSchema>(body: ObjectBuilder, encoding: Encoding, name: &str, doc: &str) -> ObjectBuilder {
    let schema = Ref::from_schema_name(F::Schema::name());
    if !F::OPTIONAL {
        return body.property(name, with_description(schema, doc)).required(name);
    }
    if encoding == Encoding::Form {
        return body.property(name, with_description(schema, doc));
    }
    let null = ObjectBuilder::new().schema_type(Type::Null);
    let nullable = OneOfBuilder::new().item(RefOr::<Schema>::from(schema)).item(null);
    body.property(name, nullable.description(Some(doc).filter(|doc| !doc.is_empty())))
}

fn with_description(mut schema: Ref, doc: &str) -> RefOr<Schema> {
    doc.clone_into(&mut schema.description);
    schema.into()
}

/// Adds the schema of a field, and the schemas that it refers to, to the components of the description.
pub fn collect_schemas<F: FieldSchema>(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    schemas.push((F::Schema::name().into_owned(), <F::Schema as utoipa::PartialSchema>::schema()));
    F::Schema::schemas(schemas);
}

/// Declares bodies in JSON, or after the keyword `form` bodies in the encoding of a form. A field consists of `required` or `optional`, its
/// name in the body, its name in Rust and its type.
macro_rules! body {
    (form $($bodies:tt)+) => { $crate::http::request::body::typed::body!(@declare Form $($bodies)+); };
    (@declare $encoding:ident $($(#[doc = $doc:literal])+ $name:ident {
        $($(#[doc = $field_doc:literal])* $presence:ident $text:literal $field:ident: $type:ty $(as $schema:ident)?,)+
    })+) => {$(
        $(#[doc = $doc])+
        pub struct $name {
            $($(#[doc = $field_doc])* $field: $crate::http::request::body::typed::body!(@type $presence $type),)+
        }

        impl $crate::http::request::body::typed::TypedBody for $name {
            fn read(fields: &mut $crate::http::request::body::BodyFields) -> Option<Self> {
                $(let $field = fields.$presence($text);)+
                Some(Self { $($field: $field?,)+ })
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let doc: &[&str] = &[$($doc.trim()),+];
                let encoding = $crate::http::request::body::typed::Encoding::$encoding;
                let body = $crate::http::request::body::typed::empty_body(encoding, &doc.join("\n"));
                $(
                    let field_doc: &[&str] = &[$($field_doc.trim()),*];
                    let body = $crate::http::request::body::typed::add_property::<$crate::http::request::body::typed::body!(@field $presence $type $(as $schema)?)>(
                        body, encoding, $text, &field_doc.join("\n"),
                    );
                )+
                utoipa::openapi::Schema::Object(body.build()).into()
            }
        }

        impl utoipa::ToSchema for $name {
            fn name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn schemas(schemas: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::Schema>)>) {
                $($crate::http::request::body::typed::collect_schemas::<$crate::http::request::body::typed::body!(@field $presence $type $(as $schema)?)>(schemas);)+
            }
        }
    )+};
    (@type required $type:ty) => { $type };
    (@type optional $type:ty) => { Option<$type> };
    (@field required $($field:tt)+) => { $crate::http::request::body::typed::RequiredField<$crate::http::request::body::typed::body!(@schema $($field)+)> };
    (@field optional $($field:tt)+) => { $crate::http::request::body::typed::OptionalField<$crate::http::request::body::typed::body!(@schema $($field)+)> };
    (@schema $type:ty as $schema:ident) => { $crate::http::openapi::schema::$schema };
    (@schema $type:ty) => { <$type as $crate::http::request::body::FromField>::Schema };
    ($($bodies:tt)+) => { $crate::http::request::body::typed::body!(@declare Json $($bodies)+); };
}

pub(in crate::http) use body;
