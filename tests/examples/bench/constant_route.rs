//! The limit of an HTTP server on axum with TLS: a route that returns the same text for every request.

use axum::{Router, routing::get, serve::Listener};
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// The path of the route.
pub const PATH: &str = "/constant";

/// A body of the length of the response of `verify`.
const BODY: &str = concat!(
    r#"{"valid":true,"agentId":"agt_00000000000000000000000000","name":"Agent","trustScore":50,"#,
    r#""roles":["reader"],"permissions":["read"],"expiresAt":"2030-01-01T00:00:00Z"}"#
);

struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let Ok((stream, address)) = self.listener.accept().await else { continue };
            stream.set_nodelay(true).expect("TCP has this option");
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Serves `<ip>:<port>` until the process is killed.
pub async fn serve(address: &str) {
    let (acceptor, _certificate) = countersign_tests::tls::self_signed();
    let listener = TcpListener::bind(address).await.expect("the port is free");
    let app = Router::new().route(PATH, get(async || ([("content-type", "application/json")], BODY)));
    axum::serve(TlsListener { listener, acceptor }, app).await.expect("the server runs");
}
