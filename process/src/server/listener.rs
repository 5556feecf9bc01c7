//! Accepts connections, also when the process lacks file descriptors for a time.

use super::connections::Connections;
use std::{io, net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    time::{Interval, MissedTickBehavior},
};

/// The pause after a failure to accept a connection.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// How many connections are accepted after a failure before the next failure is logged again. Under a flood of connections,
/// single connections are accepted between failures.
const ACCEPTS_UNTIL_RECOVERY: u32 = 100;

/// Time after a failure until the port may have more connections again, and between further increases.
const GROWTH_INTERVAL: Duration = Duration::from_mins(1);

/// A bound socket.
pub trait Listener: Send + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Accepts a connection. Returns the address of the peer, or `None` for a Unix socket.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Option<SocketAddr>)>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Option<SocketAddr>)> {
        let (stream, peer) = Self::accept(self).await?;
        // A failure means that the connection has already ended.
        let _ended = stream.set_nodelay(true);
        Ok((stream, Some(peer)))
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Option<SocketAddr>)> {
        Ok((Self::accept(self).await?.0, None))
    }
}

/// Accepts the connections of one port and logs the beginning and the end of failures.
pub(super) struct Acceptor<L> {
    pub(super) listener: L,
    pub(super) port: &'static str,
    /// How many connections must be accepted in a row until a lack of descriptors counts as over. 0: there is none.
    accepts_until_recovery: u32,
    /// Ticks while the port has fewer connections than configured.
    growth: Option<Interval>,
}

impl<L: Listener> Acceptor<L> {
    pub(super) const fn new(listener: L, port: &'static str) -> Self {
        Self { listener, port, accepts_until_recovery: 0, growth: None }
    }

    /// Accepts the next connection. If that fails because the process lacks file descriptors or memory, lowers the number of
    /// connections of the port, and tries again after a pause. Without further failures, the number doubles each minute.
    pub(super) async fn accept(&mut self, connections: &Connections) -> (L::Stream, Option<SocketAddr>) {
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = tick(&mut self.growth) => {
                    if !connections.grow() {
                        self.growth = None;
                        tracing::info!(port = self.port, "the port has all configured connections again");
                    }
                    continue;
                }
            };
            match accepted {
                Ok(accepted) => {
                    if self.accepts_until_recovery == 1 {
                        tracing::info!(port = self.port, "accepts connections again");
                    }
                    self.accepts_until_recovery = self.accepts_until_recovery.saturating_sub(1);
                    return accepted;
                }
                // The client has closed the connection before it was accepted.
                Err(error) if is_lost_connection(&error) => {}
                Err(error) => {
                    connections.count_accept_error();
                    let max_connections = connections.reduce();
                    self.growth = Some(growth_interval());
                    if std::mem::replace(&mut self.accepts_until_recovery, ACCEPTS_UNTIL_RECOVERY) == 0 {
                        tracing::error!(
                            port = self.port,
                            %error,
                            max_connections,
                            "cannot accept connections; the port has fewer connections for some minutes"
                        );
                    }
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
            }
        }
    }
}

fn growth_interval() -> Interval {
    let mut interval = tokio::time::interval(GROWTH_INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval.reset();
    interval
}

/// Waits for the next tick; for ever without an interval.
async fn tick(interval: &mut Option<Interval>) {
    match interval {
        Some(interval) => {
            interval.tick().await;
        }
        None => std::future::pending().await,
    }
}

fn is_lost_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
