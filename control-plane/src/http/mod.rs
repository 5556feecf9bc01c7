//! The HTTP API: parse, one operation, present. A file per resource.
//!
//! Neighbours: `operations` decide; `humans` verify people's tokens. The rule of the room: no handler
//! decides anything, every error goes through [`error`], every body through [`body`].

mod agents;
pub mod audit;
mod auth;
mod body;
mod caching;
mod caller;
mod code;
mod counted;
mod deadline;
mod docs;
mod document;
mod error;
mod health;
mod idempotency;
mod ids;
mod instant;
mod json;
mod limits;
mod observe;
mod origin;
mod paging;
mod roles;
mod router;
mod schema;
mod services;
mod signing_keys;
mod status;
pub mod tls;
mod trust;
mod verify;
mod webhooks;
mod well_known;

pub use counted::initialize_operation_metrics;
pub use limits::{Limits, PerMinute, RATE_CATEGORIES};
pub use origin::Proxies;
pub use router::{AppState, api_description, router};
