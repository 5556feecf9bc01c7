//! The control plane and the sidecar compute the same checksum of the data of a service after any changes.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_client::{Api, PrivateKey};
use countersign_control_plane::{Dependencies, SyncIntervals};
use countersign_ext_authz as authz;
use countersign_process::{Clock as _, SystemRng};
use countersign_tests::{HttpClient, InProcessServer, ManualClock, eventually, in_process::Server};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tempfile::TempDir;

const AGENTS: u32 = 6;
const ROUNDS: u32 = 12;
const CHANGES_PER_ROUND: usize = 12;

/// Numbers that look random, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// An agent with its last access token.
struct Agent {
    id: String,
    key: PrivateKey,
    token: Option<String>,
}

struct Fixture {
    server: InProcessServer,
    folder: TempDir,
    clock: Arc<ManualClock>,
    client: Api,
    _sidecar: Server,
    admin: HttpClient,
    agents: Vec<Agent>,
    roles: Vec<String>,
    role_count: usize,
}

impl Fixture {
    async fn new() -> Self {
        let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
        // A sidecar pings once per second, and a stream ends after six checks of its key without a ping.
        let sync_intervals =
            SyncIntervals { key_check: Duration::from_millis(500), view_check: Duration::from_millis(60) };
        let dependencies = Dependencies { clock: clock.clone(), sync_intervals, ..Dependencies::default() };
        let server = InProcessServer::start_with(folder.path(), &[], dependencies).await;
        let authority = std::fs::read(folder.path().join("ca.pem")).unwrap();
        let client = Api::new(&InProcessServer::env(folder.path(), "URL"), Some(&authority)).unwrap();
        let (sidecar, admin) = start_sidecar(&server, &folder, &clock).await;
        let (agents, roles) = (Vec::new(), Vec::new());
        let mut fixture =
            Self { server, folder, clock, client, _sidecar: sidecar, admin, agents, roles, role_count: 0 };
        for _ in 0..AGENTS {
            fixture.register().await;
        }
        fixture
    }

    async fn register(&mut self) {
        let key = PrivateKey::generate();
        let id = self.client.register(&key, "owner@example.org", "agent", None).await.unwrap().agent_id;
        self.agents.push(Agent { id, key, token: None });
    }

    fn env(&self, name: &str) -> String {
        InProcessServer::env(self.folder.path(), name)
    }

    /// Sends a request, which the control plane may refuse.
    async fn send(&self, credential: &str, method: &str, path: &str, body: Value) -> Value {
        let response = self.server.api.send_as(&self.env(credential), method, path, body).await;
        assert!(response.status < 500, "{method} {path}: {response:?}");
        response.body
    }

    async fn change(&mut self, numbers: &mut Numbers) {
        let service = format!("/services/{}", self.env("SERVICE_ID"));
        let index = numbers.below(self.agents.len());
        let agent = self.agents[index].id.clone();
        let role = if self.roles.is_empty() { 0 } else { numbers.below(self.roles.len()) };
        let role_id = self.roles.get(role).cloned().unwrap_or_default();
        match numbers.below(20) {
            0..=4 => {
                let until = self.clock.now().seconds() + 30 + i64::try_from(numbers.below(2000)).unwrap();
                let until = (numbers.below(2) == 0).then(|| jiff::Timestamp::from_second(until).unwrap().to_string());
                let body = json!({ "roleId": role_id, "expiresAt": until });
                self.send("SERVICE_KEY", "POST", &format!("{service}/agents/{agent}/roles"), body).await;
            }
            5 | 6 => {
                let path = format!("{service}/agents/{agent}/roles/{role_id}");
                self.send("SERVICE_KEY", "DELETE", &path, json!({})).await;
            }
            7 | 8 => {
                self.role_count += 1;
                let name = format!("role {}", self.role_count);
                let body = json!({ "name": name, "description": "", "permissions": ["read", "write"] });
                let created = self.send("SERVICE_KEY", "POST", &format!("{service}/roles"), body).await;
                self.roles.extend(created["roleId"].as_str().map(str::to_owned));
            }
            9 => {
                let body = json!({ "permissions": [format!("use {}", numbers.below(3)).replace(' ', ":")] });
                self.send("SERVICE_KEY", "PATCH", &format!("{service}/roles/{role_id}"), body).await;
            }
            10 if self.roles.len() > 2 => {
                self.roles.remove(role);
                self.send("SERVICE_KEY", "DELETE", &format!("{service}/roles/{role_id}"), json!({})).await;
            }
            11 | 12 => {
                let audience = (numbers.below(3) > 0).then(|| self.env("SERVICE_ID"));
                let login = self.client.login(&self.agents[index].key, &agent, audience.as_deref()).await;
                self.agents[index].token = login.ok().map(|tokens| tokens.access_token.expose_secret().to_owned());
            }
            13 | 14 => {
                if let Some(token) = self.agents[index].token.take() {
                    self.server.api.post("/auth/revoke", json!({ "token": token })).await;
                }
            }
            15 | 16 => {
                let status = ["suspended", "active"][numbers.below(2)];
                self.send("HUMAN_TOKEN", "PUT", &format!("/agents/{agent}/status"), json!({ "status": status })).await;
            }
            17 => {
                let feedback = json!({ "agentId": agent, "score": numbers.below(100) });
                self.send("SERVICE_KEY", "POST", "/trust/feedback", feedback).await;
            }
            18 if numbers.below(3) == 0 => {
                self.send("HUMAN_TOKEN", "DELETE", &format!("/agents/{agent}"), json!({})).await;
                self.agents.remove(index);
                self.register().await;
            }
            18 => drop(self.send("HUMAN_TOKEN", "POST", "/signing-keys/rotate", json!({})).await),
            _ => self.clock.advance(Duration::from_secs(60 + numbers.below(300) as u64)),
        }
    }

