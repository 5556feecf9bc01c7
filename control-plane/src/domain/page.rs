//! Listings that may be long, and are told page by page.

/// The part of a listing that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// How many items at the most.
    pub limit: i64,
    /// How many are passed over.
    pub offset: i64,
}

/// A part of a listing.
#[derive(Debug, Clone)]
pub struct Listed<T> {
    /// The items of the page.
    pub items: Vec<T>,
    /// How many there are on all pages.
    pub total: i64,
}

impl Page {
    /// Items on a page, if nobody says.
    pub const USUAL: i64 = 50;

    /// Items on a page at the most.
    pub const LARGEST: i64 = 200;
}
