//! A stand-in for a control plane with an OAuth token endpoint, for tests of clients. It records what clients request and follows
//! RFC 6749 strictly. A test can make it misbehave in ways in which no control plane does.
//!
//! It verifies client assertions, and accepts each one once. It refuses a refresh that requests more than it granted at the login.

use crate::{
    jwt,
    tls::{self, TlsListener},
};
use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, Uri},
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use countersign_client::Scope;
use countersign_identity::{P256PublicKey, public_key::EcdsaSignature};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::task::JoinSet;

/// The issuer in the metadata. It differs from the URL, like the issuer of a control plane behind a proxy.
pub const ISSUER: &str = "https://countersign.example";

/// The parameters of a request.
pub type Form = BTreeMap<String, String>;

/// A running server.
pub struct TokenServer {
    /// The URL.
    pub url: String,
    /// The certificate of the server in PEM.
    pub certificate: String,
    shared: Arc<Mutex<Shared>>,
    _task: JoinSet<()>,
}

/// What the server knows, and how it behaves.
pub struct Shared {
    /// The metadata of the server.
    pub metadata: Value,
    /// The permissions of the agent.
    pub held: Scope,
    /// The lifetime of access tokens, in seconds.
    pub expires_in: u64,
    /// Grants all permissions of the agent, whatever is requested.
    pub ignores_scope: bool,
    /// The requests, oldest first.
    pub forms: Vec<Form>,
    public_key: P256PublicKey,
    used: HashSet<String>,
    /// The refresh token that can be used, and the scope of its session.
    session: Option<(String, Scope)>,
    issued: usize,
}

impl TokenServer {
    /// Starts a server that knows one agent, with the permissions `read`, `write` and `delete`.
    pub async fn start(public_key: P256PublicKey) -> Self {
        let (listener, url, certificate) = TlsListener::bind().await;
        let shared = Arc::new(Mutex::new(Shared {
            metadata: json!({ "issuer": ISSUER, "token_endpoint": format!("{ISSUER}/oauth/token") }),
            held: "read write delete".parse().expect("the scope is valid"),
            expires_in: 3600,
            ignores_scope: false,
            forms: Vec::new(),
            public_key,
            used: HashSet::new(),
            session: None,
            issued: 0,
        }));
        let app = Router::new().fallback(respond).with_state(shared.clone());
        Self { url, certificate, shared, _task: tls::serve(listener, app) }
    }

    /// What the server knows, to read or to change it.
    pub fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().expect("the lock is not poisoned")
    }

    /// Takes the requests since the last call.
    pub fn take_forms(&self) -> Vec<Form> {
        std::mem::take(&mut self.shared().forms)
    }

    /// Ends the session, so that its refresh token is refused.
    pub fn end_session(&self) {
        self.shared().session = None;
    }
}

async fn respond(State(shared): State<Arc<Mutex<Shared>>>, uri: Uri, body: String) -> Response {
    let mut shared = shared.lock().expect("the lock is not poisoned");
    match uri.path() {
        "/.well-known/oauth-authorization-server" => Json(shared.metadata.clone()).into_response(),
        "/oauth/token" => {
            let form: Form = form_urlencoded::parse(body.as_bytes()).into_owned().collect();
            shared.forms.push(form.clone());
            match shared.tokens(&form) {
                Ok(tokens) => Json(tokens).into_response(),
                Err(code) => {
                    let body = json!({ "error": code, "error_description": "refused by the test" });
                    (StatusCode::BAD_REQUEST, Json(body)).into_response()
                }
            }
        }
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

impl Shared {
    fn tokens(&mut self, form: &Form) -> Result<Value, &'static str> {
        let is_refresh = form["grant_type"] == "refresh_token";
        let allowed = if is_refresh {
            let session = self.session.take_if(|(token, _)| form["refresh_token"] == *token);
            session.map(|(_, granted)| granted).ok_or("invalid_grant")?
        } else {
            self.check_assertion(&form["client_assertion"])?;
            self.held.clone()
        };
        let requested: Option<Scope> = form.get("scope").map(|text| text.parse().expect("the scope is valid"));
        let granted = match requested {
            Some(requested) if is_refresh && !requested.is_within(&allowed) => return Err("invalid_scope"),
            // Grant the permissions that the client requests and the agent holds.
            Some(requested) if !self.ignores_scope => requested.without(&requested.without(&self.held)),
            _ => allowed,
        };
        self.issued += 1;
        let claims = json!({ "jti": self.issued, "scope": granted });
        let access_token = format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(claims.to_string()));
        let refresh_token = format!("rf_{}", self.issued);
        self.session = Some((refresh_token.clone(), granted.clone()));
        Ok(json!({
            "access_token": access_token, "token_type": "Bearer", "expires_in": self.expires_in,
            "refresh_token": refresh_token, "scope": granted,
        }))
    }

    fn check_assertion(&mut self, assertion: &str) -> Result<(), &'static str> {
        let claims = jwt::claims(assertion);
        let (signed, signature) = assertion.rsplit_once('.').ok_or("invalid_client")?;
        let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).map_err(|_| "invalid_client")?;
        let signature = EcdsaSignature::from_jws(&signature).map_err(|_| "invalid_client")?;
        let is_signed = self.public_key.verifies(&[signed.as_bytes()], &signature);
        let is_new = self.used.insert(claims["jti"].to_string());
        let is_valid =
            claims["aud"] == ISSUER && claims["iss"] == claims["sub"] && jwt::header(assertion)["alg"] == "ES256";
        if is_signed && is_new && is_valid { Ok(()) } else { Err("invalid_client") }
    }
}
