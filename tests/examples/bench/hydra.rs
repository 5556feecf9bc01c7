//! Ory Hydra, an OAuth server that issues JWTs as access tokens, with PostgreSQL and TLS.

use countersign_tests::{
    HttpClient,
    process::{Process, free_port},
};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// The connections to PostgreSQL. There must be more connections than callers: otherwise, Hydra hangs. All of them stay open.
const CONNECTIONS: &str = "sslmode=disable&max_conns=64&max_idle_conns=64";

/// The key set with which Hydra signs access tokens. If the set did not exist, Hydra would generate one with an RSA key.
const ACCESS_TOKEN_KEYS: &str = "hydra.jwt.access-token";

/// The audience of all tokens.
pub const AUDIENCE: &str = "https://service.example";

/// A running Hydra with one thread for Go code.
pub struct Hydra {
    process: Process,
    /// The API for clients.
    pub public: HttpClient,
    /// The API for resource servers and administrators.
    pub admin: HttpClient,
    _folder: TempDir,
}

impl Hydra {
    /// Starts Hydra with an empty PostgreSQL database. It signs access tokens with ES256, as Countersign does.
    pub async fn start(program: &Path, database: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let pair = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("the certificate is valid");
        let certificate = write(&folder, "cert.pem", &pair.cert.pem());
        let key = write(&folder, "key.pem", &pair.signing_key.serialize_pem());
        let [public, admin] = [free_port(), free_port()];
        let [public_url, admin_url] = [public, admin].map(|port| format!("https://127.0.0.1:{port}"));
        let config = json!({
            "dsn": format!("{database}?{CONNECTIONS}"),
            "secrets": { "system": ["a secret of a benchmark"] },
            "serve": {
                "public": { "host": "127.0.0.1", "port": public },
                "admin": { "host": "127.0.0.1", "port": admin },
                "tls": { "enabled": true, "cert": { "path": certificate }, "key": { "path": key } },
            },
            "strategies": { "access_token": "jwt" },
            "urls": { "self": { "issuer": public_url, "admin": admin_url } },
            // No telemetry.
            "sqa": { "opt_out": true },
        });
        let config = write(&folder, "hydra.json", &config.to_string());
        let command = |arguments: &[&str]| {
            let mut command = Command::new(program);
            command.env("GOMAXPROCS", "1").args(arguments).arg("--config").arg(&config);
            command
        };
        let migrated = command(&["migrate", "sql", "up", "--yes", "--read-from-env"]).output().expect("Hydra runs");
        assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
        let process = Process::start(command(&["serve", "all"]), &folder.path().join("log"));
        let authority = pair.cert.pem();
        let [public, admin] = [public_url, admin_url].map(|url| HttpClient::trusting(url, authority.as_bytes()));
        admin.wait_until_ok("/health/ready", "Hydra is ready", || process.log()).await;
        let key = json!({ "alg": "ES256", "use": "sig", "kid": "bench" });
        admin.post(&format!("/admin/keys/{ACCESS_TOKEN_KEYS}"), key).await.expect(201);
        Self { process, public, admin, _folder: folder }
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The audience of client assertions.
    pub fn token_url(&self) -> String {
        format!("{}/oauth2/token", self.public.url)
    }

    /// Registers a client with this public key, as a JWK. Returns its id.
    pub async fn register(&self, key: &Value) -> String {
        let client = json!({
            "grant_types": ["client_credentials"],
            "token_endpoint_auth_method": "private_key_jwt",
            "token_endpoint_auth_signing_alg": "ES256",
            "jwks": { "keys": [key] },
            "scope": "read",
            "audience": [AUDIENCE],
        });
        let created = self.admin.post("/admin/clients", client).await.expect(201);
        created["client_id"].as_str().expect("a client has an id").to_owned()
    }
}

fn write(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("the file can be written");
    path
}
