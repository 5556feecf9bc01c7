//! Lists of networks in settings.

use ipnet::IpNet;
use serde::Deserialize;
use std::net::IpAddr;

/// A network in CIDR notation, or a single address.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub struct Network(pub IpNet);

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
        let network = text
            .parse()
            .ok()
            .or_else(address)
            .ok_or_else(|| format!("`{text}` is neither a network such as 10.0.0.0/8 nor an address"))?;
        // A list of trusted networks that contains every address is a mistake.
        if network.prefix_len() == 0 {
            return Err(format!("`{text}` contains every address; list specific networks"));
        }
        Ok(Self(network))
    }
}
