//! A small HTTP client for tests: requests by method, path and credential, and complete responses.

use reqwest::{Client, Method, RequestBuilder, header::HeaderMap};
use serde_json::Value;

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

    /// A string in the body by JSON pointer; empty if absent.
    pub fn text(&self, pointer: &str) -> &str {
        self.body.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// A response header; empty if absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// A base URL and an HTTP client for it.
#[derive(Debug, Clone)]
pub struct HttpClient {
    /// Base URL without a trailing slash.
    pub url: String,
    /// The HTTP client.
    pub client: Client,
}

impl HttpClient {
    /// A client for plain HTTP.
    pub fn plain(url: String) -> Self {
        install_crypto();
        Self { url, client: Client::builder().build().expect("the client can be built") }
    }

    /// A client that trusts only this CA certificate.
    pub fn trusting(url: String, authority: &[u8]) -> Self {
        install_crypto();
        let authority = reqwest::Certificate::from_pem(authority).expect("the certificate is valid");
        let client = Client::builder().tls_certs_only([authority]).build().expect("the client can be built");
        Self { url, client }
    }

    /// Builds a request.
    pub fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).expect("the method is valid");
        self.client.request(method, format!("{}{path}", self.url))
    }

    /// GET without credentials.
    pub async fn get(&self, path: &str) -> HttpResponse {
        HttpResponse::send(self.request("GET", path)).await
    }

    /// GET with a bearer credential.
    pub async fn get_as(&self, bearer: &str, path: &str) -> HttpResponse {
        HttpResponse::send(self.request("GET", path).bearer_auth(bearer)).await
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

fn install_crypto() {
    let _installed_already = rustls::crypto::aws_lc_rs::default_provider().install_default();
}
