//! The HTTP API: handlers parse a request, run one operation and present its result.
//!
//! Depends on `operations`, `humans`, `ephemeral` (rate limits) and `domain`, never on `store`. Handlers decide nothing.
//! Every error goes through [`error`] and every request body through [`request::body`].

pub mod api;
mod code;
mod error;
mod middleware;
mod openapi;
mod request;
mod router;
mod state;
pub mod tls;

pub use middleware::counted::initialize_operation_metrics;
pub use middleware::limits::{Limits, PerMinute, RATE_CATEGORIES};
pub use request::origin::Proxies;
pub use router::{api_description, router};
pub use state::AppState;
