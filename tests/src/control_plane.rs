//! Starts the control plane binary with `--dev` on free ports, in its own folder, and calls its API.

mod shared;

use crate::{
    engines::{self, DatabaseLease},
    http::{HttpClient, HttpResponse},
    process::{Process, eventually, free_port},
    tools,
};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    path::Path,
    process::{Command, Output},
    sync::Arc,
};
use tempfile::TempDir;

/// The master key that replicas share.
pub const MASTER_KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// A control plane process, which can be restarted after [`ControlPlane::kill`].
pub struct ControlPlane {
    server: Arc<Server>,
    /// The variables of `dev.env`, without the prefix `COUNTERSIGN_`.
    pub env: HashMap<String, String>,
    /// HTTP client of the API.
    pub api: HttpClient,
    settings: Vec<String>,
}

/// A process with its files and its database.
struct Server {
    // The process is declared before the folder, because dropping the process prints the log in the folder if the test
    // panics.
    process: Process,
    folder: TempDir,
    // The database is declared after the process, because dropping a database in use logs errors.
    _database: Option<DatabaseLease>,
}

impl ControlPlane {
    /// Starts a control plane with the defaults of `--dev` and without rate limits.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a control plane with settings such as `tokens.access_seconds=5`, and without rate limits.
    pub async fn start_with(settings: &[&str]) -> Self {
        let limits: Vec<_> = unreachable_limits().map(|(key, value)| format!("{key}={value}")).collect();
        Self::start_with_default_limits_and(
            &[&limits.iter().map(String::as_str).collect::<Vec<_>>(), settings].concat(),
        )
        .await
    }

    /// Starts a replica. All replicas share the database, the master key and the public URL.
    pub async fn start_replica(database: &str, settings: &[&str]) -> Self {
        let shared = replica_settings(database);
        let shared: Vec<_> = shared.iter().map(String::as_str).collect();
        Self::start_with(&[&shared, settings].concat()).await
    }

    /// Starts a control plane with the defaults of `--dev`, except for the rate limits, which are those of production.
    pub async fn start_with_default_limits() -> Self {
        Self::start_with_default_limits_and(&[]).await
    }

    /// Like `start_with`, with the default rate limits. Without `database.url` among the settings, `TEST_ENGINES`
    /// selects the database; an empty `database.url=` selects SQLite.
    pub async fn start_with_default_limits_and(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let limits = default_limits().map(|(key, value)| format!("{key}={value}"));
        let mut settings: Vec<String> = limits.chain(settings.iter().map(ToString::to_string)).collect();
        let is_set = |key: &str| settings.iter().any(|setting| setting.starts_with(key));
        let (database, redis) = (is_set("database.url="), is_set("redis.url="));
        let lease = if database { None } else { engines::lease().await };
        settings.extend(lease.iter().map(|lease| format!("database.url={}", lease.url())));
        if !database && !redis {
            settings.extend(engines::redis_url().map(|url| format!("redis.url={url}")));
        }
        // The ports of the control plane are fixed, so that a restart can reuse them.
        let listen = ["api", "sync", "admin"].map(|port| format!("listen.{port}=127.0.0.1:{}", free_port()));
        let process = launch(folder.path(), listen.iter().chain(&settings));
        let (env, mut api) = wait_for_env(folder.path(), &process).await;
        if settings.iter().any(|setting| setting.starts_with("public_url=")) {
            api.url = wait_for_api_url(&process).await;
        }
        Self { server: Arc::new(Server { process, folder, _database: lease }), env, api, settings }
    }

    fn process_mut(&mut self) -> &mut Process {
        &mut Arc::get_mut(&mut self.server).expect("only this test uses the control plane").process
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        self.process_mut().kill();
    }

    /// Restarts on the same ports and data.
    pub async fn restart(&mut self) {
        self.kill();
        let port = |url: &str| url.rsplit(':').next().unwrap_or_default().to_owned();
        let ports = [("api", &self.api.url), ("sync", &self.env["SYNC_URL"]), ("admin", &self.env["ADMIN_URL"])];
        let ports = ports.map(|(setting, url)| format!("listen.{setting}=127.0.0.1:{}", port(url)));
        let process = launch(self.folder(), ports.iter().chain(&self.settings));
        *self.process_mut() = process;
        let admin = HttpClient::plain(self.env["ADMIN_URL"].clone());
        let process = &self.server.process;
        let ready = async || {
            HttpResponse::try_send(admin.request("GET", "/readyz")).await.filter(|response| response.status == 200)
        };
        eventually("the control plane is ready again", ready, || process.log()).await;
    }

    /// Restarts with one more setting.
    pub async fn restart_with(&mut self, setting: &str) {
        self.settings.push(setting.to_owned());
        self.restart().await;
    }

    /// Sends SIGTERM and waits for the exit.
    pub async fn terminate(&mut self) -> std::process::ExitStatus {
        self.process_mut().terminate().await
    }

    /// Resident memory in bytes (`VmRSS`).
    pub fn resident_memory(&self) -> usize {
        self.server.process.resident_memory()
    }

