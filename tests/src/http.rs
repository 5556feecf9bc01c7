//! HTTP as a test says it: method, path, who is asking, and the whole answer.

use reqwest::{Client, Method, RequestBuilder, header::HeaderMap};
use serde_json::Value;

/// A whole answer.
#[derive(Debug)]
pub struct HttpResponse {
    /// The HTTP status.
    pub status: u16,
    /// All headers.
    pub headers: HeaderMap,
    /// The body if it is JSON, else a string.
    pub body: Value,
}

impl HttpResponse {
    /// Sends the request and reads the answer.
    pub async fn send(request: RequestBuilder) -> Self {
        Self::try_send(request).await.expect("the server answers")
    }

    /// The same, if the server may be away.
    pub async fn try_send(request: RequestBuilder) -> Option<Self> {
        let response = request.send().await.ok()?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.ok()?;
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Some(Self { status, headers, body })
    }

    /// The body, if the status is as expected.
    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        self.body
    }

    /// Status, code and reason of an error.
    pub fn error(&self) -> (u16, &str, &str) {
        (self.status, self.text("/error/code"), self.text("/error/details/reason"))
    }

    /// A string in the body, or nothing.
    pub fn text(&self, pointer: &str) -> &str {
        self.body.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// A header, or nothing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// A base URL and a client that trusts it.
#[derive(Debug, Clone)]
pub struct HttpClient {
    /// Without a slash at the end.
    pub url: String,
    /// Who asks.
    pub client: Client,
}

impl HttpClient {
    /// A plain HTTP site.
    pub fn plain(url: String) -> Self {
        install_crypto();
        Self { url, client: Client::builder().build().expect("a client") }
    }

    /// A site that shows a certificate of this authority.
    pub fn trusting(url: String, authority: &[u8]) -> Self {
        install_crypto();
        let authority = reqwest::Certificate::from_pem(authority).expect("a certificate");
        let client = Client::builder().tls_certs_only([authority]).build().expect("a client");
        Self { url, client }
    }

    /// A request to be completed and sent.
    pub fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        self.client.request(method, format!("{}{path}", self.url))
    }

    /// GET as anybody.
    pub async fn get(&self, path: &str) -> HttpResponse {
        HttpResponse::send(self.request("GET", path)).await
    }

    /// GET with a bearer credential.
    pub async fn get_as(&self, bearer: &str, path: &str) -> HttpResponse {
        HttpResponse::send(self.request("GET", path).bearer_auth(bearer)).await
    }

    /// POST as anybody.
    pub async fn post(&self, path: &str, body: Value) -> HttpResponse {
        HttpResponse::send(self.request("POST", path).json(&body)).await
    }

    /// Any method with a bearer credential and a body.
    pub async fn send_as(&self, bearer: &str, method: &str, path: &str, body: Value) -> HttpResponse {
        HttpResponse::send(self.request(method, path).bearer_auth(bearer).json(&body)).await
    }
}

fn install_crypto() {
    let _installed_already = rustls::crypto::aws_lc_rs::default_provider().install_default();
}
