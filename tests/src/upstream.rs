//! A service behind Envoy that says which headers it saw.

use axum::{
    Json, Router,
    http::{HeaderMap, Uri},
};
use serde_json::{Map, Value};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// A running service.
pub struct Upstream {
    /// Where it listens on loopback.
    pub port: u16,
    seen: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Upstream {
    /// Starts it: every path answers 200 with an object of the headers it saw, each a list of values.
    /// The path that it saw stands in the header `x-upstream-path`.
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        let port = listener.local_addr().expect("it is bound").port();
        let seen = Arc::new(AtomicUsize::new(0));
        let counter = seen.clone();
        let app = Router::new().fallback(async move |uri: Uri, headers: HeaderMap| {
            counter.fetch_add(1, Ordering::SeqCst);
            ([("x-upstream-path", uri.to_string())], Json(echo(&headers)))
        });
        let task = tokio::spawn(async move { axum::serve(listener, app).await.expect("it serves") });
        Self { port, seen, task }
    }

    /// Its URL, as another server on this machine calls it.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// How many requests came through.
    pub fn seen(&self) -> usize {
        self.seen.load(Ordering::SeqCst)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn echo(headers: &HeaderMap) -> Value {
    let values =
        |name| headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()).into()).collect();
    let all: Map<_, _> = headers.keys().map(|name| (name.to_string(), Value::Array(values(name)))).collect();
    all.into()
}