    /// The log so far.
    pub fn log(&self) -> String {
        self.server.process.log()
    }

    /// The database URL.
    pub fn database_url(&self) -> String {
        let setting = self.settings.iter().find_map(|setting| setting.strip_prefix("database.url="));
        let sqlite = || format!("sqlite://{}", self.server.folder.path().join("countersign.db").display());
        setting.filter(|url| !url.is_empty()).map_or_else(sqlite, str::to_owned)
    }

    /// The data directory.
    pub fn folder(&self) -> &Path {
        self.server.folder.path()
    }

    /// The master key in hex.
    pub fn master_key(&self) -> String {
        std::fs::read_to_string(self.server.folder.path().join("master.key"))
            .expect("the file of the master key exists")
            .trim()
            .to_owned()
    }

    /// Id of the first service.
    pub fn service(&self) -> &str {
        &self.env["SERVICE_ID"]
    }

    /// API key of the first service, with scope `full`.
    pub fn key(&self) -> &str {
        &self.env["SERVICE_KEY"]
    }

    /// Human token of an administrator.
    pub fn human(&self) -> &str {
        &self.env["HUMAN_TOKEN"]
    }

    /// Certificate of the development CA as PEM.
    pub fn authority(&self) -> Vec<u8> {
        std::fs::read(&self.env["CA"]).expect("the CA file exists")
    }

    /// A path below `/services/{id}` of the first service.
    pub fn path(&self, below: &str) -> String {
        format!("/services/{}{below}", self.service())
    }

    /// Creates a service and a `full` key for it. Returns the service id and the key.
    pub async fn create_service(&self, body: Value) -> (String, String) {
        self.create_service_of(self.human(), body).await
    }

    /// Creates a service of a human user, and a `full` key for it. Returns the service id and the key.
    pub async fn create_service_of(&self, human: &str, body: Value) -> (String, String) {
        let created = self.api.send_as(human, "POST", "/services", body).await.expect(201);
        let service = text(&created["serviceId"]);
        let key = self.create_key_as(human, &service, "full").await;
        (service, key)
    }

    /// Creates an API key for a service.
    pub async fn create_key(&self, service: &str, scope: &str) -> String {
        self.create_key_as(self.human(), service, scope).await
    }

    async fn create_key_as(&self, human: &str, service: &str, scope: &str) -> String {
        let body = json!({ "name": "test", "scope": scope });
        let path = format!("/services/{service}/keys");
        text(&self.api.send_as(human, "POST", &path, body).await.expect(201)["apiKey"])
    }

    /// Creates a role at the first service. Returns the role id.
    pub async fn create_role(&self, name: &str, permissions: &[&str]) -> String {
        let body = json!({ "name": name, "description": "", "permissions": permissions });
        text(&self.api.send_as(self.key(), "POST", &self.path("/roles"), body).await.expect(201)["roleId"])
    }

    /// Assigns a role of the first service without expiry.
    pub async fn assign(&self, agent: &str, role: &str) {
        self.assign_until(agent, role, None).await;
    }

    /// Assigns a role of the first service until a time.
    pub async fn assign_until(&self, agent: &str, role: &str, until: Option<String>) {
        let body = json!({ "roleId": role, "expiresAt": until });
        let path = self.path(&format!("/agents/{agent}/roles"));
        self.api.send_as(self.key(), "POST", &path, body).await.expect(200);
    }

    /// Revokes a role of the first service, and returns the field `revoked` of the response.
    pub async fn revoke(&self, agent: &str, role: &str) -> bool {
        let path = self.path(&format!("/agents/{agent}/roles/{role}"));
        let response = HttpResponse::send(self.api.request("DELETE", &path).bearer_auth(self.key())).await;
        response.expect(200)["revoked"].as_bool().expect("the value is a boolean")
    }

    /// Deletes a role of the first service.
    pub async fn delete_role(&self, role: &str) -> HttpResponse {
        HttpResponse::send(self.api.request("DELETE", &self.path(&format!("/roles/{role}"))).bearer_auth(self.key()))
            .await
    }

    /// Suspends, reactivates or revokes an agent.
    pub async fn set_status(&self, agent: &str, status: &str) -> HttpResponse {
        self.api.send_as(self.human(), "PUT", &format!("/agents/{agent}/status"), json!({ "status": status })).await
    }

    /// Revokes an access or refresh token. The request has no other credential than the token.
    pub async fn revoke_token(&self, token: &str) {
        assert_eq!(self.api.post("/auth/revoke", json!({ "token": token })).await.expect(200), json!({}));
    }

    /// Verifies a token at the first service, through the API.
    pub async fn verify(&self, token: &str) -> HttpResponse {
        self.verify_at(self.service(), self.key(), token).await
    }

    /// Verifies a token at a service, through the API.
    pub async fn verify_at(&self, service: &str, key: &str, token: &str) -> HttpResponse {
        let request = self.api.request("GET", &format!("/services/{service}/verify")).bearer_auth(key);
        HttpResponse::send(request.header("x-agent-token", format!("Bearer {token}"))).await
    }

