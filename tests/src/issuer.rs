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
    task: tokio::task::JoinHandle<()>,
}

struct Shared {
    jwks: Mutex<Value>,
    discovery: Mutex<Value>,
    behavior: Mutex<IssuerBehavior>,
    discovery_fetches: AtomicUsize,
    jwks_fetches: AtomicUsize,
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

    /// Starts an issuer with TLS. Returns it with the PEM of its certificate.
    pub async fn start_tls(keys: &[&SigningKey]) -> (Self, String) {
        let (acceptor, certificate) = tls::self_signed();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        let url = format!("https://localhost:{}", listener.local_addr().expect("the listener is bound").port());
        let listener = TlsListener { listener, acceptor };
        (Self::serve(listener, url, keys), certificate)
    }

    fn serve<L: Listener<Addr: std::fmt::Debug>>(listener: L, url: String, keys: &[&SigningKey]) -> Self {
        let shared = Shared {
            jwks: Mutex::default(),
            discovery: Mutex::new(json!({ "issuer": url, "jwks_uri": format!("{url}{JWKS}") })),
            behavior: Mutex::new(IssuerBehavior::Normal),
            discovery_fetches: AtomicUsize::new(0),
            jwks_fetches: AtomicUsize::new(0),
        };
        let shared = Arc::new(shared);
        let app = Router::new().fallback(respond).with_state(shared.clone());
        let task = tokio::spawn(async move { axum::serve(listener, app).await.expect("the issuer serves") });
        let issuer = Self { url, shared, task };
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
    pub fn settings(&self, name: &str, more: &[(&str, &str)]) -> Vec<String> {
        let required = [("issuer", self.url.as_str()), ("audience", AUDIENCE)];
        let all = required.iter().chain(more);
        all.map(|(key, value)| format!("humans.issuers.{name}.{key}={value}")).collect()
    }

    /// Claims of a human user that are valid for an hour.
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

/// A TCP listener that completes the TLS handshake of each connection.
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

async fn respond(State(shared): State<Arc<Shared>>, uri: Uri) -> Response {
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

/// A key pair of the issuer that signs tokens.
pub struct SigningKey {
    kid: Option<String>,
    key: KeyMaterial,
}

enum KeyMaterial {
    Rsa(Box<RsaKeyPair>),
    P256(p256::ecdsa::SigningKey),
    Ed25519(Ed25519KeyPair),
}

impl SigningKey {
    /// A new RSA key of 2048 bits.
    pub fn rsa(kid: &str) -> Self {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).expect("the key can be generated");
        Self { kid: Some(kid.to_owned()), key: KeyMaterial::Rsa(Box::new(pair)) }
    }

    /// A new P-256 key.
    pub fn p256(kid: &str) -> Self {
        let mut bytes = [0; 32];
        let key = std::iter::repeat_with(|| {
            aws_lc_rs::rand::SecureRandom::fill(&SystemRandom::new(), &mut bytes).expect("random bytes are available");
            p256::ecdsa::SigningKey::from_slice(&bytes).ok()
        });
        Self {
            kid: Some(kid.to_owned()),
            key: KeyMaterial::P256(key.flatten().next().expect("a valid key is generated")),
        }
    }

    /// A new Ed25519 key.
    pub fn ed25519(kid: &str) -> Self {
        Self {
            kid: Some(kid.to_owned()),
            key: KeyMaterial::Ed25519(Ed25519KeyPair::generate().expect("the key can be generated")),
        }
    }

    /// The same key without a `kid`.
    pub fn without_kid(self) -> Self {
        Self { kid: None, ..self }
    }

    /// The `alg` value.
    pub const fn algorithm(&self) -> &'static str {
        match self.key {
            KeyMaterial::Rsa(_) => "RS256",
            KeyMaterial::P256(_) => "ES256",
            KeyMaterial::Ed25519(_) => "EdDSA",
        }
    }

    /// The public key as JWK.
    pub fn jwk(&self) -> Value {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let mut jwk = match &self.key {
            KeyMaterial::Rsa(pair) => {
                let (n, e) = (pair.public_key().modulus(), pair.public_key().exponent());
                let (n, e) = (n.big_endian_without_leading_zero(), e.big_endian_without_leading_zero());
                json!({ "kty": "RSA", "n": encode(n), "e": encode(e) })
            }
            KeyMaterial::P256(key) => {
                let point = key.verifying_key().to_sec1_point(false);
                let (x, y) = point.as_bytes()[1..].split_at(32);
                json!({ "kty": "EC", "crv": "P-256", "x": encode(x), "y": encode(y) })
            }
            KeyMaterial::Ed25519(pair) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": encode(pair.public_key().as_ref()) })
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
        let signing_input = signing_input(header, claims);
        let signature = match &self.key {
            KeyMaterial::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                let signed =
                    pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signing_input.as_bytes(), &mut signature);
                signed.expect("the key signs");
                signature
            }
            KeyMaterial::P256(key) => Signer::<Signature>::sign(key, signing_input.as_bytes()).to_bytes().to_vec(),
            KeyMaterial::Ed25519(pair) => pair.sign(signing_input.as_bytes()).as_ref().to_vec(),
        };
        compact_jws(signing_input, &signature)
    }

    /// The public key as PEM, for tests of algorithm confusion: a vulnerable verifier uses it as HMAC secret.
    pub fn public_pem(&self) -> String {
        use aws_lc_rs::encoding::AsDer;
        use p256::pkcs8::{EncodePublicKey, LineEnding};
        let der = match &self.key {
            KeyMaterial::Rsa(pair) => pair.public_key().as_der().expect("the key can be encoded").as_ref().to_vec(),
            KeyMaterial::Ed25519(pair) => pair.public_key().as_der().expect("the key can be encoded").as_ref().to_vec(),
            KeyMaterial::P256(key) => {
                return key.verifying_key().to_public_key_pem(LineEnding::LF).expect("the key can be encoded");
            }
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
    let signing_input = signing_input(header, claims);
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signing_input.as_bytes());
    compact_jws(signing_input, tag.as_ref())
}

/// A token with an empty signature.
pub fn unsigned(header: &Value, claims: &Value) -> String {
    compact_jws(signing_input(header, claims), b"")
}

fn signing_input(header: &Value, claims: &Value) -> String {
    let [header, claims] = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
    format!("{header}.{claims}")
}

fn compact_jws(signing_input: String, signature: &[u8]) -> String {
    signing_input + "." + &URL_SAFE_NO_PAD.encode(signature)
}
