//! A service behind Envoy that returns the headers it received.

use crate::tls;
use axum::{
    Json, Router,
    body::Bytes,
    http::{HeaderMap, StatusCode, Uri, header::LOCATION},
    response::IntoResponse,
};
use serde_json::{Map, Value};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokio::task::JoinSet;

/// A running upstream service.
pub struct Upstream {
    /// Port on loopback.
    pub port: u16,
    received: Arc<AtomicUsize>,
    _task: JoinSet<()>,
}

impl Upstream {
    /// Starts the service. It reads the body of each request, and responds 200 with the path in the header `x-upstream-path`. The
    /// response is a JSON object with the request headers: a list of values for each name. It redirects `/redirect?to=URL`.
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        let port = listener.local_addr().expect("the listener is bound").port();
        let received = Arc::new(AtomicUsize::new(0));
        let counter = received.clone();
        let app = Router::new().fallback(async move |uri: Uri, headers: HeaderMap, _body: Bytes| {
            counter.fetch_add(1, Ordering::SeqCst);
            match uri.to_string().strip_prefix("/redirect?to=") {
                Some(url) => (StatusCode::FOUND, [(LOCATION, url.to_owned())]).into_response(),
                None => ([("x-upstream-path", uri.to_string())], Json(echo(&headers))).into_response(),
            }
        });
        Self { port, received, _task: tls::serve(listener, app) }
    }

    /// URL of the service.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// Number of requests received.
    pub fn received(&self) -> usize {
        self.received.load(Ordering::SeqCst)
    }
}

fn echo(headers: &HeaderMap) -> Value {
    let values =
        |name| headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()).into()).collect();
    let all: Map<_, _> = headers.keys().map(|name| (name.to_string(), Value::Array(values(name)))).collect();
    all.into()
}
