//! The TLS handshake of ports that accept nothing else.

use super::Handshake;
use arc_swap::ArcSwap;
use rustls::ServerConfig;
use std::{io, sync::Arc};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// Accepts TLS connections only. A handshake uses the configuration that is current when the handshake begins.
#[derive(Clone)]
pub struct TlsOnly(Arc<ArcSwap<ServerConfig>>);

impl TlsOnly {
    /// Uses a configuration until [`Self::replace`] is called.
    pub fn new(config: Arc<ServerConfig>) -> Self {
        Self(Arc::new(ArcSwap::new(config)))
    }

    /// Uses another configuration for new connections. They cannot resume the TLS sessions of earlier ones.
    pub fn replace(&self, config: Arc<ServerConfig>) {
        self.0.store(config);
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Handshake<S> for TlsOnly {
    type Stream = TlsStream<S>;

    async fn handshake(&self, stream: S) -> io::Result<TlsStream<S>> {
        TlsAcceptor::from(self.0.load_full()).accept(stream).await
    }
}
