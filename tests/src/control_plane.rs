//! Starts a control plane as with `--dev` on free ports, in its own folder, and calls its API.
//!
//! The control plane runs in the process of the test, unless the test is about processes: their start and end, their signals, their
//! memory, what they log and what happens to their files.
//!
//! If `TEST_ENGINES` is `fleet`, the control plane is two replicas with one PostgreSQL database and one Redis, which get the
//! requests of a test in turn. So a test that passes does not depend on the replica that answers.

mod injected;
mod observation;
mod replica;
mod requests;
mod shared;

use self::replica::{Environment, Mode, Replica};

use crate::{
    engines::{self, DatabaseLease},
    http::{self, HttpClient, HttpResponse},
    tools,
};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
    path::Path,
    process::{Command, ExitStatus, Output},
    sync::Arc,
    time::Duration,
};

/// The master key that replicas share.
pub const MASTER_KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// A control plane, which can be restarted after [`ControlPlane::kill`].
///
/// Each replica has its own data directory, ports and process. A method that returns only one of these returns the first replica's.
pub struct ControlPlane {
    server: Arc<Server>,
    /// The variables of `dev.env`, without the prefix `COUNTERSIGN_`.
    pub env: HashMap<String, String>,
    /// HTTP client of the API.
    pub api: HttpClient,
    settings: Vec<String>,
}

/// The replicas with their database.
struct Server {
    replicas: Vec<Replica>,
    // The database is declared after the processes, because dropping a database in use logs errors.
    _database: Option<DatabaseLease>,
}

impl ControlPlane {
    /// Starts a control plane with the defaults of `--dev` and without rate limits.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a control plane with settings such as `tokens.access_seconds=5`, and without rate limits.
    pub async fn start_with(settings: &[&str]) -> Self {
        Self::start_replicas(Mode::InProcess, without_limits(settings), 2).await
    }

    /// Like `start`, in a process of its own.
    pub async fn start_process() -> Self {
        Self::start_process_with(&[]).await
    }

    /// Like `start_with`, in a process of its own.
    pub async fn start_process_with(settings: &[&str]) -> Self {
        Self::start_replicas(Mode::OwnProcess, without_limits(settings), 2).await
    }

    /// Like `start_process_with`, but always one process, for tests of what each process does on its own.
    pub async fn start_one_with(settings: &[&str]) -> Self {
        Self::start_replicas(Mode::OwnProcess, without_limits(settings), 1).await
    }

    /// Starts a replica. All replicas share the database, the master key and the public URL.
    pub async fn start_replica(database: &str, settings: &[&str]) -> Self {
        let shared = replica_settings(database);
        let shared: Vec<_> = shared.iter().map(String::as_str).collect();
        Self::start_process_with(&[&shared, settings].concat()).await
    }

    /// Starts one process with SQLite and with these environment variables.
    pub async fn start_in(environment: &[(&str, String)], settings: &[&str]) -> Self {
        let settings = [default_limit_settings(), without_limits(settings)].concat();
        Self::launch(Mode::OwnProcess, settings, &[environment], None).await
    }

    /// Starts two replicas with this PostgreSQL database, each with its own environment variables.
    pub async fn start_pair(database: &str, environments: [&[(&str, String)]; 2]) -> Self {
        Self::start_pair_with(database, environments, &[]).await
    }

    /// Like `start_pair`, with further settings.
    pub async fn start_pair_with(database: &str, environments: [&[(&str, String)]; 2], settings: &[&str]) -> Self {
        let shared = [format!("database.url={database}"), format!("secrets.master_key={MASTER_KEY}")];
        let shared = [&shared.each_ref().map(String::as_str), settings].concat();
        let settings = [default_limit_settings(), without_limits(&shared)].concat();
        Self::launch(Mode::OwnProcess, settings, &environments, None).await
    }

    /// Starts a control plane with the defaults of `--dev`, except for the rate limits, which are those of production.
    pub async fn start_with_default_limits() -> Self {
        Self::start_with_default_limits_and(&[]).await
    }

    /// Like `start_with`, with the default rate limits.
    pub async fn start_with_default_limits_and(settings: &[&str]) -> Self {
        Self::start_replicas(Mode::InProcess, settings.iter().map(ToString::to_string).collect(), 2).await
    }

