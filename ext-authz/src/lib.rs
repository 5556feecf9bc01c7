//! The sidecar of Countersign for Envoy, which verifies agents locally.
//!
//! The sidecar receives the sync stream of every service that it protects, and keeps a view (a local copy) of each service's data. It
//! answers Envoy's `Check` calls from memory, without network, lock or database. While the control plane is unreachable, it
//! continues to decide until its view of a service is too old, and then denies all requests for this service.
//!
//! The crate depends on `identity`, which verifies tokens in the sidecar and in the control plane; on `proto`, the messages of the
//! stream; and on `process`. Invariant: missing data, invalid input and internal errors are denials with a reason.
//!
//! Reading order: `view` is the local data of a service, and `sync` receives that data; `policy` contains the
//! requirements of a route, and `rules` selects the policy of a request; `decide` makes the decision; `response` builds the
//! response; `check` is the API that Envoy calls; `app` connects the modules according to the settings in `config`;
//! `commands` are the subcommands of the program.

mod app;
mod check;
pub mod commands;
pub mod config;
mod copy;
mod decide;
#[cfg(test)]
mod fixtures;
mod metrics;
mod policy;
mod response;
mod rules;
mod sync;
mod view;

pub use app::{App, AuthorizerError};
pub use config::Settings;

use countersign_process::{Clock, Shutdown, SystemRng};
use std::sync::Arc;

/// Runs the sidecar until shutdown is requested.
pub async fn run(settings: Settings, clock: Arc<dyn Clock>, shutdown: Shutdown) -> Result<(), AuthorizerError> {
    // If the configured address has port 0, we log the bound one. A Unix socket has no bound address, so we log its configured one.
    let configured_address = settings.listen.grpc.clone();
    let app = App::bind(settings, clock, Arc::new(SystemRng), copy::copy_interval).await?;
    let grpc = app.grpc_address().map_or_else(|| configured_address.to_string(), |address| address.to_string());
    tracing::info!(grpc, admin = %app.admin_address()?, "listening");
    Box::pin(app.serve(shutdown)).await
}
