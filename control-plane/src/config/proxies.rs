//! `[proxies]` and `tls.mode`: the proxies in front of this server, and whether they terminate TLS.

use super::networks::Network;
use ipnet::IpNet;
use serde::Deserialize;

/// What terminates the TLS of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum TlsMode {
    /// This server terminates the TLS of the API.
    Serve,
    /// The trusted proxies terminate TLS and send plain HTTP to this server.
    Terminated,
}

impl TryFrom<String> for TlsMode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "serve" => Ok(Self::Serve),
            "terminated" => Ok(Self::Terminated),
            _ => Err(format!("tls.mode: `{text}` must be `serve` or `terminated`")),
        }
    }
}

/// `[proxies]`
#[derive(Debug, Clone, Deserialize)]
pub struct ProxySettings {
    trusted: Vec<Network>,
}

impl ProxySettings {
    /// The networks of proxies whose `X-Forwarded-For` is trusted.
    pub fn networks(&self) -> Vec<IpNet> {
        self.trusted.iter().map(|network| network.0).collect()
    }
}
