//! Pages of listings.

use super::{Api, Result};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, de::DeserializeOwned};

/// The maximum page size of the API.
pub(super) const MAX_PAGE_SIZE: usize = 200;

/// A page of a listing.
#[derive(Debug, Deserialize)]
pub struct Page<T> {
    /// The items of the page.
    pub data: Vec<T>,
    pagination: Pagination,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pagination {
    next_cursor: Option<String>,
}

/// Where a page of a listing begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageStart {
    /// After this number of items.
    Offset(usize),
    /// Where the previous page ended.
    Cursor(String),
}

impl PageStart {
    /// The beginning of the listing.
    pub const FIRST: Self = Self::Offset(0);
}

impl<T> Page<T> {
    /// Where the next page begins; `None` on the last page.
    pub fn next(&self) -> Option<PageStart> {
        self.pagination.next_cursor.clone().map(PageStart::Cursor)
    }
}

/// Items of a listing, and whether there are more.
#[derive(Debug)]
pub struct Listing<T> {
    /// The items.
    pub items: Vec<T>,
    /// Whether the listing has more items.
    pub has_more: bool,
}

/// The items of all pages.
pub async fn all_pages<T>(fetch: impl AsyncFn(PageStart) -> Result<Page<T>>) -> Result<Vec<T>> {
    items_up_to(usize::MAX, PageStart::FIRST, async |_, start| fetch(start).await).await.map(|listing| listing.items)
}

/// Returns at most `limit` items of a listing, from `start` on. `fetch` gets the maximum size and the start of each page.
pub async fn items_up_to<T>(
    limit: usize,
    start: PageStart,
    fetch: impl AsyncFn(usize, PageStart) -> Result<Page<T>>,
) -> Result<Listing<T>> {
    let mut items = Vec::new();
    let mut next = Some(start);
    while items.len() < limit {
        let Some(start) = next else { break };
        let page = fetch(MAX_PAGE_SIZE.min(limit - items.len()), start).await?;
        next = page.next();
        items.extend(page.data);
    }
    Ok(Listing { items, has_more: next.is_some() })
}

impl Api {
    /// Fetches a page of at most `limit` items.
    pub(super) async fn page<T: DeserializeOwned>(
        &self,
        credential: &SecretString,
        path: &[&str],
        start: &PageStart,
        limit: usize,
        filter: &[(&str, Option<&str>)],
    ) -> Result<Page<T>> {
        let mut url = self.endpoint(path)?;
        url.query_pairs_mut().append_pair("limit", &limit.to_string());
        match start {
            PageStart::Offset(offset) => url.query_pairs_mut().append_pair("offset", &offset.to_string()),
            PageStart::Cursor(cursor) => url.query_pairs_mut().append_pair("cursor", cursor),
        };
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
