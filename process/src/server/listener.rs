//! Accepts connections, even while the process lacks file descriptors.

use super::{connections::Connections, rare_line::RareLine};
use std::{fs::File, io, net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};

/// The pause after a failure to accept a connection.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The addresses of a TCP connection.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionAddresses {
    /// The address of the client, or of a proxy in front of this server.
    pub peer: SocketAddr,
    /// The address of this server to which the peer has connected.
    pub local: SocketAddr,
}

/// A bound socket.
pub trait Listener: Send + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Accepts a connection. Returns its addresses, or `None` for a Unix socket.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Option<ConnectionAddresses>)>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Option<ConnectionAddresses>)> {
        let (stream, peer) = Self::accept(self).await?;
        // These fail only if the connection has already ended.
        let _ended = stream.set_nodelay(true);
        let local = stream.local_addr().map_err(|_ended| io::ErrorKind::ConnectionAborted)?;
        Ok((stream, Some(ConnectionAddresses { peer, local })))
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Option<ConnectionAddresses>)> {
        Ok((Self::accept(self).await?.0, None))
    }
}

/// Accepts the connections of one port.
pub(super) struct Acceptor<L> {
    listener: L,
    port: &'static str,
    /// An open descriptor that the acceptor closes when the process has no other one left, so that the next connection can have it.
    spare: Option<File>,
    failure_line: RareLine,
}

impl<L: Listener> Acceptor<L> {
    pub(super) fn new(listener: L, port: &'static str) -> Self {
        Self { listener, port, spare: open_spare(), failure_line: RareLine::default() }
    }

    /// Accepts the next connection. If the process lacks file descriptors or memory, gives up the spare descriptor, closes a connection
    /// that waits for its client, and tries again after a pause.
    pub(super) async fn accept(&mut self, connections: &Connections) -> (L::Stream, Option<ConnectionAddresses>) {
        loop {
            match self.listener.accept().await {
                Ok(accepted) => {
                    self.spare = self.spare.take().or_else(open_spare);
                    return accepted;
                }
                // The client has closed the connection before it was accepted.
                Err(error) if is_lost_connection(&error) => {}
                Err(error) => {
                    connections.count_accept_error();
                    self.log(&error);
                    self.spare = None;
                    connections.close_one();
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
            }
        }
    }

    fn log(&mut self, error: &io::Error) {
        if self.failure_line.is_due() {
            tracing::error!(port = self.port, %error, "cannot accept connections; closes some that wait for their clients");
        }
    }
}

fn open_spare() -> Option<File> {
    File::open("/dev/null").ok()
}

fn is_lost_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
