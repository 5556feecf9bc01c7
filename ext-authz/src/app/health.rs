//! The gRPC health service `grpc.health.v1`. The health status is `SERVING` from the time when the sidecar has
//! confirmed data (a view) for every API key until shutdown is requested.

use crate::check::Authorizer;
use countersign_process::{Readiness, Shutdown};
use envoy_types::ext_authz::v3::pb::AuthorizationServer;
use std::time::Duration;
use tonic::server::NamedService;
use tonic_health::{ServingStatus, server::HealthReporter};

/// The interval at which readiness is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The health-check names of the server as a whole and of the authorization service.
const SERVICE_NAMES: [&str; 2] = ["", <AuthorizationServer<Authorizer> as NamedService>::NAME];

/// Reports the serving status until shutdown is requested.
pub async fn report(reporter: HealthReporter, readiness: Readiness, shutdown: Shutdown) {
    set_status(&reporter, ServingStatus::NotServing).await;
    let serve_when_ready = async {
        while !readiness.pending().is_empty() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        set_status(&reporter, ServingStatus::Serving).await;
    };
    tokio::select! {
        () = async { serve_when_ready.await; std::future::pending().await } => {}
        () = shutdown.requested() => {}
    }
    set_status(&reporter, ServingStatus::NotServing).await;
}

async fn set_status(reporter: &HealthReporter, status: ServingStatus) {
    for name in SERVICE_NAMES {
        reporter.set_service_status(name, status).await;
    }
}
