//! The gRPC health service `grpc.health.v1`. The health status is `SERVING` while the sidecar is ready, until shutdown is
//! requested.

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
    let follow_readiness = async {
        let mut was_ready = false;
        loop {
            let is_ready = readiness.pending().is_empty();
            if is_ready != was_ready {
                let status = if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing };
                set_status(&reporter, status).await;
                was_ready = is_ready;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::select! {
        () = follow_readiness => {}
        () = shutdown.requested() => {}
    }
    set_status(&reporter, ServingStatus::NotServing).await;
}

async fn set_status(reporter: &HealthReporter, status: ServingStatus) {
    for name in SERVICE_NAMES {
        reporter.set_service_status(name, status).await;
    }
}
