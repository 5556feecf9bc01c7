//! The token endpoint on loopback (RFC 6749, section 3.2) from which the program gets tokens, and metadata with its URL (RFC 8414).
//!
//! Other users of this machine can connect too, and so can web pages in any browser on it. Invariants: only a request with the
//! client secret gets a token, requests of web pages are refused, and no response contains a refresh token.

use super::{
    client_authentication::ClientCredentials,
    token_request::{Form, RequestError, narrow},
    token_source::{NoTokens, TokenSource},
};
use crate::cli::{
    loopback::{method_not_allowed, read_body, text_response},
    messages::Messages,
};
use countersign_client::{ApiError, Scope, SessionTokens, clock};
use countersign_identity::dns_rebinding::can_be_rebound;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE},
};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use std::sync::Arc;

const TOKEN_PATH: &str = "/oauth/token";

const METADATA_PATH: &str = "/.well-known/oauth-authorization-server";

/// The largest body, in bytes. Requests have less than one KiB.
const MAX_BODY: usize = 16 * 1024;

/// The media type of request bodies.
const FORM: &str = "application/x-www-form-urlencoded";

/// The URLs of an endpoint on this port.
pub struct EndpointUrls(pub u16);

/// Answers the requests of the program: returns tokens of `source` if a request has these `credentials`.
pub struct Endpoint {
    pub urls: EndpointUrls,
    pub credentials: ClientCredentials,
    pub source: Arc<TokenSource>,
    pub messages: Messages,
}

impl EndpointUrls {
    /// The issuer (RFC 8414): the URL below which the program finds the metadata.
    pub fn issuer(&self) -> String {
        format!("http://127.0.0.1:{}", self.0)
    }

    pub fn token_endpoint(&self) -> String {
        format!("{}{TOKEN_PATH}", self.issuer())
    }

    /// Whether a header `Host` may name this endpoint. Otherwise, the request may come from a web page whose own host name now
    /// resolves to loopback.
    fn is_host(&self, host: &str) -> bool {
        !can_be_rebound(host) && host.ends_with(&format!(":{}", self.0))
    }
}

impl Endpoint {
    pub async fn respond(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        if let Some(refusal) = self.refuse_web_pages(&head.headers) {
            return refusal;
        }
        match (head.uri.path(), &head.method) {
            (TOKEN_PATH, &Method::POST) => {
                let response = self.token_response(&head.headers, body).await;
                response.unwrap_or_else(|error| error_response(StatusCode::BAD_REQUEST, &error))
            }
            (METADATA_PATH, &Method::GET) => json_response(StatusCode::OK, &self.metadata()),
            (TOKEN_PATH, _) => method_not_allowed("POST", "the method is not allowed"),
            (METADATA_PATH, _) => method_not_allowed("GET", "the method is not allowed"),
            _ => text_response(StatusCode::NOT_FOUND, "not found"),
        }
    }

    /// Refuses a request that has `Origin`, which browsers send with every POST of a web page, or a wrong `Host`.
    fn refuse_web_pages(&self, headers: &HeaderMap) -> Option<Response<Full<Bytes>>> {
        if headers.contains_key(ORIGIN) {
            return Some(text_response(StatusCode::FORBIDDEN, "requests of web pages are refused"));
        }
        let mut hosts = headers.get_all(HOST).iter();
        let host = hosts.next().filter(|_| hosts.next().is_none()).and_then(|host| host.to_str().ok());
        if host.is_some_and(|host| self.urls.is_host(host)) {
            return None;
        }
        Some(text_response(
            StatusCode::MISDIRECTED_REQUEST,
            "the header Host must name the loopback address and the port",
        ))
    }

    fn metadata(&self) -> Value {
        let mut metadata = json!({
            "issuer": self.urls.issuer(),
            "token_endpoint": self.urls.token_endpoint(),
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
            "grant_types_supported": ["client_credentials"],
            "response_types_supported": [],
        });
        if let Some(scope) = &self.source.limits.scope {
            metadata["scopes_supported"] = scope.permissions().map(|permission| json!(permission)).collect();
        }
        metadata
    }

    async fn token_response(&self, headers: &HeaderMap, body: Incoming) -> Result<Response<Full<Bytes>>, RequestError> {
        let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if !content_type.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(FORM) {
            return Err(RequestError::new("invalid_request", format!("Content-Type must be {FORM}")));
        }
        let body = match read_body(body, MAX_BODY).await {
            Ok(body) => body,
            Err(error) => {
                return Ok(error_response(error.status(), &RequestError::new("invalid_request", error.to_string())));
            }
        };
        let form = Form::parse(&body)?;
        self.credentials.authenticate(headers, &form)?;
        let scope = narrow(&self.source.limits, &form)?;
        Ok(match self.obtain_tokens(scope.clone()).await {
            Ok(tokens) => json_response(StatusCode::OK, &token_body(&tokens, scope.as_ref())),
            Err(error) => {
                self.messages.warning(&format!("the program got no token: {error}"));
                match &error {
                    NoTokens::TooManyScopes => return Err(RequestError::new("invalid_scope", error.to_string())),
                    NoTokens::Api(error) => upstream_error_response(error),
                }
            }
        })
    }

