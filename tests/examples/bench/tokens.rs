//! A control plane in this process whose signing key is known, so that any number of tokens can be signed in a short time.

use crate::servers::ONE_THREAD;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use countersign_control_plane::Dependencies;
use countersign_identity::{AgentId, Claims, Kid, P256PublicKey, SessionId, TokenId};
use countersign_process::{Rng, SystemRng};
use countersign_tests::{Sidecar, in_process::InProcessServer, sidecar::SyncPort};
use jsonwebtoken::{EncodingKey, Header};
use p256::pkcs8::EncodePrivateKey as _;
use serde_json::{Value, json};
use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
};
use tempfile::TempDir;

/// Records the random bytes that it returns, so that the generated signing key is known.
#[derive(Default)]
struct RecordingRng(Mutex<Vec<[u8; 32]>>);

impl Rng for RecordingRng {
    fn fill(&self, buffer: &mut [u8]) {
        SystemRng.fill(buffer);
        if let Ok(scalar) = <[u8; 32]>::try_from(&*buffer) {
            self.0.lock().unwrap().push(scalar);
        }
    }
}

/// A control plane and its signing key.
pub struct TokenIssuer {
    server: InProcessServer,
    folder: TempDir,
    service: String,
    key: String,
    /// The ids of the roles of the service.
    pub roles: Vec<String>,
    header: Header,
    signing_key: EncodingKey,
    /// The claims of an agent that has logged in.
    claims: Claims,
}

impl TokenIssuer {
    /// Starts the control plane, with a service that has roles `role-0`, `role-1` and so on.
    pub async fn start(roles: usize) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let rng = Arc::new(RecordingRng::default());
        let dependencies = Dependencies { rng: rng.clone(), ..Dependencies::default() };
        let server = InProcessServer::start_with(folder.path(), &[], dependencies).await;
        let [service, key] = ["SERVICE_ID", "SERVICE_KEY"].map(|name| InProcessServer::env(folder.path(), name));
        let mut role_ids = Vec::new();
        for number in 0..roles {
            let name = format!("role-{number}");
            let body = json!({ "name": name, "description": "", "permissions": [format!("action-{number}:read")] });
            let path = format!("/services/{service}/roles");
            let created = server.api.send_as(&key, "POST", &path, body).await.expect(201);
            role_ids.push(created["roleId"].as_str().expect("a role has an id").to_owned());
        }
        let (header, claims, signing_key) =
            log_in_and_find_signing_key(&server.api.url, &service, folder.path(), &rng).await;
        Self { server, folder, service, key, roles: role_ids, header, signing_key, claims }
    }

    /// The URL of the database, which is an SQLite file.
    pub fn database_url(&self) -> String {
        format!("sqlite://{}", self.folder.path().join("countersign.db").display())
    }

    /// The `iss` claim of the tokens, which is the URL of the control plane.
    pub fn issuer(&self) -> &str {
        &self.claims.iss
    }

    pub fn jwks_url(&self) -> String {
        format!("{}/.well-known/jwks.json", self.server.api.url)
    }

    /// The file with the certificate of the authority that has signed the certificate of the control plane.
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// The id of the service.
    pub fn service(&self) -> &str {
        &self.service
    }

    /// The agent that has logged in.
    pub const fn agent(&self) -> AgentId {
        self.claims.sub
    }

    /// A sidecar of the service, with one thread, with the view of the control plane.
    pub async fn start_sidecar(&self, settings: &[&str]) -> Sidecar {
        let port = SyncPort { url: format!("https://localhost:{}", self.server.sync.port()), ca: self.ca() };
        let environment = ONE_THREAD.map(|(name, value)| (name, value.to_owned()));
        let sidecar = Sidecar::start_at(&environment, &port, &[&self.key], settings);
        sidecar.wait_until_ready().await;
        sidecar
    }

    /// The configuration with which Envoy's filter `jwt_authn` accepts the tokens.
    pub async fn jwt_provider(&self) -> Value {
        let jwks = self.server.api.get("/.well-known/jwks.json").await.expect(200);
        json!({
            "issuer": self.claims.iss,
            "audiences": [self.service],
            "local_jwks": { "inline_string": jwks.to_string() },
            "forward": true,
        })
    }

    /// A token of an agent with this number, which has the first `roles` roles.
    pub fn token(&self, agent: u32, roles: usize) -> String {
        self.token_of(AgentId::from_bits(numbered_id(1, agent)), agent, roles)
    }

    /// A token of this agent, with ids that contain this number.
    pub fn token_of(&self, id: AgentId, number: u32, roles: usize) -> String {
        let mut claims = self.claims.clone();
        claims.sub = id;
        claims.client_id = Some(id);
        claims.jti = TokenId::from_bits(numbered_id(2, number));
        claims.sid = SessionId::from_bits(numbered_id(3, number));
        claims.name = format!("Agent {number}");
        claims.roles = (0..roles).map(|role| format!("role-{role}").try_into().unwrap()).collect();
        claims.permissions = (0..roles).map(|role| format!("action-{role}:read").try_into().unwrap()).collect();
        jsonwebtoken::encode(&self.header, &claims, &self.signing_key).expect("the claims can be encoded")
    }
}

/// The bits of an id that contains this number.
fn numbered_id(kind: u128, number: u32) -> u128 {
    (kind << 64) | u128::from(number) | (0x7 << 76) | (0x2 << 62)
}

/// Logs an agent in. Returns the header and the claims of its token, and the key that signed it.
async fn log_in_and_find_signing_key(
    url: &str,
    service: &str,
    folder: &std::path::Path,
    rng: &RecordingRng,
) -> (Header, Claims, EncodingKey) {
    let authority = std::fs::read(folder.join("ca.pem")).unwrap();
    let client = countersign_client::Api::new(url, Some(&authority)).expect("the client can be built");
    let key = countersign_client::PrivateKey::generate();
    let agent = client.register(&key, "owner@example.org", "Agent", None).await.expect("the registration succeeds");
    let tokens = client.login(&key, &agent.agent_id, Some(service)).await.expect("the login succeeds");
    let token = secrecy::ExposeSecret::expose_secret(&tokens.access_token).to_owned();
    let header = jsonwebtoken::decode_header(&token).unwrap();
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    let kid = header.kid.clone().unwrap();
    let secret = rng.0.lock().unwrap().iter().find_map(|scalar| {
        let secret = p256::SecretKey::from_slice(scalar).ok()?;
        let public = P256PublicKey::from_sec1(&secret.public_key().to_sec1_bytes()).ok()?;
        (Kid::from_key(public).as_str() == kid).then_some(secret)
    });
    let secret = secret.expect("the control plane has generated its signing key");
    let key = EncodingKey::from_ec_der(secret.to_pkcs8_der().unwrap().as_bytes());
    (header, serde_json::from_slice(&claims).unwrap(), key)
}
