//! Starts control plane, sidecar, Envoy and upstream together.

use crate::{Agent, ControlPlane, Envoy, HttpResponse, Sidecar, Upstream};

/// A control plane with a sidecar, and Envoy in front of an upstream.
pub struct Environment {
    /// The control plane.
    pub control: ControlPlane,
    /// The sidecar of the first service.
    pub sidecar: Sidecar,
    /// The service behind Envoy.
    pub upstream: Upstream,
    /// Envoy with the example configuration, but with a longer time for a decision.
    pub envoy: Envoy,
}

impl Environment {
    /// Starts all four servers.
    pub async fn start() -> Self {
        let control = ControlPlane::start_process().await;
        let (sidecar, upstream) = tokio::join!(Sidecar::start(&control), Upstream::start());
        let envoy = Envoy::start_with_long_check_timeout(&sidecar.socket(), upstream.port).await;
        Self { control, sidecar, upstream, envoy }
    }

    /// Registers an agent and assigns a new role with these permissions. Returns the agent and the role id.
    pub async fn agent(&self, role: &str, permissions: &[&str]) -> (Agent, String) {
        Agent::with_role(&self.control, role, permissions).await
    }

    /// Sends a GET request through Envoy with a token.
    pub async fn call(&self, path: &str, token: &str) -> HttpResponse {
        self.envoy.listener.get_as(token, path).await
    }
}
