//! Pages of listings.

use super::{Api, ApiError};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, de::DeserializeOwned};
use std::borrow::Cow;

/// The maximum page size of the API, as a query parameter.
const MAX_PAGE_SIZE: &str = "200";

/// A page of a listing.
#[derive(Debug, Deserialize)]
pub struct Page<T> {
    /// The items of the page.
    pub data: Vec<T>,
    /// The position of the page in the listing.
    pub pagination: Pagination,
}

/// The position of a page in its listing.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pagination {
    /// The cursor of the next page; `None` on the last page.
    pub next_cursor: Option<String>,
}

/// Where a page of a listing begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageStart {
    /// After a number of items.
    Offset(usize),
    /// Where another page ended.
    Cursor(String),
}

impl PageStart {
    /// The beginning of the listing.
    pub const FIRST: Self = Self::Offset(0);

    /// The query parameter that states where the page begins.
    pub(super) fn parameter(&self) -> (&'static str, Cow<'_, str>) {
        match self {
            Self::Offset(offset) => ("offset", offset.to_string().into()),
            Self::Cursor(cursor) => ("cursor", cursor.into()),
        }
    }
}

impl<T> Page<T> {
    /// Where the next page begins; `None` on the last page.
    pub fn next(&self) -> Option<PageStart> {
        self.pagination.next_cursor.clone().map(PageStart::Cursor)
    }
}

/// The items of all pages.
pub async fn all_pages<T>(fetch: impl AsyncFn(PageStart) -> Result<Page<T>, ApiError>) -> Result<Vec<T>, ApiError> {
    let mut items = Vec::new();
    let mut start = Some(PageStart::FIRST);
    while let Some(from) = start {
        let page = fetch(from).await?;
        start = page.next();
        items.extend(page.data);
    }
    Ok(items)
}

impl Api {
    /// Fetches a page of a listing.
    pub(super) async fn page<T: DeserializeOwned>(
        &self,
        credential: &SecretString,
        path: &[&str],
        start: &PageStart,
    ) -> Result<Page<T>, ApiError> {
        self.filtered_page(credential, path, start, &[]).await
    }

    /// Fetches a page of a filtered listing.
    pub(super) async fn filtered_page<T: DeserializeOwned>(
        &self,
        credential: &SecretString,
        path: &[&str],
        start: &PageStart,
        filter: &[(&str, &Option<String>)],
    ) -> Result<Page<T>, ApiError> {
        let mut url = self.endpoint(path)?;
        let (parameter, value) = start.parameter();
        url.query_pairs_mut().append_pair("limit", MAX_PAGE_SIZE).append_pair(parameter, &value);
        for (name, value) in filter {
            if let Some(value) = value {
                url.query_pairs_mut().append_pair(name, value);
            }
        }
        self.send(self.http.get(url).bearer_auth(credential.expose_secret())).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn next_page_begins_at_the_cursor() {
        let cursor = || Some(PageStart::Cursor("next".to_owned()));
        for (data, pagination, expected) in [
            (json!([7, 8]), json!({ "nextCursor": "next" }), cursor()),
            (json!([]), json!({ "nextCursor": "next" }), cursor()),
            (json!([7]), json!({ "nextCursor": null }), None),
            (json!([7]), json!({}), None),
        ] {
            let body = json!({ "data": data, "pagination": pagination });
            let page: Page<u32> = serde_json::from_value(body.clone()).unwrap();
            assert_eq!(page.next(), expected, "{body}");
        }
    }
}
