//! `grpc.health.v1`: serving from the first confirmed views until shutdown is requested.

use crate::check::Authorizer;
use countersign_process::{Readiness, Shutdown};
use envoy_types::ext_authz::v3::pb::AuthorizationServer;
use std::time::Duration;
use tonic::server::NamedService;
use tonic_health::{ServingStatus, server::HealthReporter};

/// The interval between two readiness checks.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The server as a whole, and the authorization service by name.
const SERVICE_NAMES: [&str; 2] = ["", <AuthorizationServer<Authorizer> as NamedService>::NAME];

/// Reports the serving status until shutdown is requested.
pub async fn report(reporter: HealthReporter, readiness: Readiness, shutdown: Shutdown) {
    set_status(&reporter, ServingStatus::NotServing).await;
    let ready = async {
        while !readiness.pending().is_empty() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        set_status(&reporter, ServingStatus::Serving).await;
    };
    tokio::select! {
        () = async { ready.await; std::future::pending().await } => {}
        () = shutdown.requested() => {}
    }
    set_status(&reporter, ServingStatus::NotServing).await;
}

async fn set_status(reporter: &HealthReporter, status: ServingStatus) {
    for name in SERVICE_NAMES {
        reporter.set_service_status(name, status).await;
    }
}
