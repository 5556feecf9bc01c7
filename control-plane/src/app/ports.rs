//! The three listening sockets.

use super::AppError;
use crate::config::Config;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpSocket};

/// Number of connections that wait for the server to accept them.
const BACKLOG: u32 = 1024;

/// A socket with an address that refuses connections, so that no client waits for the end of the start. Another process can listen
/// on the address before [`BoundPort::listen`], which then fails.
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

/// The bound sockets.
pub(super) struct Ports {
    pub(super) api: BoundPort,
    pub(super) sync: BoundPort,
    pub(super) admin: BoundPort,
}

impl Ports {
    /// Binds the configured addresses.
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
            // A restarted server gets the port while connections of its predecessor end.
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
