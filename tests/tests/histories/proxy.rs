//! A TCP proxy between sidecar and control plane that can be disconnected.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinHandle},
};

/// Forwards connections to its target, if it has one.
pub struct TcpProxy {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    accepting: JoinHandle<()>,
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
        let accepting = tokio::spawn(accept(listener, Arc::clone(&state)));
        Self { address, state, accepting }
    }

    /// Sets the target of new connections.
    pub fn set_target(&self, target: SocketAddr) {
        self.state.lock().unwrap().target = Some(target);
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
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, state: Arc<Mutex<State>>) {
    while let Ok((mut near, _)) = listener.accept().await {
        let mut state = state.lock().unwrap();
        let Some(target) = state.target else { continue };
        let forward = async move {
            if let Ok(mut far) = TcpStream::connect(target).await {
                let _ended = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            }
        };
        state.connections.push(tokio::spawn(forward).abort_handle());
    }
}
