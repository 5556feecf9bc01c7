//! The query parameters `limit`, `offset` and `cursor` of lists, and `pagination` in the response.

use super::{body::typed::collect_schemas, query::QueryParams};
use crate::{
    domain::page::{ListPage, Page},
    http::error::{ApiError, FieldError},
};
use axum::{extract::FromRequestParts, http::request::Parts};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::Serialize;
use std::{borrow::Cow, fmt::Display, ops::Not, str::FromStr};
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
        collect_schemas::<T>(schemas);
        collect_schemas::<Pagination>(schemas);
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
    /// True if only some of the items were counted, because there are many: the number of items is `total` or more. Absent if
    /// `total` is exact.
    #[serde(skip_serializing_if = "Not::not")]
    #[schema(required = false)]
    total_is_lower_bound: bool,
    /// Whether a further page follows. A page can have fewer items than `limit`, also none, if only few entries of a large list
    /// match a filter: read on until this is false.
    #[schema(example = false)]
    has_more: bool,
    /// Value of `cursor` for the next page. Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, nullable = false)]
    next_cursor: Option<String>,
}

impl<S: Sync, P: FromStr> FromRequestParts<S> for Page<P> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let query = QueryParams::of(parts);
        match (query.integer("limit", 1), parse_start(&query)) {
            (Ok(limit), Ok((offset, after))) => {
                Ok(Self { limit: limit.unwrap_or(Self::DEFAULT_LIMIT).min(Self::MAX_LIMIT), offset, after })
            }
            (limit, start) => Err(ApiError::invalid(limit.err().into_iter().chain(start.err()))),
        }
    }
}

/// Reads where a page begins: the number of items before it, and with a cursor, the position of the last of these items.
fn parse_start<P: FromStr>(query: &QueryParams) -> Result<(i64, Option<P>), FieldError> {
    let max = Page::<P>::MAX_OFFSET;
    match (query.integer("offset", 0)?, query.text("cursor")?) {
        (Some(_), Some(_)) => Err(FieldError::new("cursor", "must not be combined with `offset`")),
        (None, Some(cursor)) => {
            let error =
                || FieldError::new("cursor", "must be `pagination.nextCursor` of the previous page of the same list");
            let (offset, position) = decode_cursor(&cursor).ok_or_else(error)?;
            Ok((offset, Some(position)))
        }
        (Some(offset), None) if offset > max => {
            let fix = "to read further, pass `pagination.nextCursor` of the previous page as `cursor`";
            Err(FieldError::new("offset", format!("must be at most {max}; {fix}")))
        }
        (offset, None) => Ok((offset.unwrap_or(0), None)),
    }
}

/// Makes the cursor of the page that begins after a position, with `offset` items before it.
fn encode_cursor(offset: i64, position: &impl Display) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(format!("{offset}.{position}"))
}

/// Reads a cursor: the number of items before the page, and the position after which it begins. Clients may invent cursors without
/// harm, because a position only selects entries of the list that they may read.
fn decode_cursor<P: FromStr>(cursor: &str) -> Option<(i64, P)> {
    let text = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
    // A position never contains control characters. We refuse them here, because PostgreSQL fails if a text contains a NUL.
    let (offset, position) = Some(text.as_str()).filter(|text| !text.contains(char::is_control))?.split_once('.')?;
    let offset = offset.parse().ok().filter(|offset| *offset >= 0)?;
    Some((offset, position.parse().ok()?))
}

/// The query parameters of [`Page`], for the description of the API.
pub struct PageParameters;

impl IntoParams for PageParameters {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let (default, max, max_offset) = (Page::<()>::DEFAULT_LIMIT, Page::<()>::MAX_LIMIT, Page::<()>::MAX_OFFSET);
        let limit = format!("Maximum number of items on the page. Values above {max} are treated as {max}.");
        let offset = "Number of items to skip. `cursor` reaches also later items.";
        let cursor = "`pagination.nextCursor` of the previous page: the page begins where that page ended. The other \
                      parameters must be the same, and `offset` must be absent.";
        let integer = |min: i32, default: i64| {
            ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(min)).default(Some(default.into()))
        };
        vec![
            describe_parameter("limit", &limit, integer(1, default)),
            describe_parameter("offset", offset, integer(0, 0).maximum(Some(max_offset))),
            describe_parameter("cursor", cursor, ObjectBuilder::new().schema_type(Type::String)),
        ]
    }
}

