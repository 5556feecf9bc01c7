//! The three listening sockets.

use super::AppError;
use crate::config::Config;
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// The bound sockets.
pub(super) struct Ports {
    pub(super) api: TcpListener,
    pub(super) sync: TcpListener,
    pub(super) admin: TcpListener,
}

impl Ports {
    /// Binds the configured addresses.
    pub(super) async fn bind(config: &Config) -> Result<Self, AppError> {
        Ok(Self {
            api: bind("listen.api", config.listen.api).await?,
            sync: bind("listen.sync", config.listen.sync).await?,
            admin: bind("listen.admin", config.listen.admin).await?,
        })
    }
}

async fn bind(setting: &'static str, address: SocketAddr) -> Result<TcpListener, AppError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| AppError::setting(setting, format_args!("cannot listen on {address}: {error}")))
}
