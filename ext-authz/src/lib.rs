//! The Envoy authorizer of Countersign: a sidecar that verifies agents locally.
//!
//! It follows the sync stream of every service that it protects, keeps a view of each, and answers Envoy's `Check` from
//! memory, without network, lock or database. While the control plane is unreachable it continues to decide until its
//! view is too old, and then denies all requests.
//!
//! Depends on `identity`, which verifies tokens here and in the control plane; `proto`, the contract of the stream; and
//! `process`. Invariant: missing data, invalid input and internal errors are denials with a reason.
//!
//! Reading order: [`view`] is the local data and [`sync`] receives it; [`policy`] contains the requirements of a route;
//! [`mod@decide`] makes the decision, [`response`] presents it to Envoy, and [`check`] is the API that Envoy calls;
//! [`app`] creates everything from the settings of [`config`].

pub mod app;
pub mod check;
pub mod config;
pub mod decide;
#[cfg(test)]
mod fixtures;
pub mod metrics;
pub mod policy;
pub mod response;
pub mod sync;
pub mod view;

pub use app::{App, AuthorizerError};
pub use config::Settings;

use countersign_process::{Clock, Shutdown};
use std::sync::Arc;

/// Runs the authorizer until shutdown is requested.
pub async fn run(settings: Settings, clock: Arc<dyn Clock>, shutdown: Shutdown) -> Result<(), AuthorizerError> {
    let configured = settings.listen.grpc.clone();
    let app = App::bind(settings, clock).await?;
    let grpc = app.grpc_address().map_or_else(|| configured.to_string(), |address| address.to_string());
    tracing::info!(grpc, admin = %app.admin_address()?, "listening");
    app.serve(shutdown).await
}
