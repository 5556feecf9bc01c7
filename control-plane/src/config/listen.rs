//! `[listen]`: the addresses of the three ports.

use serde::{Deserialize, Deserializer, de::Error};
use std::net::SocketAddr;

/// `[listen]`
#[derive(Debug, Clone, Deserialize)]
pub struct ListenSettings {
    /// The API: HTTPS.
    #[serde(deserialize_with = "address")]
    pub api: SocketAddr,
    /// The sync port for sidecars: gRPC over TLS.
    #[serde(deserialize_with = "address")]
    pub sync: SocketAddr,
    /// Health checks and metrics: plain HTTP.
    #[serde(deserialize_with = "address")]
    pub admin: SocketAddr,
}

impl ListenSettings {
    /// A message for each pair of settings with the same address.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        let Self { api, sync, admin } = *self;
        let pairs = [("api", api, "sync", sync), ("api", api, "admin", admin), ("sync", sync, "admin", admin)];
        let conflicts = pairs.into_iter().filter(|(_, first, _, second)| conflict(*first, *second));
        conflicts.map(|(first_name, first, second_name, second)| {
            format!("listen.{first_name}, listen.{second_name}: {first} and {second} need the same port: set different ports")
        })
    }
}

/// Whether only one of the addresses can be bound. Port 0 is any free port.
fn conflict(first: SocketAddr, second: SocketAddr) -> bool {
    // `[::]` includes all IPv4 addresses.
    let includes = |all: SocketAddr, other: SocketAddr| all.ip().is_unspecified() && (all.is_ipv6() || other.is_ipv4());
    let overlap = first.ip() == second.ip() || includes(first, second) || includes(second, first);
    first.port() != 0 && first.port() == second.port() && overlap
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|_| {
        let text = text.escape_debug();
        D::Error::custom(format_args!(
            "`{text}` must be an IP address and a port, such as `0.0.0.0:8443` or `[::]:8443`"
        ))
    })
}
