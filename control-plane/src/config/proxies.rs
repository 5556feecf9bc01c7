//! What stands in front of this server, and who terminates TLS.

use ipnet::IpNet;
use serde::Deserialize;
use std::net::IpAddr;

/// Who terminates the TLS of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum TlsMode {
    /// This server.
    Serve,
    /// The listed proxies, which then speak plain HTTP to this server.
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
    /// The networks of proxies whose word about the client is believed.
    pub fn networks(&self) -> Vec<IpNet> {
        self.trusted.iter().map(|network| network.0).collect()
    }
}

/// A network, or a single address.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct Network(IpNet);

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
        let network = text.parse().ok().or_else(address).ok_or_else(|| {
            format!("proxies.trusted: `{text}` is neither a network such as 10.0.0.0/8 nor an address")
        })?;
        // Headers of everybody would be believed: what is meant can only be less.
        if network.prefix_len() == 0 {
            return Err(format!("proxies.trusted: `{text}` is everybody; list the networks of the proxies only"));
        }
        Ok(Self(network))
    }
}
