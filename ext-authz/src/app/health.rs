//! `grpc.health.v1`: serving from the first views on until the stop is asked for.

use countersign_process::{Readiness, Shutdown};
use envoy_types::ext_authz::v3::pb::AuthorizationServer;
use std::time::Duration;
use tonic::server::NamedService;
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::check::Authorizer;

/// How often it is looked whether the last guard was dropped.
const LOOK: Duration = Duration::from_millis(100);

/// The server as a whole, and the one service that Envoy may ask for by name.
const NAMES: [&str; 2] = ["", <AuthorizationServer<Authorizer> as NamedService>::NAME];

/// Reports until the process is asked to stop.
pub async fn report(reporter: HealthReporter, readiness: Readiness, shutdown: Shutdown) {
    set(&reporter, ServingStatus::NotServing).await;
    let ready = async {
        while !readiness.pending().is_empty() {
            tokio::time::sleep(LOOK).await;
        }
        set(&reporter, ServingStatus::Serving).await;
    };
    tokio::select! {
        () = async { ready.await; std::future::pending().await } => {}
        () = shutdown.requested() => {}
    }
    set(&reporter, ServingStatus::NotServing).await;
}

async fn set(reporter: &HealthReporter, status: ServingStatus) {
    for name in NAMES {
        reporter.set_service_status(name, status).await;
    }
}
