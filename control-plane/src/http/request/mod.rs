//! Extractors and middleware that parse a request before an operation runs.

pub(super) mod body;
pub(super) mod caller;
pub(super) mod client_address;
pub(super) mod idempotency;
pub(super) mod ids;
pub(super) mod json;
pub(super) mod paging;
pub(super) mod query;
pub(super) mod service_client;