fn describe_parameter(name: &str, description: &str, schema: ObjectBuilder) -> Parameter {
    let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Query).description(Some(description));
    parameter.schema(Some(schema)).build()
}

/// Converts a page to the format in which the API responds with lists.
pub fn page_response<T, P: Display, U>(
    page: &Page<P>,
    list_page: ListPage<T, P>,
    convert: impl FnMut(T) -> U,
) -> PageResponse<U> {
    let ListPage { items, total, next } = list_page;
    // Without a cursor, `offset` may be beyond the end of the list. Then the page is empty, and all items are before it.
    let may_be_past_end = items.is_empty() && page.after.is_none();
    let before = if may_be_past_end { page.offset.min(total.count) } else { page.offset };
    let end = before.saturating_add(i64::try_from(items.len()).unwrap_or(i64::MAX));
    PageResponse {
        data: items.into_iter().map(convert).collect(),
        pagination: Pagination {
            limit: page.limit,
            offset: page.offset,
            total: if total.is_lower_bound { total.count.max(end) } else { total.count },
            total_is_lower_bound: total.is_lower_bound,
            has_more: next.is_some(),
            next_cursor: next.map(|position| encode_cursor(end, &position)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::page::ItemCount;

    #[test]
    fn a_page_begins_after_items_or_after_a_position() {
        let parse =
            |query: &str| parse_start::<i64>(&QueryParams::new(query)).map_err(|error| (error.field, error.message));
        let cursor = encode_cursor(20_000, &7);
        assert_eq!(parse(""), Ok((0, None)));
        assert_eq!(parse("offset=10000"), Ok((10_000, None)));
        assert_eq!(parse(&format!("cursor={cursor}")), Ok((20_000, Some(7))));
        let [negative, other, nul] =
            ["-1.7", "0.x", "0.\0"].map(|text| format!("cursor={}", BASE64_URL_SAFE_NO_PAD.encode(text)));
        let both = format!("cursor={cursor}&offset=0");
        for (query, field, message) in [
            ("offset=10001", "offset", "must be at most 10000; "),
            (&both, "cursor", "must not be combined with `offset`"),
            ("cursor=", "cursor", "must be `pagination.nextCursor`"),
            ("cursor=7", "cursor", "must be `pagination.nextCursor`"),
            (&negative, "cursor", "must be `pagination.nextCursor`"),
            (&other, "cursor", "must be `pagination.nextCursor`"),
            (&nul, "cursor", "must be `pagination.nextCursor`"),
        ] {
            let (invalid, text) = parse(query).unwrap_err();
            assert!(invalid == field && text.starts_with(message), "{query}: {invalid} {text}");
        }
        assert_eq!(decode_cursor::<String>(&BASE64_URL_SAFE_NO_PAD.encode("0.\0")), None);
    }

    #[test]
    fn the_response_counts_the_items_before_the_next_page() {
        let [exact, bound] = [ItemCount::exact(3), ItemCount { count: 3, is_lower_bound: true }];
        for (offset, after, count, total, next, expected) in [
            (0, None, 2, exact, Some(8), (3, Some((2, 8)))),
            (2, Some(8), 1, exact, None, (3, None)),
            (9, None, 0, exact, None, (3, None)),
            (2, Some(8), 2, bound, Some(6), (4, Some((4, 6)))),
            (9, None, 0, bound, Some(6), (3, Some((3, 6)))),
            (9, Some(8), 0, bound, Some(6), (9, Some((9, 6)))),
        ] {
            let list_page = ListPage { items: vec![0; count], total, next };
            let response = page_response(&Page { limit: 2, offset, after }, list_page, |item| item).pagination;
            assert_eq!((response.has_more, response.total_is_lower_bound), (next.is_some(), total.is_lower_bound));
            let next = response.next_cursor.map(|cursor| decode_cursor::<i64>(&cursor).unwrap());
            assert_eq!((response.total, next), expected, "offset {offset}");
        }
    }
}
