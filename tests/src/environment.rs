//! Everything at once: control plane, sidecar, Envoy, upstream.

use crate::{Agent, ControlPlane, Envoy, HttpResponse, Sidecar, Upstream};

/// The whole stage.
pub struct Environment {
    /// The control plane.
    pub control: ControlPlane,
    /// The sidecar of its first service.
    pub sidecar: Sidecar,
    /// The service behind Envoy.
    pub upstream: Upstream,
    /// Envoy, as shipped.
    pub envoy: Envoy,
}

impl Environment {
    /// Starts all of it.
    pub async fn start() -> Self {
        let control = ControlPlane::start().await;
        let (sidecar, upstream) = tokio::join!(Sidecar::start(&control), Upstream::start());
        let envoy = Envoy::shipped(&sidecar.socket(), upstream.port).await;
        Self { control, sidecar, upstream, envoy }
    }

    /// A new agent that holds a new role with these permissions; gives it with the role's id.
    pub async fn agent(&self, role: &str, permissions: &[&str]) -> (Agent, String) {
        let agent = Agent::register(&self.control, "Test Agent").await;
        let role = self.control.create_role(role, permissions).await;
        self.control.assign(&agent.id, &role).await;
        (agent, role)
    }

    /// A request through Envoy with a token.
    pub async fn call(&self, path: &str, token: &str) -> HttpResponse {
        self.envoy.site.get_as(token, path).await
    }
}
