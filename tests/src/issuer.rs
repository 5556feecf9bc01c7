//! An issuer of people's tokens, as OpenID Connect has them: a discovery document, a JWKS and keys that sign.
//!
//! It can be slow, wrong or away, and it counts who asks for its keys.

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

/// What the tokens of these issuers are for, unless a test says otherwise.
pub const AUDIENCE: &str = "countersign";

/// Where its keys are.
const JWKS: &str = "/keys";

/// How it answers.
#[derive(Debug, Clone)]
pub enum IssuerBehavior {
    /// As it should.
    Normal,
    /// With a status and nothing else.
    Status(u16),
    /// After a while.
    Delayed(Duration),
    /// To whoever asks for keys: they are elsewhere.
    Redirect(String),
    /// To whoever asks for keys: this.
    Body(String),
    /// To whoever asks for keys: bytes without end.
    Endless,
}

/// A running issuer.
pub struct Issuer {
    /// Its `iss`, and where it listens on loopback.
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
    /// Starts one that publishes these keys.
    pub async fn start(keys: &[&SigningKey]) -> Self {
        Self::start_on(0, keys).await
    }

    /// The same on a port that is known before.
    pub async fn start_on(port: u16, keys: &[&SigningKey]) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("the port is free");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        Self::serve(listener, url, keys)
    }

    /// Starts one that speaks TLS, as a real one does; gives the PEM of the certificate that vouches for it.
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

    /// Publishes these keys and no others.
    pub fn publish(&self, keys: &[&SigningKey]) {
        self.publish_jwks(jwks(keys));
    }

    /// Publishes anything as its JWKS.
    pub fn publish_jwks(&self, jwks: Value) {
        *self.shared.jwks.lock().expect("no panic") = jwks;
    }

    /// Changes its discovery document.
    pub fn discover(&self, name: &str, value: &str) {
        self.shared.discovery.lock().expect("no panic")[name] = value.into();
    }

    /// How it answers from now on.
    pub fn set_behavior(&self, behavior: IssuerBehavior) {
        *self.shared.behavior.lock().expect("no panic") = behavior;
    }

    /// How often somebody asked for its keys.
    pub fn fetches(&self) -> usize {
        self.shared.fetches.load(SeqCst)
    }

    /// How often somebody asked where its keys are.
    pub fn discoveries(&self) -> usize {
        self.shared.discoveries.load(SeqCst)
    }

    /// The URL of its keys.
    pub fn jwks_url(&self) -> String {
        format!("{}{JWKS}", self.url)
    }

    /// The settings by which a control plane knows it, with some more keys and values.
    pub fn settings(&self, name: &str, more: &[(&str, &str)]) -> Vec<String> {
        let own = [("issuer", self.url.as_str()), ("audience", AUDIENCE)];
        let all = own.iter().chain(more);
        all.map(|(key, value)| format!("humans.issuers.{name}.{key}={value}")).collect()
    }

    /// The claims of a person for the next hour.
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

/// Hands on the connections that got through TLS.
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

/// The second in which we are.
pub fn now() -> i64 {
    SystemClock.now().seconds()
}

/// A JWKS of these keys.
pub fn jwks(keys: &[&SigningKey]) -> Value {
    json!({ "keys": keys.iter().map(|key| key.jwk()).collect::<Vec<_>>() })
}

/// Claims with one changed; null takes it away.
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
    /// A fresh RSA key of 2048 bits.
    pub fn rsa(kid: &str) -> Self {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).expect("a key");
        Self { kid: Some(kid.to_owned()), kind: Kind::Rsa(Box::new(pair)) }
    }

    /// A fresh key on P-256.
    pub fn p256(kid: &str) -> Self {
        let mut bytes = [0; 32];
        let key = std::iter::repeat_with(|| {
            aws_lc_rs::rand::SecureRandom::fill(&SystemRandom::new(), &mut bytes).expect("random bytes");
            p256::ecdsa::SigningKey::from_slice(&bytes).ok()
        });
        Self { kid: Some(kid.to_owned()), kind: Kind::P256(key.flatten().next().expect("a key")) }
    }

    /// A fresh Ed25519 key.
    pub fn ed25519(kid: &str) -> Self {
        Self { kid: Some(kid.to_owned()), kind: Kind::Ed25519(Ed25519KeyPair::generate().expect("a key")) }
    }

    /// The same key without a name.
    pub fn without_kid(self) -> Self {
        Self { kid: None, ..self }
    }

    /// As it stands in `alg`.
    pub const fn algorithm(&self) -> &'static str {
        match self.kind {
            Kind::Rsa(_) => "RS256",
            Kind::P256(_) => "ES256",
            Kind::Ed25519(_) => "EdDSA",
        }
    }

    /// Its public half.
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

    /// Any header and claims, signed with this key, whatever the header says.
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

    /// The public half as PEM: what a confused verifier might take for the secret of an HMAC.
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

/// Header and claims with an HMAC under this secret.
pub fn hs256(secret: &[u8], header: &Value, claims: &Value) -> String {
    let message = message(header, claims);
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message.as_bytes());
    sealed(message, tag.as_ref())
}

/// Header and claims without a signature.
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
