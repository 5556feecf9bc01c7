//! Pagination of lists by limit and offset.

/// The requested page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Maximum number of items.
    pub limit: i64,
    /// Number of items to skip.
    pub offset: i64,
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPage<T> {
    /// Items on this page.
    pub items: Vec<T>,
    /// Number of items on all pages.
    pub total: i64,
}

impl Page {
    /// Default value of `limit`.
    pub const DEFAULT_LIMIT: i64 = 50;

    /// Maximum value of `limit`. A larger `limit` in a request is reduced to the maximum.
    pub const MAX_LIMIT: i64 = 200;
}
