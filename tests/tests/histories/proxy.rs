//! A TCP proxy between sidecar and control plane that can be disconnected or frozen.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{AbortHandle, JoinHandle},
};

/// Forwards connections to its target. Without a target, the proxy closes connections.
pub struct TcpProxy {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    frozen: watch::Sender<bool>,
    accept_task: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    target: Option<SocketAddr>,
    connections: Vec<AbortHandle>,
}

impl TcpProxy {
    pub async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<Mutex<State>>::default();
        let frozen = watch::Sender::new(false);
        let accept_task = tokio::spawn(accept(listener, Arc::clone(&state), frozen.subscribe()));
        Self { address, state, frozen, accept_task }
    }

    /// Sets the target of new connections.
    pub fn set_target(&self, target: SocketAddr) {
        self.state.lock().unwrap().target = Some(target);
    }

    /// While frozen, connections stay open, and no bytes pass.
    pub fn set_frozen(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }

    /// Closes all connections and rejects new ones.
    pub fn disconnect(&self) {
        let mut state = self.state.lock().unwrap();
        state.target = None;
        state.connections.drain(..).for_each(|connection| connection.abort());
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.disconnect();
        self.accept_task.abort();
    }
}

async fn accept(listener: TcpListener, state: Arc<Mutex<State>>, frozen: watch::Receiver<bool>) {
    while let Ok((client, _)) = listener.accept().await {
        let mut state = state.lock().unwrap();
        let Some(target) = state.target else { continue };
        state.connections.push(tokio::spawn(forward(client, target, frozen.clone())).abort_handle());
    }
}

async fn forward(mut client: TcpStream, target: SocketAddr, mut frozen: watch::Receiver<bool>) {
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    let copy = tokio::io::copy_bidirectional(&mut client, &mut server);
    tokio::pin!(copy);
    while frozen.wait_for(|is_frozen| !is_frozen).await.is_ok() {
        let changes = frozen.clone();
        tokio::select! {
            biased;
            () = is_frozen(changes) => {}
            _ = &mut copy => return,
        }
    }
}

async fn is_frozen(mut frozen: watch::Receiver<bool>) {
    let _closed = frozen.wait_for(|is_frozen| *is_frozen).await;
}
