//! The gRPC health service `grpc.health.v1`, which reports `SERVING` while the sidecar is ready and no shutdown is requested.

use crate::check::AuthorizationServer;
use countersign_process::{Readiness, Shutdown};
use tokio_stream::Empty;
use tonic::{Request, Response, Status, server::NamedService};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_server::Health,
};

/// The names whose health a client may ask for: an empty name for the whole server, or the authorization service.
const SERVICE_NAMES: [&str; 2] = ["", AuthorizationServer::NAME];

pub struct HealthService {
    pub readiness: Readiness,
    pub shutdown: Shutdown,
}

#[tonic::async_trait]
impl Health for HealthService {
    type WatchStream = Empty<Result<HealthCheckResponse, Status>>;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        if !SERVICE_NAMES.contains(&request.get_ref().service.as_str()) {
            return Err(Status::not_found("the service is unknown"));
        }
        let is_serving = self.readiness.pending().is_empty() && !self.shutdown.is_requested();
        let status = if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        Ok(Response::new(HealthCheckResponse { status: status.into() }))
    }

    /// Refuses every `Watch`: it would never end, so clients, which need no credential, could occupy all connections of the port.
    /// Envoy and Kubernetes use `Check`.
    async fn watch(&self, _request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("Watch is not supported: use Check"))
    }
}
