//! The query parameters `limit` and `offset` of lists, and `pagination` in the response.

use super::body::FromField;
use crate::{
    domain::page::{ListPage, Page},
    http::error::{ApiError, FieldError},
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

/// One page of a list.
#[derive(Serialize)]
pub struct PageResponse<T> {
    /// The items of this page.
    data: Vec<T>,
    pagination: Pagination,
}

impl<T: ToSchema> PartialSchema for PageResponse<T> {
    fn schema() -> RefOr<Schema> {
        let items = ArrayBuilder::new().items(RefOr::<Schema>::from(Ref::from_schema_name(T::name())));
        let page = ObjectBuilder::new()
            .schema_type(Type::Object)
            .description(Some("One page of a list."))
            .property("data", items.description(Some("The items of this page.")))
            .property("pagination", Ref::from_schema_name(Pagination::name()))
            .required("data")
            .required("pagination");
        Schema::Object(page.build()).into()
    }
}

impl<T: ToSchema> ToSchema for PageResponse<T> {
    fn name() -> Cow<'static, str> {
        format!("{}Page", T::name()).into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((T::name().into_owned(), T::schema()));
        schemas.push((Pagination::name().into_owned(), Pagination::schema()));
        T::schemas(schemas);
    }
}

/// Position of the page in the list.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Pagination {
    /// Maximum number of items on a page: `limit` of the request, but at most 200.
    #[schema(minimum = 1, maximum = 200, example = 50)]
    limit: i64,
    /// Number of items before this page.
    #[schema(minimum = 0, example = 0)]
    offset: i64,
    /// Number of items on all pages.
    #[schema(minimum = 0, example = 1)]
    total: i64,
    /// Whether there are items after this page.
    #[schema(example = false)]
    has_more: bool,
}

impl<S: Sync> FromRequestParts<S> for Page {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let query = parts.uri.query().unwrap_or_default();
        let (limit, offset) = (integer_parameter(query, "limit", 1), integer_parameter(query, "offset", 0));
        match (limit, offset) {
            (Ok(limit), Ok(offset)) => Ok(Self {
                limit: limit.unwrap_or(Self::DEFAULT_LIMIT).min(Self::MAX_LIMIT),
                offset: offset.unwrap_or(0),
            }),
            (limit, offset) => {
                let errors: Vec<_> = limit.err().into_iter().chain(offset.err()).collect();
                Err(ApiError::invalid(&errors))
            }
        }
    }
}

impl IntoParams for Page {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let (default, max) = (Self::DEFAULT_LIMIT, Self::MAX_LIMIT);
        let limit = format!("Maximum number of items on the page. Values above {max} are treated as {max}.");
        vec![
            describe_parameter("limit", &limit, default, 1),
            describe_parameter("offset", "Number of items to skip.", 0, 0),
        ]
    }
}

fn describe_parameter(name: &str, description: &str, default: i64, min: i32) -> Parameter {
    let integer = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(min)).default(Some(default.into()));
    let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Query).description(Some(description));
    parameter.schema(Some(integer)).build()
}

/// The value of a query parameter. A repeated parameter is an error.
pub fn query_parameter<'a>(query: &'a str, name: &str) -> Result<Option<Cow<'a, str>>, FieldError> {
    let mut values = form_urlencoded::parse(query.as_bytes()).filter(|(key, _)| key == name).map(|(_, value)| value);
    let value = values.next();
    let repeated = || FieldError { field: name.to_owned(), message: "must not occur twice".into() };
    if values.next().is_some() { Err(repeated()) } else { Ok(value) }
}

/// The value of a query parameter, parsed like a field of a body.
pub fn parsed_query_parameter<T: FromField>(query: &str, name: &str) -> Result<Option<T>, ApiError> {
    let invalid = |message| ApiError::invalid(&[FieldError { field: name.to_owned(), message }]);
    let value = query_parameter(query, name).map_err(|error| ApiError::invalid(&[error]))?;
    value.map(|value| T::from_field(value.into_owned().into())).transpose().map_err(invalid)
}

/// The integer value of a query parameter. A value above `i64::MAX` becomes `i64::MAX`.
fn integer_parameter(query: &str, name: &str, min: i64) -> Result<Option<i64>, FieldError> {
    let error = |message: String| FieldError { field: name.to_owned(), message };
    let Some(value) = query_parameter(query, name)? else { return Ok(None) };
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| value.parse().unwrap_or(i64::MAX)).filter(|number| *number >= min);
    number.map(Some).ok_or_else(|| error(format!("must be a whole number, {min} or more")))
}

/// Converts a page to the response format of the specification.
pub fn page_response<T, U>(page: Page, list_page: ListPage<T>, convert: impl FnMut(T) -> U) -> PageResponse<U> {
    let ListPage { items, total } = list_page;
    let end = page.offset.saturating_add(i64::try_from(items.len()).unwrap_or(i64::MAX));
    let Page { limit, offset } = page;
    PageResponse {
        data: items.into_iter().map(convert).collect(),
        pagination: Pagination { limit, offset, total, has_more: end < total },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_one_integer_per_parameter() {
        for (query, expected) in [
            ("", None),
            ("limits=7&LIMIT=7", None),
            ("limit=7", Some(7)),
            ("a&limit=%37&b=1", Some(7)),
            ("limit=99999999999999999999999", Some(i64::MAX)),
        ] {
            assert_eq!(integer_parameter(query, "limit", 1).map_err(|error| error.message), Ok(expected), "{query}");
        }
        for query in ["limit", "limit=", "limit=0", "limit=-1", "limit=1.5", "limit=+1", "limit=a", "limit=1&limit=2"] {
            assert!(integer_parameter(query, "limit", 1).is_err(), "{query}");
        }
        assert_eq!(integer_parameter("offset=0", "offset", 0).map_err(|error| error.message), Ok(Some(0)));
    }

    #[test]
    fn has_more_is_true_until_the_last_page() {
        for (offset, count, has_more) in [(0, 2, true), (1, 2, false), (3, 0, false), (i64::MAX, 0, false)] {
            let list_page = ListPage { items: vec![0; count], total: 3 };
            let response = page_response(Page { limit: 2, offset }, list_page, |item| item);
            assert_eq!(response.pagination.has_more, has_more, "offset {offset}");
        }
    }
}
