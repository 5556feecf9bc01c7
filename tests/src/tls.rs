//! Test servers, and TLS for them with self-signed certificates, which clients trust directly.

use axum::{Router, serve::Listener};
use rustls::pki_types::PrivatePkcs8KeyDer;
use std::{net::SocketAddr, sync::Arc};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// A TCP listener that completes the TLS handshake of each connection.
pub struct TlsListener {
    /// The TCP listener.
    pub listener: TcpListener,
    /// Completes the handshakes.
    pub acceptor: TlsAcceptor,
}

impl TlsListener {
    /// Listens on a free port with a new certificate. Also returns the URL, and the certificate as PEM.
    pub async fn bind() -> (Self, String, String) {
        let (acceptor, certificate) = self_signed();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        let url = format!("https://localhost:{}", listener.local_addr().expect("the listener is bound").port());
        (Self { listener, acceptor }, url, certificate)
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let Ok((stream, address)) = self.listener.accept().await else { continue };
            // Without this option, the kernel may delay a response until the client has acknowledged the previous one.
            stream.set_nodelay(true).expect("TCP has this option");
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// Serves requests until the task is dropped.
pub fn serve<L: Listener<Addr: std::fmt::Debug>>(listener: L, app: Router) -> JoinSet<()> {
    JoinSet::from_iter([async move { axum::serve(listener, app).await.expect("the server serves") }])
}

/// A TLS acceptor with a new certificate for `localhost` and 127.0.0.1, and the certificate as PEM.
pub fn self_signed() -> (TlsAcceptor, String) {
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let pair = rcgen::generate_simple_self_signed(names).expect("the certificate is valid");
    let key = PrivatePkcs8KeyDer::from(pair.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the TLS versions are valid")
        .with_no_client_auth()
        .with_single_cert(vec![pair.cert.der().clone()], key.into())
        .expect("the certificate matches the key");
    (TlsAcceptor::from(Arc::new(config)), pair.cert.pem())
}
