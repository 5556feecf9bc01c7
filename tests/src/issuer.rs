//! An OpenID Connect issuer: discovery document, JWKS and signed tokens.
//!
//! It can delay, fail or return wrong documents, and it counts fetches.

use crate::tls;
use aws_lc_rs::{
    hmac,
    rand::SystemRandom,
    rsa::KeySize,
    signature::{Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair},
};
use axum::{
    Router,
    body::Body,
    extract::State,
    http::{StatusCode, Uri, header},
    response::{IntoResponse, Response},
    serve::Listener,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use countersign_process::{Clock, SystemClock};
use p256::ecdsa::{Signature, signature::Signer};
use serde_json::{Value, json};
use std::{
    fmt::Write,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// The `aud` that control planes expect from these issuers by default.
pub const AUDIENCE: &str = "countersign";

/// Path of the JWKS.
const JWKS: &str = "/keys";

/// How the issuer answers requests.
#[derive(Debug, Clone)]
pub enum IssuerBehavior {
    /// With the correct documents.
    Normal,
    /// With a status and no body.
    Status(u16),
    /// With the correct documents, after a delay.
    Delayed(Duration),
    /// JWKS requests: with a redirect to this URL.
    Redirect(String),
    /// JWKS requests: with this text.
    Body(String),
    /// JWKS requests: with an endless body.
    Endless,
}

/// A running issuer.
pub struct Issuer {
    /// The `iss`, which is also its base URL on loopback.
    pub url: String,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

struct Shared {
    jwks: Mutex<Value>,
    discovery: Mutex<Value>,
    behavior: Mutex<IssuerBehavior>,
    discoveries: AtomicUsize,
    fetches: AtomicUsize,
}

impl Issuer {
    /// Starts an issuer that publishes these keys.
    pub async fn start(keys: &[&SigningKey]) -> Self {
        Self::start_on(0, keys).await
    }

    /// Starts an issuer on a given port.
    pub async fn start_on(port: u16, keys: &[&SigningKey]) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("the port is free");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        Self::serve(listener, url, keys)
    }

    /// Starts an issuer with TLS. Returns it with the PEM of its certificate.
    pub async fn start_tls(keys: &[&SigningKey]) -> (Self, String) {
        let (acceptor, certificate) = tls::self_signed();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        let url = format!("https://localhost:{}", listener.local_addr().expect("it is bound").port());
        let listener = TlsListener { listener, acceptor };
        (Self::serve(listener, url, keys), certificate)
    }

    fn serve<L: Listener<Addr: std::fmt::Debug>>(listener: L, url: String, keys: &[&SigningKey]) -> Self {
        let shared = Shared {
            jwks: Mutex::default(),
            discovery: Mutex::new(json!({ "issuer": url, "jwks_uri": format!("{url}{JWKS}") })),
            behavior: Mutex::new(IssuerBehavior::Normal),
            discoveries: AtomicUsize::new(0),
            fetches: AtomicUsize::new(0),
        };
        let shared = Arc::new(shared);
        let app = Router::new().fallback(answer).with_state(shared.clone());
        let task = tokio::spawn(async move { axum::serve(listener, app).await.expect("it serves") });
        let issuer = Self { url, shared, task };
        issuer.publish(keys);
        issuer
    }

    /// Replaces the published keys.
    pub fn publish(&self, keys: &[&SigningKey]) {
        self.publish_jwks(jwks(keys));
    }

    /// Replaces the JWKS by any JSON.
    pub fn publish_jwks(&self, jwks: Value) {
        *self.shared.jwks.lock().expect("no panic") = jwks;
    }

    /// Changes a field of the discovery document.
    pub fn discover(&self, name: &str, value: &str) {
        self.shared.discovery.lock().expect("no panic")[name] = value.into();
    }

    /// Sets how it answers from now on.
    pub fn set_behavior(&self, behavior: IssuerBehavior) {
        *self.shared.behavior.lock().expect("no panic") = behavior;
    }

    /// Number of JWKS requests.
    pub fn fetches(&self) -> usize {
        self.shared.fetches.load(SeqCst)
    }

    /// Number of discovery requests.
    pub fn discoveries(&self) -> usize {
        self.shared.discoveries.load(SeqCst)
    }

    /// URL of the JWKS.
    pub fn jwks_url(&self) -> String {
        format!("{}{JWKS}", self.url)
    }

    /// The settings with which a control plane trusts this issuer, and additional ones.
    pub fn settings(&self, name: &str, more: &[(&str, &str)]) -> Vec<String> {
        let own = [("issuer", self.url.as_str()), ("audience", AUDIENCE)];
        let all = own.iter().chain(more);
        all.map(|(key, value)| format!("humans.issuers.{name}.{key}={value}")).collect()
    }

    /// Claims of a human user, valid for an hour.
    pub fn claims(&self, subject: &str) -> Value {
        let now = now();
        json!({ "iss": self.url, "aud": AUDIENCE, "sub": subject, "iat": now, "exp": now + 3600 })
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Accepts connections and completes the TLS handshake.
struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let Ok((stream, address)) = self.listener.accept().await else { continue };
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
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

/// Claims with one member replaced; null removes it.
pub fn with(mut claims: Value, name: &str, value: Value) -> Value {
    let members = claims.as_object_mut().expect("an object");
    if value.is_null() {
        members.remove(name);
    } else {
        members.insert(name.to_owned(), value);
    }
    claims
}

async fn answer(State(shared): State<Arc<Shared>>, uri: Uri) -> Response {
    let for_keys = uri.path() == JWKS;
    let counter = if for_keys { &shared.fetches } else { &shared.discoveries };
    counter.fetch_add(1, SeqCst);
    let fair = || {
        let document = if for_keys { &shared.jwks } else { &shared.discovery };
        axum::Json(document.lock().expect("no panic").clone()).into_response()
    };
    let behavior = shared.behavior.lock().expect("no panic").clone();
    match behavior {
        IssuerBehavior::Status(status) => StatusCode::from_u16(status).expect("a status").into_response(),
        IssuerBehavior::Delayed(pause) => {
            tokio::time::sleep(pause).await;
            fair()
        }
        IssuerBehavior::Redirect(to) if for_keys => (StatusCode::FOUND, [(header::LOCATION, to)]).into_response(),
        IssuerBehavior::Body(text) if for_keys => text.into_response(),
        IssuerBehavior::Endless if for_keys => {
            let chunks = futures_util::stream::repeat_with(|| Ok::<_, std::convert::Infallible>(vec![b' '; 16 * 1024]));
            Body::from_stream(chunks).into_response()
        }
        IssuerBehavior::Normal | IssuerBehavior::Redirect(_) | IssuerBehavior::Body(_) | IssuerBehavior::Endless => {
            fair()
        }
    }
}

/// A key that signs tokens.
pub struct SigningKey {
    kid: Option<String>,
    kind: Kind,
}

enum Kind {
    Rsa(Box<RsaKeyPair>),
    P256(p256::ecdsa::SigningKey),
    Ed25519(Ed25519KeyPair),
}

impl SigningKey {
    /// A new RSA key of 2048 bits.
    pub fn rsa(kid: &str) -> Self {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).expect("a key");
        Self { kid: Some(kid.to_owned()), kind: Kind::Rsa(Box::new(pair)) }
    }

    /// A new P-256 key.
    pub fn p256(kid: &str) -> Self {
        let mut bytes = [0; 32];
        let key = std::iter::repeat_with(|| {
            aws_lc_rs::rand::SecureRandom::fill(&SystemRandom::new(), &mut bytes).expect("random bytes");
            p256::ecdsa::SigningKey::from_slice(&bytes).ok()
        });
        Self { kid: Some(kid.to_owned()), kind: Kind::P256(key.flatten().next().expect("a key")) }
    }

    /// A new Ed25519 key.
    pub fn ed25519(kid: &str) -> Self {
        Self { kid: Some(kid.to_owned()), kind: Kind::Ed25519(Ed25519KeyPair::generate().expect("a key")) }
    }

    /// The same key without a `kid`.
    pub fn without_kid(self) -> Self {
        Self { kid: None, ..self }
    }

    /// The `alg` value.
    pub const fn algorithm(&self) -> &'static str {
        match self.kind {
            Kind::Rsa(_) => "RS256",
            Kind::P256(_) => "ES256",
            Kind::Ed25519(_) => "EdDSA",
        }
    }

    /// The public key as JWK.
    pub fn jwk(&self) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let mut jwk = match &self.kind {
            Kind::Rsa(pair) => {
                let (n, e) = (pair.public_key().modulus(), pair.public_key().exponent());
                let (n, e) = (n.big_endian_without_leading_zero(), e.big_endian_without_leading_zero());
                json!({ "kty": "RSA", "n": text(n), "e": text(e) })
            }
            Kind::P256(key) => {
                let point = key.verifying_key().to_sec1_point(false);
                let (x, y) = point.as_bytes()[1..].split_at(32);
                json!({ "kty": "EC", "crv": "P-256", "x": text(x), "y": text(y) })
            }
            Kind::Ed25519(pair) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": text(pair.public_key().as_ref()) })
            }
        };
        jwk["use"] = "sig".into();
        if let Some(kid) = &self.kid {
            jwk["kid"] = kid.as_str().into();
        }
        jwk
    }

    /// A token with these claims.
    pub fn token(&self, claims: &Value) -> String {
        let header = json!({ "alg": self.algorithm(), "typ": "JWT", "kid": self.kid });
        self.signed(&with(header.clone(), "kid", header["kid"].clone()), claims)
    }

    /// A token with any header and claims, signed with this key.
    pub fn signed(&self, header: &Value, claims: &Value) -> String {
        let message = message(header, claims);
        let signature = match &self.kind {
            Kind::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                let signed = pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message.as_bytes(), &mut signature);
                signed.expect("it signs");
                signature
            }
            Kind::P256(key) => Signer::<Signature>::sign(key, message.as_bytes()).to_bytes().to_vec(),
            Kind::Ed25519(pair) => pair.sign(message.as_bytes()).as_ref().to_vec(),
        };
        sealed(message, &signature)
    }

    /// The public key as PEM, for tests of algorithm confusion: a vulnerable verifier uses it as HMAC secret.
    pub fn public_pem(&self) -> String {
        use aws_lc_rs::encoding::AsDer;
        use p256::pkcs8::{EncodePublicKey, LineEnding};
        let der = match &self.kind {
            Kind::Rsa(pair) => pair.public_key().as_der().expect("a key").as_ref().to_vec(),
            Kind::Ed25519(pair) => pair.public_key().as_der().expect("a key").as_ref().to_vec(),
            Kind::P256(key) => return key.verifying_key().to_public_key_pem(LineEnding::LF).expect("a key"),
        };
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        let mut pem = "-----BEGIN PUBLIC KEY-----\n".to_owned();
        for line in text.as_bytes().chunks(64) {
            let _written = writeln!(pem, "{}", String::from_utf8_lossy(line));
        }
        pem + "-----END PUBLIC KEY-----\n"
    }
}

/// A token with an HMAC-SHA256 signature.
pub fn hs256(secret: &[u8], header: &Value, claims: &Value) -> String {
    let message = message(header, claims);
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message.as_bytes());
    sealed(message, tag.as_ref())
}

/// A token with an empty signature.
pub fn unsigned(header: &Value, claims: &Value) -> String {
    sealed(message(header, claims), b"")
}

fn message(header: &Value, claims: &Value) -> String {
    let [header, claims] = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
    format!("{header}.{claims}")
}

fn sealed(message: String, signature: &[u8]) -> String {
    message + "." + &URL_SAFE_NO_PAD.encode(signature)
}
