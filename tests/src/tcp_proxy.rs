//! A TCP proxy between a client and a server that a test can disconnect, freeze and divert.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::{AbortHandle, JoinHandle},
};

/// Forwards connections to its target. Without a target, the proxy closes connections.
pub struct TcpProxy {
    /// The address of the proxy.
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    forwarding: watch::Sender<Forwarding>,
    accept_task: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    target: Option<SocketAddr>,
    connections: Vec<AbortHandle>,
    accepted: u64,
}

/// The connections whose data the proxy forwards.
#[derive(Clone, Copy)]
enum Forwarding {
    All,
    None,
    /// Only connections with a higher number forward data, as after a router has lost the state of older connections.
    After(u64),
}

impl TcpProxy {
    /// Starts a proxy without a target.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        let address = listener.local_addr().expect("the listener is bound");
        let state = Arc::<Mutex<State>>::default();
        let forwarding = watch::Sender::new(Forwarding::All);
        let accept_task = tokio::spawn(accept(listener, Arc::clone(&state), forwarding.subscribe()));
        Self { address, state, forwarding, accept_task }
    }

    /// Sets the target of new connections.
    pub fn set_target(&self, target: SocketAddr) {
        lock(&self.state).target = Some(target);
    }

    /// Closes all connections and closes new ones at once, until there is a target again.
    pub fn disconnect(&self) {
        let mut state = lock(&self.state);
        state.target = None;
        state.connections.drain(..).for_each(|connection| connection.abort());
    }

    /// While frozen, connections stay open, and no data passes. After that, all data passes, including what was sent meanwhile.
    pub fn set_frozen(&self, frozen: bool) {
        self.forwarding.send_replace(if frozen { Forwarding::None } else { Forwarding::All });
    }

    /// Lets only the data of new connections pass.
    pub fn forward_new_connections(&self) {
        let accepted = lock(&self.state).accepted;
        self.forwarding.send_replace(Forwarding::After(accepted));
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.disconnect();
        self.accept_task.abort();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("the lock is not poisoned")
}

async fn accept(listener: TcpListener, state: Arc<Mutex<State>>, forwarding: watch::Receiver<Forwarding>) {
    while let Ok((client, _)) = listener.accept().await {
        let mut state = lock(&state);
        let Some(target) = state.target else { continue };
        state.accepted += 1;
        let connection = tokio::spawn(connect(client, target, forwarding.clone(), state.accepted));
        state.connections.push(connection.abort_handle());
    }
}

async fn connect(client: TcpStream, target: SocketAddr, forwarding: watch::Receiver<Forwarding>, number: u64) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    let ((client_in, client_out), (server_in, server_out)) = (client.into_split(), server.into_split());
    let requests = forward(client_in, server_out, forwarding.clone(), number);
    tokio::join!(requests, forward(server_in, client_out, forwarding, number));
}

async fn forward(
    mut reader: OwnedReadHalf,
    mut writer: OwnedWriteHalf,
    mut forwarding: watch::Receiver<Forwarding>,
    number: u64,
) {
    let mut bytes = vec![0; 16 * 1024];
    let passes = |forwarding: &Forwarding| match forwarding {
        Forwarding::All => true,
        Forwarding::None => false,
        Forwarding::After(accepted) => number > *accepted,
    };
    loop {
        let read = reader.read(&mut bytes).await.unwrap_or(0);
        // While the proxy forwards no data of a connection, it does not pass on the end of the connection either.
        if forwarding.wait_for(passes).await.is_err() || read == 0 || writer.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}
