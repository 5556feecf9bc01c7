//! Pagination of lists. A page begins after a number of items, or after the position at which the previous page ended.
//!
//! However much is stored, a request reads a limited number of rows: see [`MAX_COUNTED_ROWS`] and [`MAX_SEARCHED_ROWS`].

use std::{
    fmt::{self, Display},
    str::FromStr,
};

/// Maximum number of rows that a list counts or skips. SQLite counts this many entries of an index in about a millisecond.
pub const MAX_COUNTED_ROWS: i64 = 10_000;

/// Maximum number of rows that a list searches or counts if it must read each row to know whether it matches. SQLite needs about 2
/// µs for each row.
pub const MAX_SEARCHED_ROWS: i64 = 5_000;

/// Which page of a list is requested. `P` is the type of a position in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page<P> {
    /// Maximum number of items.
    pub limit: i64,
    /// Number of items before the page.
    pub offset: i64,
    /// The position after which the page begins. If it is `None`, the first `offset` items are skipped instead.
    pub after: Option<P>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPage<T, P> {
    pub items: Vec<T>,
    /// Number of items on all pages.
    pub total: ItemCount,
    /// The position after which the next page begins; `None` on the last page.
    pub next: Option<P>,
}

/// The number of items of a list, which is not counted beyond [`MAX_COUNTED_ROWS`] rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemCount {
    /// The number of items in the rows that were counted.
    pub count: i64,
    /// Whether there can be more items.
    pub is_lower_bound: bool,
}

impl<P> Page<P> {
    /// Default value of `limit`.
    pub const DEFAULT_LIMIT: i64 = 50;

    /// Maximum value of `limit`. A larger `limit` in a request is reduced to the maximum.
    pub const MAX_LIMIT: i64 = 200;

    /// Maximum value of `offset`. To read further, a client uses the position of the next page.
    pub const MAX_OFFSET: i64 = MAX_COUNTED_ROWS;
}

impl<T, P> ListPage<T, P> {
    /// Makes a page of `items`. If there is a next page, the caller must pass one item more than `page.limit`. `searched_until`:
    /// where the caller stopped searching before the end of the list, so that the next page continues there.
    pub fn new(
        page: &Page<P>,
        mut items: Vec<T>,
        total: ItemCount,
        position: impl Fn(&T) -> P,
        searched_until: Option<P>,
    ) -> Self {
        let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
        let next = if items.len() > limit {
            items.truncate(limit);
            items.last().map(position)
        } else {
            searched_until
        };
        Self { items, total, next }
    }
}

impl ItemCount {
    /// The number of items if all of them were counted.
    pub const fn exact(count: i64) -> Self {
        Self { count, is_lower_bound: false }
    }

    /// The number of items if the caller has counted `counted` of them. Callers stop at one more than [`MAX_COUNTED_ROWS`].
    pub const fn of_counted(counted: i64) -> Self {
        if counted > MAX_COUNTED_ROWS {
            Self { count: MAX_COUNTED_ROWS, is_lower_bound: true }
        } else {
            Self::exact(counted)
        }
    }
}

/// A position in a list that is ordered by a number, and among equal numbers by `then`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumberThen<T> {
    pub number: i64,
    /// The position among items with this number.
    pub then: T,
}

impl<T: Display> Display for NumberThen<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.number, self.then)
    }
}

impl<T: FromStr> FromStr for NumberThen<T> {
    type Err = InvalidPosition;

    fn from_str(text: &str) -> Result<Self, InvalidPosition> {
        let (number, then) = text.split_once('.').ok_or(InvalidPosition)?;
        let number = number.parse().map_err(|_| InvalidPosition)?;
        Ok(Self { number, then: then.parse().map_err(|_| InvalidPosition)? })
    }
}

/// The error for a text that is no position in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidPosition;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_page_begins_after_the_last_item_or_where_the_search_ended() {
        let page = Page { limit: 2, offset: 0, after: None };
        for (read, searched_until, items, next) in [
            (vec![9, 8, 7], Some(1), vec![9, 8], Some(8)),
            (vec![9, 8], Some(1), vec![9, 8], Some(1)),
            (vec![], Some(1), vec![], Some(1)),
            (vec![9, 8], None, vec![9, 8], None),
        ] {
            let total = ItemCount::exact(3);
            let listed = ListPage::new(&page, read, total, |item: &i64| *item, searched_until);
            assert_eq!(listed, ListPage { items, total, next });
        }
    }

    #[test]
    fn positions_are_parsed_from_their_text() {
        type Position = NumberThen<NumberThen<String>>;
        let position = NumberThen { number: -7, then: NumberThen { number: 8, then: "a.b".to_owned() } };
        assert_eq!(position.to_string(), "-7.8.a.b");
        assert_eq!(position.to_string().parse(), Ok(position));
        for text in ["", "7", "7.a.b", "7..b"] {
            assert_eq!(text.parse::<Position>(), Err(InvalidPosition), "{text}");
        }
    }
}