    /// Like `start_process_with`, with the default rate limits.
    pub async fn start_process_with_default_limits_and(settings: &[&str]) -> Self {
        Self::start_replicas(Mode::OwnProcess, settings.iter().map(ToString::to_string).collect(), 2).await
    }

    /// Without `database.url` among the settings, `TEST_ENGINES` selects the database, and whether there are `max_replicas` or only
    /// one. An empty `database.url=` selects SQLite.
    async fn start_replicas(mode: Mode, settings: Vec<String>, max_replicas: usize) -> Self {
        let (settings, lease) = engines::add_to([default_limit_settings(), settings].concat()).await;
        let count = if lease.is_some() { max_replicas } else { 1 };
        Self::launch(mode, settings, &vec![&[][..]; count], lease).await
    }

    /// Starts a replica for each set of environment variables.
    async fn launch(
        mode: Mode,
        settings: Vec<String>,
        environments: &[&[(&str, String)]],
        database: Option<DatabaseLease>,
    ) -> Self {
        let (first, env) = Replica::start(mode, &settings, owned(environments[0])).await;
        let mut replicas = vec![first];
        for environment in &environments[1..] {
            replicas.push(replicas[0].start_another(&settings, &env, owned(environment)).await);
        }
        Self::of(Arc::new(Server { replicas, _database: database }), env, settings)
    }

    /// A control plane with a new HTTP client.
    fn of(server: Arc<Server>, env: HashMap<String, String>, settings: Vec<String>) -> Self {
        let authority = std::fs::read(&env["CA"]).expect("the CA file exists");
        let client = http::trusting(&authority).build().expect("the client can be built");
        let api = HttpClient::of_replicas(server.urls(), client);
        Self { server, env, api, settings }
    }

    fn replicas_mut(&mut self) -> &mut [Replica] {
        &mut Arc::get_mut(&mut self.server).expect("only this test uses the control plane").replicas
    }

    /// The base URL of the API of each replica.
    pub fn urls(&self) -> Vec<String> {
        self.server.urls()
    }

    /// The URL of the sync port of each replica.
    pub fn sync_urls(&self) -> Vec<String> {
        self.server.replicas.iter().map(Replica::sync_url).collect()
    }

    /// An HTTP client of the API that sends from another loopback address.
    pub fn client_at(&self, address: Ipv4Addr) -> HttpClient {
        let client = http::trusting(&self.authority()).local_address(IpAddr::from(address)).build();
        // `localhost` may be an IPv6 address, which cannot be reached from an IPv4 address.
        let urls = self.urls().into_iter().map(|url| url.replace("//localhost:", "//127.0.0.1:")).collect();
        HttpClient::of_replicas(urls, client.expect("the client can be built"))
    }

    /// Kills the processes.
    pub fn kill(&mut self) {
        self.replicas_mut().iter_mut().for_each(|replica| replica.process_mut().kill());
    }

    /// Sends a signal by name to all replicas.
    pub fn signal(&self, name: &str) {
        self.server.replicas.iter().for_each(|replica| replica.process().signal(name));
    }

    /// Sends a signal by name to a replica.
    pub fn signal_replica(&self, number: usize, name: &str) {
        self.server.replicas[number].process().signal(name);
    }

    /// Kills a replica, starts it again and waits until it is ready.
    pub async fn kill_replica(&mut self, number: usize) {
        let replica = &mut self.replicas_mut()[number];
        replica.process_mut().kill();
        replica.launch_again();
        replica.wait_until_ready().await;
    }

    /// Restarts on the same ports and data.
    pub async fn restart(&mut self) {
        self.kill();
        self.replicas_mut().iter_mut().for_each(Replica::launch_again);
        for replica in &self.server.replicas {
            replica.wait_until_ready().await;
        }
    }

    /// Restarts with one more setting. Only the first replica gets a setting of a port, because replicas cannot share a port.
    pub async fn restart_with(&mut self, setting: &str) {
        self.settings.push(setting.to_owned());
        let count = if setting.starts_with("listen.") { 1 } else { self.server.replicas.len() };
        self.replicas_mut().iter_mut().take(count).for_each(|replica| replica.settings.push(setting.to_owned()));
        self.restart().await;
    }

