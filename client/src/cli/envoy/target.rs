//! The proxies for which `countersign envoy config` prints a configuration.

use clap::ValueEnum;

/// The proxy that a configuration is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Target {
    /// Envoy with a sidecar: a complete configuration
    Envoy,
    /// Envoy with a sidecar, in front of an MCP server: a complete configuration
    EnvoyMcp,
    /// Istio with sidecars: a mesh configuration, a policy and an Envoy filter
    Istio,
    /// Istio in ambient mode: a mesh configuration, and a policy for a waypoint
    IstioAmbient,
    /// Envoy Gateway: a route and its policies
    EnvoyGateway,
    /// Another gateway that supports the experimental external authorization of the Gateway API
    GatewayApi,
    /// nginx, which asks the control plane itself
    Nginx,
}

impl Target {
    /// Whether the proxy runs on the machine of the service, and not in Kubernetes.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::Envoy | Self::EnvoyMcp | Self::Nginx)
    }

    /// The options that a target uses, besides those for the control plane and the service.
    pub const fn options(self) -> &'static [&'static str] {
        match self {
            Self::Envoy | Self::EnvoyMcp => {
                &["sidecar", "upstream", "listen", "admin-port", "host", "check-timeout", "max-stream"]
            }
            Self::Istio => &["sidecar", "upstream", "check-timeout", "max-stream", "namespace"],
            Self::IstioAmbient => &["sidecar", "upstream", "check-timeout", "namespace"],
            Self::EnvoyGateway => {
                &["sidecar", "upstream", "host", "check-timeout", "max-stream", "namespace", "gateway"]
            }
            Self::GatewayApi => &["sidecar", "upstream", "host", "namespace", "gateway"],
            Self::Nginx => &["upstream", "listen", "host", "check-timeout", "key-file"],
        }
    }
}
