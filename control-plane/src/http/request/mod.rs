//! Extractors: everything that is parsed from a request before an operation runs.

pub(super) mod body;
pub(super) mod caller;
pub(super) mod idempotency;
pub(super) mod ids;
pub(super) mod json;
pub(super) mod origin;
pub(super) mod paging;
pub(super) mod timestamp;
