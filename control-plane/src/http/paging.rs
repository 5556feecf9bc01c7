//! `limit` and `offset` of listings, and the `pagination` that answers them.

use super::error::{ApiError, Problem};
use crate::domain::page::{Listed, Page};
use axum::{extract::FromRequestParts, http::request::Parts};
use serde_json::{Value, json};
use std::borrow::Cow;

impl<S: Sync> FromRequestParts<S> for Page {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let query = parts.uri.query().unwrap_or_default();
        let (limit, offset) = (number(query, "limit", 1), number(query, "offset", 0));
        match (limit, offset) {
            (Ok(limit), Ok(offset)) => {
                Ok(Self { limit: limit.unwrap_or(Self::USUAL).min(Self::LARGEST), offset: offset.unwrap_or(0) })
            }
            (limit, offset) => {
                let problems: Vec<_> = limit.err().into_iter().chain(offset.err()).collect();
                Err(ApiError::invalid(&problems))
            }
        }
    }
}

/// A parameter of the query, which must not stand twice.
pub fn parameter<'a>(query: &'a str, name: &str) -> Result<Option<Cow<'a, str>>, Problem> {
    let mut values =
        form_urlencoded::parse(query.as_bytes()).filter(|(given, _)| given == name).map(|(_, value)| value);
    let value = values.next();
    let twice = || Problem { field: name.to_owned(), message: "stands twice".into() };
    if values.next().is_some() { Err(twice()) } else { Ok(value) }
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
pub fn present<T>(page: Page, listed: &Listed<T>, item: impl Fn(&T) -> Value) -> Value {
    let Listed { items, total } = listed;
    let seen = page.offset.saturating_add(i64::try_from(items.len()).unwrap_or(i64::MAX));
    json!({
        "data": items.iter().map(item).collect::<Vec<_>>(),
        "pagination": { "limit": page.limit, "offset": page.offset, "total": total, "hasMore": seen < *total },
    })
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
            let listed = Listed { items: vec![0; count], total: 3 };
            let presented = present(Page { limit: 2, offset }, &listed, |item| json!(item));
            assert_eq!(presented["pagination"]["hasMore"], more, "offset {offset}");
        }
    }
}
