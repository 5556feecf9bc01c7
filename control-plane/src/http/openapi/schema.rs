//! The words of the API description: ids, names, texts, instants, with the form that each must have.
//!
//! Neighbours: `body` reads the same words, and `body::shape` says by which of these a field is described; limits come
//! from the types that enforce them. The rule of the room: a word says nothing that its parser does not do.

mod ids;
mod texts;

pub use ids::*;
pub use texts::*;

/// Words: types that only say how a value looks.
macro_rules! words {
    ($($(#[doc = $doc:literal])+ $name:ident = $form:expr;)+) => {$(
        $(#[doc = $doc])+
        pub enum $name {}

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let form: utoipa::openapi::schema::ObjectBuilder = $form;
                let doc = [$($doc.trim()),+].join("\n");
                utoipa::openapi::Schema::Object(form.description(Some(doc)).build()).into()
            }
        }

        impl utoipa::ToSchema for $name {
            fn name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
        }
    )+};
}

use words;
