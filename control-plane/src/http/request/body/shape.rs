//! What a body must hold, said once: how it is read, and how it is described.
//!
//! [`body`] makes a struct of which every field has the name that is read, the parser of its type and the word
//! that describes it; so the description cannot say anything else than what is done. `as` gives a text another word.

use super::{Fields, FromField};
use crate::http::{
    error::ApiError,
    openapi::schema,
    request::ids::{PathId, id},
};
use serde_json::Value;
use utoipa::{
    ToSchema,
    openapi::{OneOfBuilder, Ref, RefOr, Schema, Type, schema::ObjectBuilder},
};

/// A body whose fields are known.
pub trait Shape: Sized {
    /// Asks for every field, so that all problems are told at once.
    fn read(fields: &mut Fields) -> Option<Self>;
}

impl Fields {
    /// Reads the body as this shape; whatever the shape does not have is unknown.
    pub fn read<T: Shape>(self) -> Result<T, ApiError> {
        self.parse(T::read)
    }
}

/// An id as it was sent. Whether it leads anywhere is asked for when everything else is good.
pub struct Sent<T>(String, std::marker::PhantomData<T>);

impl<T: PathId> Sent<T> {
    /// The id, or the 404 of its kind.
    pub fn id(&self) -> Result<T, ApiError> {
        id(&self.0)
    }
}

impl<T: Described> FromField for Sent<T> {
    type Word = T::Word;

    fn from_field(value: Value) -> Result<Self, String> {
        String::from_field(value).map(|text| Self(text, std::marker::PhantomData))
    }
}

/// An id that has a word.
pub trait Described {
    /// The word.
    type Word: ToSchema;
}

impl Described for countersign_identity::AgentId {
    type Word = schema::AgentId;
}

impl Described for countersign_identity::ServiceId {
    type Word = schema::ServiceId;
}

impl Described for countersign_identity::RoleId {
    type Word = schema::RoleId;
}

/// How a field is described: by a reference to its word, or by the absence of one.
pub trait Field {
    /// What its value is.
    type Word: ToSchema;
    /// Whether it may be left out, or null.
    const OPTIONAL: bool;
}

/// A field that must be there.
pub struct Required<W>(std::marker::PhantomData<W>);

/// A field that may be left out.
pub struct Optional<W>(std::marker::PhantomData<W>);

impl<W: ToSchema> Field for Required<W> {
    type Word = W;
    const OPTIONAL: bool = false;
}

impl<W: ToSchema> Field for Optional<W> {
    type Word = W;
    const OPTIONAL: bool = true;
}

/// Adds a field to the description of a body.
pub fn describe<F: Field>(body: ObjectBuilder, name: &str, doc: &str) -> ObjectBuilder {
    let word = Ref::from_schema_name(F::Word::name());
    if !F::OPTIONAL {
        return body.property(name, described(word, doc)).required(name);
    }
    let null = ObjectBuilder::new().schema_type(Type::Null);
    let either = OneOfBuilder::new().item(RefOr::<Schema>::from(word)).item(null);
    body.property(name, either.description(Some(doc).filter(|doc| !doc.is_empty())))
}

fn described(mut word: Ref, doc: &str) -> RefOr<Schema> {
    doc.clone_into(&mut word.description);
    word.into()
}

/// Adds a word, and what it refers to, to the words of the description.
pub fn words_of<F: Field>(words: &mut Vec<(String, RefOr<Schema>)>) {
    words.push((F::Word::name().into_owned(), <F::Word as utoipa::PartialSchema>::schema()));
    F::Word::schemas(words);
}

/// Bodies, field by field: `required` or `optional`, the name in JSON, the name here, the type.
macro_rules! body {
    ($($(#[doc = $doc:literal])+ $name:ident {
        $($(#[doc = $about:literal])* $need:ident $text:literal $field:ident: $type:ty $(as $word:ident)?,)+
    })+) => {$(
        $(#[doc = $doc])+
        pub struct $name {
            $($(#[doc = $about])* $field: $crate::http::request::body::shape::body!(@type $need $type),)+
        }

        impl $crate::http::request::body::shape::Shape for $name {
            fn read(fields: &mut $crate::http::request::body::Fields) -> Option<Self> {
                $(let $field = fields.$need($text);)+
                Some(Self { $($field: $field?,)+ })
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let doc: &[&str] = &[$($doc.trim()),+];
                let body = utoipa::openapi::schema::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::Type::Object)
                    .description(Some(doc.join("\n")))
                    .additional_properties(Some(utoipa::openapi::schema::AdditionalProperties::<utoipa::openapi::Schema>::FreeForm(false)));
                $(
                    let about: &[&str] = &[$($about.trim()),*];
                    let body = $crate::http::request::body::shape::describe::<$crate::http::request::body::shape::body!(@field $need $type $(as $word)?)>(
                        body, $text, &about.join("\n"),
                    );
                )+
                utoipa::openapi::Schema::Object(body.build()).into()
            }
        }

        impl utoipa::ToSchema for $name {
            fn name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn schemas(words: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::Schema>)>) {
                $($crate::http::request::body::shape::words_of::<$crate::http::request::body::shape::body!(@field $need $type $(as $word)?)>(words);)+
            }
        }
    )+};
    (@type required $type:ty) => { $type };
    (@type optional $type:ty) => { Option<$type> };
    (@field required $($word:tt)+) => { $crate::http::request::body::shape::Required<$crate::http::request::body::shape::body!(@word $($word)+)> };
    (@field optional $($word:tt)+) => { $crate::http::request::body::shape::Optional<$crate::http::request::body::shape::body!(@word $($word)+)> };
    (@word $type:ty as $word:ident) => { $crate::http::openapi::schema::$word };
    (@word $type:ty) => { <$type as $crate::http::request::body::FromField>::Word };
}

pub(in crate::http) use body;
