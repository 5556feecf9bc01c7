//! An OpenID Connect issuer: discovery document, JWKS, signed tokens, and the device authorization grant.
//!
//! The test issuer can delay, fail or return wrong documents, and counts the fetches of its documents.

mod device;
mod signing_key;

pub use device::DeviceGrant;
pub use signing_key::{SigningKey, hs256, unsigned};

use crate::tls::{self, TlsListener};
use axum::{
    Router,
    body::Body,
    extract::State,
    http::{StatusCode, Uri, header},
    response::{IntoResponse, Response},
    serve::Listener,
};
use countersign_process::{Clock, SystemClock};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::{net::TcpListener, task::JoinSet};

/// The `aud` that control planes expect from these issuers by default.
pub const AUDIENCE: &str = "countersign";

/// Path of the JWKS.
const JWKS: &str = "/keys";

/// How the issuer responds.
#[derive(Debug, Clone)]
pub enum IssuerBehavior {
    /// Returns the correct documents.
    Normal,
    /// Returns a status without a body.
    Status(u16),
    /// Returns the correct documents after a delay.
    Delayed(Duration),
    /// Redirects JWKS requests to this URL.
    Redirect(String),
    /// Returns this text to JWKS requests.
    Body(String),
    /// Returns an endless body to JWKS requests.
    Endless,
}

/// A running issuer.
pub struct Issuer {
    /// The `iss` value, which is also the base URL on loopback.
    pub url: String,
    shared: Arc<Shared>,
    _task: JoinSet<()>,
}

struct Shared {
    jwks: Mutex<Value>,
    discovery: Mutex<Value>,
    behavior: Mutex<IssuerBehavior>,
    discovery_fetches: AtomicUsize,
    jwks_fetches: AtomicUsize,
    device_grant: Mutex<Option<DeviceGrant>>,
}

impl Issuer {
    /// Starts an issuer that publishes these keys.
    pub async fn start(keys: &[&SigningKey]) -> Self {
        Self::start_on(0, keys).await
    }

    /// Starts an issuer on a given port.
    pub async fn start_on(port: u16, keys: &[&SigningKey]) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("the port is free");
        let url = format!("http://{}", listener.local_addr().expect("the listener is bound"));
        Self::serve(listener, url, keys)
    }

    /// Starts an issuer with TLS, and returns the issuer with the PEM of its certificate.
    pub async fn start_tls(keys: &[&SigningKey]) -> (Self, String) {
        let (listener, url, certificate) = TlsListener::bind().await;
        (Self::serve(listener, url, keys), certificate)
    }

    fn serve<L: Listener<Addr: std::fmt::Debug>>(listener: L, url: String, keys: &[&SigningKey]) -> Self {
        let shared = Arc::new(Shared {
            jwks: Mutex::default(),
            discovery: Mutex::new(json!({ "issuer": url, "jwks_uri": format!("{url}{JWKS}") })),
            behavior: Mutex::new(IssuerBehavior::Normal),
            discovery_fetches: AtomicUsize::new(0),
            jwks_fetches: AtomicUsize::new(0),
            device_grant: Mutex::new(None),
        });
        let app = Router::new().fallback(respond).with_state(shared.clone());
        let issuer = Self { url, shared, _task: tls::serve(listener, app) };
        issuer.publish(keys);
        issuer
    }

    /// Replaces the published keys.
    pub fn publish(&self, keys: &[&SigningKey]) {
        self.publish_jwks(jwks(keys));
    }

    /// Replaces the JWKS document with any JSON.
    pub fn publish_jwks(&self, jwks: Value) {
        *self.shared.jwks.lock().expect("the lock is not poisoned") = jwks;
    }

    /// Changes a field of the discovery document.
    pub fn set_discovery_field(&self, name: &str, value: &str) {
        self.shared.discovery.lock().expect("the lock is not poisoned")[name] = value.into();
    }

    /// Sets how the issuer responds from now on.
    pub fn set_behavior(&self, behavior: IssuerBehavior) {
        *self.shared.behavior.lock().expect("the lock is not poisoned") = behavior;
    }

    /// Number of JWKS requests.
    pub fn jwks_fetches(&self) -> usize {
        self.shared.jwks_fetches.load(SeqCst)
    }

    /// Number of discovery requests.
    pub fn discovery_fetches(&self) -> usize {
        self.shared.discovery_fetches.load(SeqCst)
    }

    /// URL of the JWKS.
    pub fn jwks_url(&self) -> String {
        format!("{}{JWKS}", self.url)
    }

    /// Settings of a control plane that trusts this issuer under `name`, with further settings of the issuer.
    pub fn settings(&self, name: &str, extra_settings: &[(&str, &str)]) -> Vec<String> {
        let required = [("issuer", self.url.as_str()), ("audience", AUDIENCE)];
        let all = required.iter().chain(extra_settings);
        all.map(|(key, value)| format!("humans.issuers.{name}.{key}={value}")).collect()
    }

    /// Claims of a human user that are valid for an hour.
    pub fn claims(&self, subject: &str) -> Value {
        let now = now();
        json!({ "iss": self.url, "aud": AUDIENCE, "sub": subject, "iat": now, "exp": now + 3600 })
    }
}

/// Current Unix time in seconds.
pub fn now() -> i64 {
    SystemClock.now().seconds()
}

/// A JWKS of these keys.
pub fn jwks(keys: &[&SigningKey]) -> Value {
    json!({ "keys": keys.iter().map(|key| key.jwk()).collect::<Vec<_>>() })
}

/// Returns the claims with one claim replaced, or removed if the value is null.
pub fn with(mut claims: Value, name: &str, value: Value) -> Value {
    let members = claims.as_object_mut().expect("the value is an object");
    if value.is_null() {
        members.remove(name);
    } else {
        members.insert(name.to_owned(), value);
    }
    claims
}

async fn respond(State(shared): State<Arc<Shared>>, uri: Uri, body: String) -> Response {
    if let Some(response) = device::respond(&shared, uri.path(), &body) {
        return response;
    }
    let is_jwks = uri.path() == JWKS;
    let counter = if is_jwks { &shared.jwks_fetches } else { &shared.discovery_fetches };
    counter.fetch_add(1, SeqCst);
    let normal_response = || {
        let document = if is_jwks { &shared.jwks } else { &shared.discovery };
        axum::Json(document.lock().expect("the lock is not poisoned").clone()).into_response()
    };
    let behavior = shared.behavior.lock().expect("the lock is not poisoned").clone();
    match behavior {
        IssuerBehavior::Status(status) => StatusCode::from_u16(status).expect("the status is valid").into_response(),
        IssuerBehavior::Delayed(delay) => {
            tokio::time::sleep(delay).await;
            normal_response()
        }
        IssuerBehavior::Redirect(to) if is_jwks => (StatusCode::FOUND, [(header::LOCATION, to)]).into_response(),
        IssuerBehavior::Body(text) if is_jwks => text.into_response(),
        IssuerBehavior::Endless if is_jwks => {
            let chunks = futures_util::stream::repeat_with(|| Ok::<_, std::convert::Infallible>(vec![b' '; 16 * 1024]));
            Body::from_stream(chunks).into_response()
        }
        IssuerBehavior::Normal | IssuerBehavior::Redirect(_) | IssuerBehavior::Body(_) | IssuerBehavior::Endless => {
            normal_response()
        }
    }
}