    /// How many checksums had this result.
    async fn count(&self, result: &str) -> f64 {
        self.metric(&format!("countersign_authz_view_checks_total{{result=\"{result}\"}} ")).await
    }

    /// The value of the series whose line has this beginning.
    async fn metric(&self, line: &str) -> f64 {
        let text = self.admin.get("/metrics").await.body;
        let count = text.as_str().unwrap().lines().find_map(|it| it.strip_prefix(line)?.parse().ok());
        count.unwrap_or_else(|| panic!("{text}"))
    }

    /// Waits until the data as it is now was compared.
    async fn wait_for_comparison(&self) {
        let before = self.count("ok").await;
        let compared = async || {
            assert!(self.count("mismatch").await < 1.0, "the checksums differ");
            (self.count("ok").await >= before + 2.0).then_some(())
        };
        eventually("the checksum is compared", compared, String::new).await;
    }
}

async fn start_sidecar(server: &InProcessServer, folder: &TempDir, clock: &Arc<ManualClock>) -> (Server, HttpClient) {
    let settings = [
        ("listen.grpc", "127.0.0.1:0".to_owned()),
        ("listen.admin", "127.0.0.1:0".to_owned()),
        ("sync.urls", format!("https://localhost:{}", server.sync.port())),
        ("sync.ca", folder.path().join("ca.pem").display().to_string()),
        ("sync.keys", InProcessServer::env(folder.path(), "SERVICE_KEY")),
        ("sync.ping_seconds", "1".to_owned()),
    ];
    let flags = settings.map(|(key, value)| (key.to_owned(), value)).to_vec();
    let (settings, clock) = (authz::config::read(None, Vec::new(), flags).unwrap(), Arc::clone(clock));
    let (sender, address) = tokio::sync::oneshot::channel();
    let bind = |_| async move {
        let app = authz::App::bind(settings, clock, Arc::new(SystemRng)).await.unwrap();
        sender.send(app.admin_address().unwrap()).unwrap();
        app
    };
    let serve = |app: authz::App, shutdown| async move { app.serve(shutdown).await.unwrap() };
    let sidecar = Server::start(bind, serve).await;
    let admin = HttpClient::plain(format!("http://{}", address.await.unwrap()));
    (sidecar, admin)
}

#[tokio::test]
async fn checksums_are_equal_after_any_changes() {
    let mut fixture = Fixture::new().await;
    fixture.wait_for_comparison().await;
    for round in 0..ROUNDS {
        let mut numbers = Numbers(u64::from(round) * 7919 + 17);
        for _ in 0..CHANGES_PER_ROUND {
            fixture.change(&mut numbers).await;
        }
        fixture.wait_for_comparison().await;
    }
    let agents =
        fixture.metric(&format!("countersign_authz_view_agents{{service=\"{}\"}} ", fixture.env("SERVICE_ID"))).await;
    assert!(agents >= f64::from(AGENTS), "the changes arrived: {agents} agents");
    let [ok, mismatch, skipped] =
        [fixture.count("ok").await, fixture.count("mismatch").await, fixture.count("skipped").await];
    assert!(mismatch < 1.0 && ok > 2.0 * f64::from(ROUNDS), "{ok} ok, {mismatch} mismatches, {skipped} skipped");
}
