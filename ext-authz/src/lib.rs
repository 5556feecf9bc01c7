//! The Envoy authorizer of Countersign: a sidecar that verifies agents by itself.
//!
//! It follows the control plane's stream for every service that it guards, keeps a view of each, and
//! answers Envoy's `Check` from memory: no network, no lock, no database on that path. While the control
//! plane is away it keeps deciding, for as long as its view may be old, and then refuses.
//!
//! Neighbours: `identity` judges tokens, here and in the control plane alike; `proto` is the contract of
//! the stream; `process` makes a good process. The rule of the house: whatever is not known, not
//! understood or broken is a denial with a reason.
//!
//! Reading order: [`view`] is what is known, [`sync`] how it is learnt; [`policy`] is what a route wants;
//! [`mod@decide`] brings the two together, [`mod@answer`] puts the decision into Envoy's words, [`check`]
//! is where Envoy calls; [`app`] wires it all, by the settings of [`config`].

pub mod answer;
pub mod app;
pub mod check;
pub mod config;
pub mod decide;
#[cfg(test)]
mod fixtures;
pub mod metrics;
pub mod policy;
pub mod sync;
pub mod view;

pub use app::{App, Failure};
pub use config::Settings;

use countersign_process::{Clock, Shutdown};
use std::sync::Arc;

/// Runs the authorizer until it is asked to stop.
pub async fn run(settings: Settings, clock: Arc<dyn Clock>, shutdown: Shutdown) -> Result<(), Failure> {
    let asked = settings.listen.grpc.clone();
    let app = App::bind(settings, clock).await?;
    let grpc = app.grpc_address().map_or_else(|| asked.to_string(), |bound| bound.to_string());
    tracing::info!(grpc, admin = %app.admin_address()?, "listening");
    app.serve(shutdown).await
}
