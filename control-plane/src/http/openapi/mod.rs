//! The OpenAPI description of the API, generated from the handlers, and the page that shows it.

pub(super) mod docs;
pub(super) mod document;
pub(super) mod errors;
mod events;
mod examples;
mod rate_limits;
pub(super) mod schema;
