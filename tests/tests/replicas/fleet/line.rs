//! A TCP proxy to the database that can silently drop all data.

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

/// Which connections pass data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// All.
    Good,
    /// None.
    Dead,
    /// Only connections made since, as after a router has lost its state.
    GoodAnew(u64),
}

/// A proxy to a server.
pub struct Line {
    address: SocketAddr,
    state: watch::Sender<State>,
    made: Arc<AtomicU64>,
}

impl Line {
    pub async fn to(postgres: &Postgres) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, target) = (listener.local_addr().unwrap(), postgres.address());
        let (state, made) = (watch::Sender::new(State::Good), Arc::<AtomicU64>::default());
        let (told, number) = (state.subscribe(), Arc::clone(&made));
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (told, number) = (told.clone(), number.fetch_add(1, Ordering::SeqCst));
                tokio::spawn(async move {
                    let Ok(far) = TcpStream::connect(target).await else { return };
                    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                    tokio::spawn(pump(near_in, far_out, told.clone(), number));
                    pump(far_in, near_out, told, number).await;
                });
            }
        });
        Self { address, state, made }
    }

    /// A database URL through the proxy.
    pub fn by(&self, postgres: &Postgres, url: &str) -> String {
        url.replace(&postgres.address().to_string(), &self.address.to_string())
    }

    pub fn die(&self) {
        self.state.send_replace(State::Dead);
    }

    /// Passes data of new connections only.
    pub fn come_back_anew(&self) {
        self.state.send_replace(State::GoodAnew(self.made.load(Ordering::SeqCst)));
    }

    /// Passes data again, including data sent meanwhile.
    pub fn come_back(&self) {
        self.state.send_replace(State::Good);
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut state: watch::Receiver<State>, number: u64) {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut bytes).await;
        let passes = |state: &State| match state {
            State::Good => true,
            State::Dead => false,
            State::GoodAnew(first) => number >= *first,
        };
        // A closed connection is not reported while no data passes.
        if state.wait_for(passes).await.is_err() {
            return;
        }
        match read {
            Ok(0) | Err(_) => return,
            Ok(count) => {
                if to.write_all(&bytes[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}
