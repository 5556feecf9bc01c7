//! A TCP proxy between sidecar and control plane that can be disconnected.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinHandle},
};

/// Forwards connections to its target. Without a target, the proxy closes connections.
pub struct TcpProxy {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
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
        let accept_task = tokio::spawn(accept(listener, Arc::clone(&state)));
        Self { address, state, accept_task }
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
        self.accept_task.abort();
    }
}

async fn accept(listener: TcpListener, state: Arc<Mutex<State>>) {
    while let Ok((mut client, _)) = listener.accept().await {
        let mut state = state.lock().unwrap();
        let Some(target) = state.target else { continue };
        let forward = async move {
            if let Ok(mut server) = TcpStream::connect(target).await {
                let _result = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            }
        };
        state.connections.push(tokio::spawn(forward).abort_handle());
    }
}
