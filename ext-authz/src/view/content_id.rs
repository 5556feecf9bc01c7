//! Names the content of a view, so that what was computed from it can be used again.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Names the content of a view: its revision, its floor, its settings, keys, roles, changes and revocations. Each change of the
/// content gets a number that no view of this process had before. The confirmation of a view is no content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentId(u64);

impl ContentId {
    /// A number that no content has.
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Relaxed))
    }
}