    /// Obtains tokens in a task of its own, which continues if the program closes the connection. If the task were cancelled, the
    /// session could use up its refresh token without keeping the new one.
    async fn obtain_tokens(&self, scope: Option<Scope>) -> Result<SessionTokens, NoTokens> {
        let source = self.source.clone();
        let task = tokio::spawn(async move { source.tokens(scope).await });
        task.await.unwrap_or_else(|error| Err(ApiError::Unreadable(error.to_string()).into()))
    }
}

/// The body of a successful response (RFC 6749, section 5.1).
fn token_body(tokens: &SessionTokens, requested: Option<&Scope>) -> Value {
    let mut body = json!({
        "access_token": tokens.access_token.expose_secret(),
        "token_type": "Bearer",
        "expires_in": tokens.expires_at.duration_since(clock::now()).as_secs(),
    });
    if let Some(scope) = tokens.scope.as_ref().or(requested) {
        body["scope"] = json!(scope);
    }
    body
}

/// The response to the program for an error of the control plane.
fn upstream_error_response(error: &ApiError) -> Response<Full<Bytes>> {
    let (status, code) = match error {
        error if error.is_outage() => (StatusCode::SERVICE_UNAVAILABLE, "temporarily_unavailable"),
        ApiError::Refused { code, .. } if code == "invalid_scope" => (StatusCode::BAD_REQUEST, "invalid_scope"),
        ApiError::Refused { code, .. } if code == "invalid_target" => (StatusCode::BAD_REQUEST, "invalid_target"),
        ApiError::Refused { .. } => (StatusCode::BAD_REQUEST, "unauthorized_client"),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "server_error"),
    };
    let mut response = error_response(status, &RequestError::new(code, error.to_string()));
    if let Some(wait) = error.retry_after() {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(wait.as_secs()));
    }
    response
}

/// A response with an error (RFC 6749, section 5.2). After a failed authentication, the status is always 401.
fn error_response(status: StatusCode, error: &RequestError) -> Response<Full<Bytes>> {
    let is_unauthenticated = error.code == "invalid_client";
    let status = if is_unauthenticated { StatusCode::UNAUTHORIZED } else { status };
    let body = json!({ "error": error.code, "error_description": printable(&error.description) });
    let mut response = json_response(status, &body);
    if is_unauthenticated {
        let challenge = HeaderValue::from_static("Basic realm=\"countersign agent exec\"");
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    response
}

/// Replaces the characters that RFC 6749 does not allow in `error_description`.
fn printable(text: &str) -> String {
    let is_allowed = |character: char| matches!(character, ' '..='~') && !matches!(character, '"' | '\\');
    text.chars().map(|character| if is_allowed(character) { character } else { '\'' }).collect()
}

fn json_response(status: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let mut response = text_response(status, &body.to_string());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_identity::Timestamp;

    #[test]
    fn hosts_are_localhost_or_an_address_with_the_port() {
        let urls = EndpointUrls(8080);
        for (host, expected) in [
            ("127.0.0.1:8080", true),
            ("localhost:8080", true),
            ("LOCALHOST:8080", true),
            ("[::1]:8080", true),
            ("127.0.0.1", false),
            ("127.0.0.1:80", false),
            ("localhost.attacker.example:8080", false),
            ("attacker.example:8080", false),
            ("", false),
        ] {
            assert_eq!(urls.is_host(host), expected, "{host}");
        }
    }

    #[test]
    fn token_bodies_contain_no_refresh_token() {
        let expires_at = clock::now().saturating_add(std::time::Duration::from_mins(1));
        let tokens = |scope: Option<&str>| SessionTokens {
            access_token: "a".into(),
            refresh_token: "rf_s3cr3t".into(),
            refresh_at: Timestamp::from_seconds(0),
            expires_at,
            scope: scope.map(|text| text.parse().unwrap()),
        };
        let requested: Scope = "read write".parse().unwrap();
        let body = token_body(&tokens(Some("read")), Some(&requested));
        assert_eq!((&body["scope"], &body["token_type"]), (&json!("read"), &json!("Bearer")));
        assert!(body["expires_in"].as_u64().is_some_and(|seconds| (58..=60).contains(&seconds)), "{body}");
        assert!(!body.to_string().contains("s3cr3t"), "{body}");
        assert_eq!(token_body(&tokens(None), Some(&requested))["scope"], "read write");
        assert_eq!(token_body(&tokens(None), None)["scope"], Value::Null);
    }

    #[test]
    fn errors_of_the_control_plane_have_codes_of_oauth() {
        let refused = |status, code: &str| ApiError::Refused {
            status,
            code: code.to_owned(),
            message: "a \"message\"".to_owned(),
            reason: None,
            details: Box::default(),
            retry_after: (status == 429).then(|| std::time::Duration::from_secs(7)),
        };
        for (error, status) in [
            (refused(429, "RATE_LIMIT_EXCEEDED"), 503),
            (refused(503, "temporarily_unavailable"), 503),
            (refused(400, "invalid_scope"), 400),
            (refused(403, "AGENT_SUSPENDED"), 400),
            (refused(401, "invalid_client"), 400),
            (ApiError::CaCertificates("x".to_owned()), 500),
        ] {
            let response = upstream_error_response(&error);
            assert_eq!(response.status(), status, "{error}");
            assert_eq!(response.headers().contains_key(RETRY_AFTER), error.retry_after().is_some(), "{error}");
        }
        assert_eq!(printable("a \"message\" \\ é\n"), "a 'message' ' ''");
    }
}