    /// Restarts the first replica under another program, such as Valgrind, which is given with its arguments.
    pub async fn restart_under(&mut self, wrapper: &[String]) {
        self.replicas_mut()[0].wrapper = wrapper.to_vec();
        self.restart().await;
    }

    /// Sends SIGTERM to each process and waits for the exit. Returns the status of a process that failed, or else of the first one.
    pub async fn terminate(&mut self) -> ExitStatus {
        let mut statuses = Vec::new();
        for replica in self.replicas_mut() {
            statuses.push(replica.process_mut().terminate().await);
        }
        let failed = statuses.iter().find(|status| !status.success());
        *failed.unwrap_or(&statuses[0])
    }

    /// Resident memory of the first replica, in bytes (`VmRSS`).
    pub fn resident_memory(&self) -> usize {
        self.first().process().resident_memory()
    }

    /// CPU time of the process of the first replica.
    pub fn cpu_time(&self) -> Duration {
        self.first().process().cpu_time()
    }

    /// The id of the process of the first replica.
    pub fn process_id(&self) -> u32 {
        self.first().process().id()
    }

    /// The ids of the processes of all replicas.
    pub fn process_ids(&self) -> Vec<u32> {
        self.server.replicas.iter().map(|replica| replica.process().id()).collect()
    }

    /// The log of all processes so far.
    pub fn log(&self) -> String {
        self.server.replicas.iter().map(Replica::log).collect()
    }

    fn first(&self) -> &Replica {
        &self.server.replicas[0]
    }

    /// The database URL.
    pub fn database_url(&self) -> String {
        let setting = self.settings.iter().find_map(|setting| setting.strip_prefix("database.url="));
        let sqlite = || format!("sqlite://{}", self.first().folder.path().join("countersign.db").display());
        setting.filter(|url| !url.is_empty()).map_or_else(sqlite, str::to_owned)
    }

    /// The data directory.
    pub fn folder(&self) -> &Path {
        self.first().folder.path()
    }

    /// The master key in hex.
    pub fn master_key(&self) -> String {
        let key = std::fs::read_to_string(self.folder().join("master.key"));
        key.expect("the file of the master key exists").trim().to_owned()
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

    /// HTTP client of the admin port.
    pub fn admin(&self) -> HttpClient {
        HttpClient::plain(self.env["ADMIN_URL"].clone())
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
        self.api.delete_as(self.key(), &path).await.expect(200)["revoked"] == true
    }

    /// Deletes a role of the first service.
    pub async fn delete_role(&self, role: &str) -> HttpResponse {
        self.api.delete_as(self.key(), &self.path(&format!("/roles/{role}"))).await
    }

    /// Suspends, reactivates or revokes an agent.
    pub async fn set_status(&self, agent: &str, status: &str) -> HttpResponse {
        self.api.send_as(self.human(), "PUT", &format!("/agents/{agent}/status"), json!({ "status": status })).await
    }

    /// Revokes an access or refresh token. The request has no other credential than the token.
    pub async fn revoke_token(&self, token: &str) {
        let revoked = self.api.post("/auth/revoke", json!({ "token": token })).await.expect(200);
        assert!(revoked["revision"].is_u64(), "{revoked}");
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
        command.args(["--dev", "--set", &format!("data_dir={}", self.first().folder.path().display())]);
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
        self.api.delete_as(self.human(), &format!("/signing-keys/{kid}")).await.expect(200)["revoked"] == true
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
    default_limits().map(|(setting, _)| (setting, "1000000".to_owned()))
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

/// The default rate limits of production, because those of `--dev` are higher.
fn default_limit_settings() -> Vec<String> {
    default_limits().map(|(key, value)| format!("{key}={value}")).collect()
}

fn owned(environment: &[(&str, String)]) -> Environment {
    environment.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

fn without_limits(settings: &[&str]) -> Vec<String> {
    let limits = unreachable_limits().map(|(key, value)| format!("{key}={value}"));
    limits.chain(settings.iter().map(ToString::to_string)).collect()
}

impl Server {
    fn urls(&self) -> Vec<String> {
        self.replicas.iter().map(|replica| replica.url.clone()).collect()
    }
}
