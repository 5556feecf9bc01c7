//! Middleware, and the request extensions that it provides to handlers.

pub(super) mod chain;
pub(super) mod conditional_get;
pub(super) mod deadline;
pub(super) mod limits;
pub(super) mod operation_metrics;
pub(super) mod request_lines;
pub(super) mod telemetry;
