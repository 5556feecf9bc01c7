//! `limit` and `offset` of listings, and the `pagination` that answers them.

use super::body::FromField;
use crate::{
    domain::page::{ListPage, Page},
    http::error::{ApiError, Problem},
};
use axum::{extract::FromRequestParts, http::request::Parts};
use serde::Serialize;
use std::borrow::Cow;
use utoipa::{
    IntoParams, PartialSchema, ToSchema,
    openapi::{
        Ref, RefOr, Schema, Type,
        path::{Parameter, ParameterBuilder, ParameterIn},
        schema::{ArrayBuilder, ObjectBuilder},
    },
};

/// A page of a listing.
#[derive(Serialize)]
pub struct Paged<T> {
    /// What is on this page.
    data: Vec<T>,
    pagination: Pagination,
}

impl<T: ToSchema> PartialSchema for Paged<T> {
    fn schema() -> RefOr<Schema> {
        let items = ArrayBuilder::new().items(RefOr::<Schema>::from(Ref::from_schema_name(T::name())));
        let page = ObjectBuilder::new()
            .schema_type(Type::Object)
            .description(Some("A page of a listing."))
            .property("data", items.description(Some("What is on this page.")))
            .property("pagination", Ref::from_schema_name(Pagination::name()))
            .required("data")
            .required("pagination");
        Schema::Object(page.build()).into()
    }
}

impl<T: ToSchema> ToSchema for Paged<T> {
    fn name() -> Cow<'static, str> {
        format!("{}Page", T::name()).into()
    }

    fn schemas(words: &mut Vec<(String, RefOr<Schema>)>) {
        words.push((T::name().into_owned(), T::schema()));
        words.push((Pagination::name().into_owned(), Pagination::schema()));
        T::schemas(words);
    }
}

/// Which part of a listing this is.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Pagination {
    /// How many items at the most: what was asked for, or the most there can be.
    #[schema(minimum = 1, maximum = 200, example = 50)]
    limit: i64,
    /// How many items were passed over.
    #[schema(minimum = 0, example = 0)]
    offset: i64,
    /// How many items there are on all pages.
    #[schema(minimum = 0, example = 1)]
    total: i64,
    /// Whether there are items after these.
    #[schema(example = false)]
    has_more: bool,
}

impl<S: Sync> FromRequestParts<S> for Page {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let query = parts.uri.query().unwrap_or_default();
        let (limit, offset) = (number(query, "limit", 1), number(query, "offset", 0));
        match (limit, offset) {
            (Ok(limit), Ok(offset)) => Ok(Self {
                limit: limit.unwrap_or(Self::DEFAULT_LIMIT).min(Self::MAX_LIMIT),
                offset: offset.unwrap_or(0),
            }),
            (limit, offset) => {
                let problems: Vec<_> = limit.err().into_iter().chain(offset.err()).collect();
                Err(ApiError::invalid(&problems))
            }
        }
    }
}

impl IntoParams for Page {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let (usual, largest) = (Self::DEFAULT_LIMIT, Self::MAX_LIMIT);
        let limit = format!("How many items at the most. More than {largest} counts as {largest}.");
        vec![in_query("limit", &limit, usual, 1), in_query("offset", "How many items to pass over.", 0, 0)]
    }
}

fn in_query(name: &str, about: &str, usual: i64, least: i32) -> Parameter {
    let whole = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(least)).default(Some(usual.into()));
    let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Query).description(Some(about));
    parameter.schema(Some(whole)).build()
}

/// A parameter of the query, which must not stand twice.
pub fn parameter<'a>(query: &'a str, name: &str) -> Result<Option<Cow<'a, str>>, Problem> {
    let mut values =
        form_urlencoded::parse(query.as_bytes()).filter(|(given, _)| given == name).map(|(_, value)| value);
    let value = values.next();
    let twice = || Problem { field: name.to_owned(), message: "stands twice".into() };
    if values.next().is_some() { Err(twice()) } else { Ok(value) }
}

/// A field among the parameters of the query.
pub fn field<T: FromField>(query: &str, name: &str) -> Result<Option<T>, ApiError> {
    let wrong = |message| ApiError::invalid(&[Problem { field: name.to_owned(), message }]);
    let value = parameter(query, name).map_err(|problem| ApiError::invalid(&[problem]))?;
    value.map(|value| T::from_field(value.into_owned().into())).transpose().map_err(wrong)
}

/// A number among the parameters of the query. One that is larger than any number of ours is the largest.
fn number(query: &str, name: &str, least: i64) -> Result<Option<i64>, Problem> {
    let problem = |message: String| Problem { field: name.to_owned(), message };
    let Some(value) = parameter(query, name)? else { return Ok(None) };
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| value.parse().unwrap_or(i64::MAX)).filter(|number| *number >= least);
    number.map(Some).ok_or_else(|| problem(format!("must be a whole number, {least} or more")))
}

/// A page as the specification shapes it.
pub fn present<T, U>(page: Page, listed: ListPage<T>, item: impl FnMut(T) -> U) -> Paged<U> {
    let ListPage { items, total } = listed;
    let seen = page.offset.saturating_add(i64::try_from(items.len()).unwrap_or(i64::MAX));
    let Page { limit, offset } = page;
    Paged {
        data: items.into_iter().map(item).collect(),
        pagination: Pagination { limit, offset, total, has_more: seen < total },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_digits_and_stands_once() {
        for (query, expected) in [
            ("", None),
            ("limits=7&LIMIT=7", None),
            ("limit=7", Some(7)),
            ("a&limit=%37&b=1", Some(7)),
            ("limit=99999999999999999999999", Some(i64::MAX)),
        ] {
            assert_eq!(number(query, "limit", 1).map_err(|problem| problem.message), Ok(expected), "{query}");
        }
        for query in ["limit", "limit=", "limit=0", "limit=-1", "limit=1.5", "limit=+1", "limit=a", "limit=1&limit=2"] {
            assert!(number(query, "limit", 1).is_err(), "{query}");
        }
        assert_eq!(number("offset=0", "offset", 0).map_err(|problem| problem.message), Ok(Some(0)));
    }

    #[test]
    fn more_is_told_as_long_as_there_is_more() {
        for (offset, count, more) in [(0, 2, true), (1, 2, false), (3, 0, false), (i64::MAX, 0, false)] {
            let listed = ListPage { items: vec![0; count], total: 3 };
            let presented = present(Page { limit: 2, offset }, listed, |item| item);
            assert_eq!(presented.pagination.has_more, more, "offset {offset}");
        }
    }
}
