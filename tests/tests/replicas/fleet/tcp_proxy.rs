//! A TCP proxy to the database that can stop forwarding data without closing connections.

use countersign_tests::Postgres;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

/// The connections whose data the proxy forwards.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Forwarding {
    All,
    None,
    /// Only connections with at least this number forward data, as after a router has lost the state of older
    /// connections.
    NewConnections(u64),
}

pub struct TcpProxy {
    address: SocketAddr,
    forwarding: watch::Sender<Forwarding>,
    accepted: Arc<AtomicU64>,
}

impl TcpProxy {
    pub async fn start(postgres: &Postgres) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, target) = (listener.local_addr().unwrap(), postgres.address());
        let (forwarding, accepted) = (watch::Sender::new(Forwarding::All), Arc::<AtomicU64>::default());
        let (receiver, counter) = (forwarding.subscribe(), Arc::clone(&accepted));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (receiver, number) = (receiver.clone(), counter.fetch_add(1, Ordering::SeqCst));
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(target).await else { return };
                    let ((client_in, client_out), (server_in, server_out)) = (client.into_split(), server.into_split());
                    tokio::spawn(forward(client_in, server_out, receiver.clone(), number));
                    forward(server_in, client_out, receiver, number).await;
                });
            }
        });
        Self { address, forwarding, accepted }
    }

    /// A database URL through the proxy.
    pub fn url_through(&self, postgres: &Postgres, url: &str) -> String {
        url.replace(&postgres.address().to_string(), &self.address.to_string())
    }

    /// Stops forwarding data without closing connections.
    pub fn stop_forwarding(&self) {
        self.forwarding.send_replace(Forwarding::None);
    }

    /// Forwards data of new connections only.
    pub fn forward_new_connections(&self) {
        self.forwarding.send_replace(Forwarding::NewConnections(self.accepted.load(Ordering::SeqCst)));
    }

    /// Forwards all data again, including data sent meanwhile.
    pub fn resume_forwarding(&self) {
        self.forwarding.send_replace(Forwarding::All);
    }
}

async fn forward(
    mut reader: OwnedReadHalf,
    mut writer: OwnedWriteHalf,
    mut forwarding: watch::Receiver<Forwarding>,
    number: u64,
) {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let read = reader.read(&mut bytes).await;
        let is_forwarded = |forwarding: &Forwarding| match forwarding {
            Forwarding::All => true,
            Forwarding::None => false,
            Forwarding::NewConnections(first) => number >= *first,
        };
        // While the proxy forwards no data, it does not forward the end of a connection either.
        if forwarding.wait_for(is_forwarded).await.is_err() {
            return;
        }
        match read {
            Ok(0) | Err(_) => return,
            Ok(count) => {
                if writer.write_all(&bytes[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}
