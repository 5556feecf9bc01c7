//! The HTTP API: handlers parse a request, run one operation and convert its result to a response.
//!
//! Depends on `operations`, `humans`, `ephemeral` (rate limits), `domain` and `metrics`, never on `store`. Invariants: handlers
//! contain no business rules, [`request::body`] parses every request body, and [`error`] builds every error response. Only [`tls`]
//! builds an error response of its own, because it answers plain HTTP before the router.

pub mod api;
mod code;
mod error;
mod middleware;
mod openapi;
mod request;
mod router;
mod state;
pub mod timestamp;
pub mod tls;

pub use error::OTHER_REASONS;
pub use middleware::{
    limits::{Limits, LimitsPerMinute, rate_categories},
    operation_metrics::initialize_operation_metrics,
};
pub use request::client_address::TrustedProxies;
pub use router::{api_description, router};
pub use state::{ApiState, AppState};
