//! A small HTTP client for tests: requests by method, path and credential, and complete responses.

use crate::process::eventually;
use reqwest::{Certificate, Client, ClientBuilder, Method, RequestBuilder, header::HeaderMap};
use serde_json::Value;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// A complete response.
#[derive(Debug)]
pub struct HttpResponse {
    /// HTTP status.
    pub status: u16,
    /// Response headers.
    pub headers: HeaderMap,
    /// The body parsed as JSON. A body that is not JSON becomes a JSON string.
    pub body: Value,
}

impl HttpResponse {
    /// Sends a request and reads the response.
    pub async fn send(request: RequestBuilder) -> Self {
        Self::try_send(request).await.expect("the server responds")
    }

    /// Sends a request. Returns `None` if there is no response.
    pub async fn try_send(request: RequestBuilder) -> Option<Self> {
        let response = request.send().await.ok()?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.ok()?;
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Some(Self { status, headers, body })
    }

    /// Asserts the status and returns the body.
    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        self.body
    }

    /// Status, error code and reason.
    pub fn error(&self) -> (u16, &str, &str) {
        (self.status, self.text("/error/code"), self.text("/error/details/reason"))
    }

    /// Status and error code.
    pub fn code(&self) -> (u16, &str) {
        (self.status, self.text("/error/code"))
    }

    /// Status and reason.
    pub fn reason(&self) -> (u16, &str) {
        (self.status, self.text("/error/details/reason"))
    }

    /// A string in the body by JSON pointer; empty if absent.
    pub fn text(&self, pointer: &str) -> &str {
        self.body.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// A response header; empty if absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// Values that are used in turn, for replicas of a server.
#[derive(Debug)]
pub struct InTurn<T> {
    values: Vec<T>,
    next: AtomicUsize,
}

impl<T> InTurn<T> {
    /// There must be at least one value.
    pub fn new(values: Vec<T>) -> Self {
        assert!(!values.is_empty(), "there is a first value");
        Self { values, next: AtomicUsize::new(0) }
    }

    /// The first value.
    pub fn first(&self) -> &T {
        &self.values[0]
    }

    /// Returns the first value, and at each further call the next one.
    pub fn next(&self) -> &T {
        &self.values[self.next.fetch_add(1, Ordering::Relaxed) % self.values.len()]
    }
}

/// An HTTP client and a base URL, or the base URLs of replicas, which get the requests in turn.
#[derive(Debug, Clone)]
pub struct HttpClient {
    /// Base URL without a trailing slash, of the first replica.
    pub url: String,
    /// The HTTP client.
    pub client: Client,
    replicas: Arc<InTurn<String>>,
}

impl HttpClient {
    /// A client of one server.
    pub fn new(url: String, client: Client) -> Self {
        Self::of_replicas(vec![url], client)
    }

    /// A client that sends its requests to these base URLs in turn.
    pub fn of_replicas(urls: Vec<String>, client: Client) -> Self {
        let replicas = InTurn::new(urls);
        Self { url: replicas.first().clone(), client, replicas: Arc::new(replicas) }
    }

    /// Value of a counter or gauge of an admin port, by the prefix of its line in `/metrics`.
    pub async fn metric(&self, line: &str) -> Option<f64> {
        let text = HttpResponse::try_send(self.request("GET", "/metrics")).await?.body;
        let matching_value = |candidate: &str| candidate.strip_prefix(line)?.split(' ').next_back()?.parse().ok();
        text.as_str()?.lines().find_map(matching_value)
    }

    /// Sum of the series of a counter of an admin port that have this label, such as `kind="read"`.
    pub async fn metric_sum(&self, name: &str, label: &str) -> f64 {
        let text = self.get("/metrics").await.expect(200);
        let lines = text.as_str().expect("metrics are a text").lines();
        let series = lines.filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(label));
        series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Waits until a path has the status 200. `name` says what the status means. After a timeout, the panic contains `log`.
    pub async fn wait_until_ok(&self, path: &str, name: &str, log: impl Fn() -> String) {
        let is_ok = async || HttpResponse::try_send(self.request("GET", path)).await.filter(|it| it.status == 200);
        eventually(name, is_ok, log).await;
    }

    /// A client for plain HTTP.
    pub fn plain(url: String) -> Self {
        install_crypto();
        // Trust no authorities: reading those of the operating system would take long.
        Self::new(url, Client::builder().tls_certs_only([]).build().expect("the client can be built"))
    }

    /// A client that trusts only this CA certificate.
    pub fn trusting(url: String, authority: &[u8]) -> Self {
        Self::new(url, trusting(authority).build().expect("the client can be built"))
    }

    /// Builds a request.
    pub fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).expect("the method is valid");
        self.client.request(method, format!("{}{path}", self.replicas.next()))
    }

    /// GET without credentials.
    pub async fn get(&self, path: &str) -> HttpResponse {
        HttpResponse::send(self.request("GET", path)).await
    }

    /// GET with a bearer credential.
    pub async fn get_as(&self, bearer: &str, path: &str) -> HttpResponse {
        HttpResponse::send(self.request("GET", path).bearer_auth(bearer)).await
    }

    /// DELETE with a bearer credential.
    pub async fn delete_as(&self, bearer: &str, path: &str) -> HttpResponse {
        HttpResponse::send(self.request("DELETE", path).bearer_auth(bearer)).await
    }

    /// POST without credentials.
    pub async fn post(&self, path: &str, body: Value) -> HttpResponse {
        HttpResponse::send(self.request("POST", path).json(&body)).await
    }

    /// Any method, with a bearer credential and a JSON body.
    pub async fn send_as(&self, bearer: &str, method: &str, path: &str, body: Value) -> HttpResponse {
        HttpResponse::send(self.request(method, path).bearer_auth(bearer).json(&body)).await
    }
}

/// The entries of a page of a list.
pub fn items(page: &Value) -> &[Value] {
    page["data"].as_array().expect("the value is a list")
}

/// The text of a field in each entry of a page of a list; empty if an entry has none.
pub fn texts<'a>(page: &'a Value, field: &str) -> Vec<&'a str> {
    items(page).iter().map(|item| item[field].as_str().unwrap_or_default()).collect()
}

/// The options of an HTTP client that trusts only this CA certificate.
pub fn trusting(authority: &[u8]) -> ClientBuilder {
    install_crypto();
    let authority = Certificate::from_pem(authority).expect("the certificate is valid");
    Client::builder().tls_certs_only([authority])
}

fn install_crypto() {
    let _installed_already = rustls::crypto::aws_lc_rs::default_provider().install_default();
}
