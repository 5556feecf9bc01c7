//! The three listening sockets, and the limits of the API port and the sync port.

use super::AppError;
use crate::{config::Config, webhooks::MAX_IDLE_CONNECTIONS};
use countersign_process::server::{
    ConnectionCaps, LINGER, PortMetrics, PortSettings, ProtocolLimits, RESERVED_DESCRIPTORS, fit_to_descriptors,
    raise_descriptor_limit,
};
use std::{net::SocketAddr, time::Duration};
use tokio::net::{TcpListener, TcpSocket};

/// How many connections the operating system keeps until the server accepts them.
const BACKLOG: u32 = 1024;

/// How long a client may take to send its first request, TLS handshake included.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of connections of a port that have not sent a request yet.
const MAX_PENDING: usize = 512;

/// A client may have an eighth of the connections of a port, but at least [`MIN_PER_CLIENT`].
const CLIENT_PART: usize = 8;

/// Each client may have this many connections to a port, because many agents or sidecars can share an address.
const MIN_PER_CLIENT: usize = 1024;

/// Maximum size of a request head in bytes: more than the longest allowed token, so that the API can report an overlong token.
const MAX_HEAD_SIZE: u32 = 64 * 1024;

/// Maximum number of concurrent requests of one connection to the API.
const MAX_API_STREAMS: u32 = 100;

/// Maximum number of streams per connection of a sidecar. A sidecar opens one stream per service.
const MAX_SYNC_STREAMS: u32 = 64;

/// HTTP/2 flow-control window of a connection to the API: large enough for a few requests with the largest body.
const API_RECEIVE_WINDOW: u32 = 256 * 1024;

/// HTTP/2 flow-control window of a connection of a sidecar, which sends only small messages: the initial window of HTTP/2.
const SYNC_RECEIVE_WINDOW: u32 = 65_535;

/// A socket that has an address, but still refuses connections, so that no client waits for the end of the start. If another
/// process listens on the address first, [`BoundPort::listen`] fails.
pub(super) struct BoundPort {
    setting: &'static str,
    socket: TcpSocket,
    address: SocketAddr,
}

/// The addresses of the ports.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// The address of the API port.
    pub api: SocketAddr,
    /// The address of the sync port.
    pub sync: SocketAddr,
    /// The address of the admin port.
    pub admin: SocketAddr,
}

pub(super) struct Ports {
    pub(super) api: BoundPort,
    pub(super) sync: BoundPort,
    pub(super) admin: BoundPort,
}

impl Ports {
    pub(super) fn bind(config: &Config) -> Result<Self, AppError> {
        Ok(Self {
            api: BoundPort::bind("listen.api", config.listen.api)?,
            sync: BoundPort::bind("listen.sync", config.listen.sync)?,
            admin: BoundPort::bind("listen.admin", config.listen.admin)?,
        })
    }
}

impl BoundPort {
    fn bind(setting: &'static str, address: SocketAddr) -> Result<Self, AppError> {
        let bind = || {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            // With this option, a restarted server gets its port although connections of the previous process are still closing.
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            let address = socket.local_addr()?;
            Ok(Self { setting, socket, address })
        };
        bind().map_err(|error| cannot_listen(setting, address, &error))
    }

    /// The address, with the port that the operating system selected if port 0 is configured.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets clients connect.
    pub(super) fn listen(self) -> Result<TcpListener, AppError> {
        let Self { setting, socket, address } = self;
        socket.listen(BACKLOG).map_err(|error| cannot_listen(setting, address, &error))
    }
}

fn cannot_listen(setting: &'static str, address: SocketAddr, error: &std::io::Error) -> AppError {
    AppError::setting(setting, format_args!("cannot listen on {address}: {error}"))
}

pub(super) struct PortLimits {
    pub(super) api: PortSettings,
    pub(super) sync: PortSettings,
}

impl PortLimits {
    /// Raises the limit of open files of the process, and divides it among the ports.
    pub(super) fn new(config: &Config, metrics: &PortMetrics) -> Self {
        let settings = config.connections;
        let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        let wanted = [count(settings.max); 2];
        let webhook_connections = config.webhooks.concurrency() + MAX_IDLE_CONNECTIONS;
        let reserved = RESERVED_DESCRIPTORS + count(config.database.max_connections) + webhook_connections;
        let limit = raise_descriptor_limit();
        let [api, sync] = fit_to_descriptors(wanted, reserved, limit);
        if [api, sync] != wanted {
            tracing::warn!(
                open_files = limit,
                api,
                sync,
                "the limit of open files of the process reduces connections.max"
            );
        }
        let port = |name, total: usize, protocol| PortSettings {
            name,
            connections_setting: Some("connections.max"),
            caps: ConnectionCaps { total, per_client: per_client(total), pending: MAX_PENDING.min(total) },
            trusted_proxies: config.proxies.networks(),
            first_request_timeout: FIRST_REQUEST_TIMEOUT,
            idle_timeout: settings.idle_timeout(),
            linger: LINGER,
            protocol,
            messages: None,
            metrics: metrics.of_port(name),
        };
        let api_protocol = ProtocolLimits {
            allows_http1: true,
            max_head_size: MAX_HEAD_SIZE,
            max_streams: MAX_API_STREAMS,
            responses_last: false,
            receive_window: API_RECEIVE_WINDOW,
        };
        let sync_protocol = ProtocolLimits {
            allows_http1: false,
            max_head_size: MAX_HEAD_SIZE,
            max_streams: MAX_SYNC_STREAMS,
            responses_last: true,
            receive_window: SYNC_RECEIVE_WINDOW,
        };
        Self { api: port("api", api, api_protocol), sync: port("sync", sync, sync_protocol) }
    }
}

fn per_client(connections: usize) -> usize {
    (connections / CLIENT_PART).max(MIN_PER_CLIENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_may_have_an_eighth_of_the_connections_and_at_least_1024() {
        assert_eq!([4, 8192, 8200, 80_000].map(per_client), [1024, 1024, 1025, 10_000]);
    }
}