    /// Runs a subcommand of the control plane binary with the settings and data of this server.
    pub fn command(&self, arguments: &[&str]) -> Output {
        self.prepare(arguments).output().expect("the binary runs")
    }

    /// Builds the command that [`ControlPlane::command`] runs.
    pub fn prepare(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(tools::binary("countersign-control-plane"));
        command.args(["--dev", "--set", &format!("data_dir={}", self.server.folder.path().display())]);
        for setting in &self.settings {
            command.args(["--set", setting]);
        }
        command.args(arguments);
        command
    }

    /// All signing keys, newest first.
    pub async fn signing_keys(&self) -> Vec<Value> {
        let listed = self.api.get_as(self.human(), "/signing-keys?limit=200").await.expect(200);
        listed["data"].as_array().expect("the value is a list").clone()
    }

    /// The `kid` of the newest signing key that has this status.
    pub async fn signing_key(&self, status: &str) -> String {
        let keys = self.signing_keys().await;
        let key = keys.iter().find(|key| key["status"] == status);
        text(&key.unwrap_or_else(|| panic!("no signing key is {status}: {keys:?}"))["kid"])
    }

    /// Requests a rotation of the signing keys.
    pub async fn rotate(&self) -> HttpResponse {
        HttpResponse::send(self.api.request("POST", "/signing-keys/rotate").bearer_auth(self.human())).await
    }

    /// Revokes a signing key, and returns the field `revoked` of the response.
    pub async fn revoke_signing_key(&self, kid: &str) -> bool {
        let request = self.api.request("DELETE", &format!("/signing-keys/{kid}")).bearer_auth(self.human());
        HttpResponse::send(request).await.expect(200)["revoked"].as_bool().expect("the value is a boolean")
    }

    /// Mints a human token with the operator key.
    pub fn mint_human(&self, subject: &str) -> String {
        self.mint_human_for(subject, 8)
    }

    /// Mints a human token that expires after some hours; with 0 hours it is already expired.
    pub fn mint_human_for(&self, subject: &str, hours: u32) -> String {
        mint_human(self.folder(), subject, hours)
    }
}

/// Mints a human token with the operator key in a data directory.
pub fn mint_human(folder: &Path, subject: &str, hours: u32) -> String {
    let output = Command::new(tools::binary("countersign-control-plane"))
        .args(["--dev", "human-token", "mint", "--subject", subject, "--hours", &hours.to_string()])
        .args(["--set", &format!("data_dir={}", folder.display())])
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("the text is UTF-8").trim().to_owned()
}

/// The default rate limits of production, as settings.
pub fn default_limits() -> impl Iterator<Item = (String, String)> {
    let file = tools::root().join("control-plane/config.default.toml");
    let text = std::fs::read_to_string(file).expect("the file of default settings is readable");
    let limits = text.lines().filter_map(|line| line.split_once(" = ")).filter(|(key, _)| key.ends_with("_per_minute"));
    limits.map(|(key, value)| (format!("limits.{key}"), value.to_owned())).collect::<Vec<_>>().into_iter()
}

/// Settings that raise the rate limits so far that no test reaches them.
pub fn unreachable_limits() -> impl Iterator<Item = (String, String)> {
    let categories = ["auth", "auth_address", "verification", "management", "feedback", "failures"];
    categories.into_iter().map(|category| (format!("limits.{category}_per_minute"), "1000000".to_owned()))
}

/// A JSON string as `String`.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a string")).to_owned()
}

/// The settings that all replicas with the same database share.
pub fn replica_settings(database: &str) -> [String; 3] {
    [
        format!("database.url={database}"),
        format!("secrets.master_key={MASTER_KEY}"),
        "public_url=https://replicas.test".to_owned(),
    ]
}

fn launch<'a>(folder: &Path, settings: impl Iterator<Item = &'a String>) -> Process {
    let mut command = Command::new(tools::binary("countersign-control-plane"));
    command.args(["--dev", "--set", &format!("data_dir={}", folder.display())]);
    for setting in settings {
        command.args(["--set", setting]);
    }
    Process::start(command, &folder.join("log"))
}

/// Reads the API port from the log. With `public_url` set, `dev.env` does not contain the local address.
async fn wait_for_api_url(process: &Process) -> String {
    let logged = async || Some(process.log().split_once(" api=127.0.0.1:")?.1.split(' ').next()?.to_owned());
    let port = eventually("the log contains the address", logged, || process.log()).await;
    format!("https://localhost:{port}")
}

async fn wait_for_env(folder: &Path, process: &Process) -> (HashMap<String, String>, HttpClient) {
    let file = folder.join("dev.env");
    let text = eventually("dev.env exists", async || std::fs::read_to_string(&file).ok(), || process.log()).await;
    let lines = text.lines().filter_map(|line| line.strip_prefix("COUNTERSIGN_")?.split_once('='));
    let env: HashMap<_, _> = lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let api = HttpClient::trusting(env["URL"].clone(), &std::fs::read(&env["CA"]).expect("the CA file exists"));
    (env, api)
}
