//! The servers of a generated history (a random sequence of operations), and a direct connection to the database.
//! Control plane and sidecar run in this process, so that tests can set their clocks, and communicate over TCP.

use crate::{
    lagging_clock::LaggingClock,
    model::Key,
    operation::{MAX_STALENESS, SERVICES},
    proxy::TcpProxy,
};
use countersign_ext_authz as authz;
use countersign_process::Rng;
use countersign_tests::{
    HttpClient, HttpResponse, InProcessServer, ManualClock, Server, VerifyOutcome, eventually,
    sidecar::{CheckResult, check_request},
};
use envoy_types::pb::envoy::service::auth::v3::authorization_client::AuthorizationClient;
use serde_json::json;
use sqlx::{
    AnyPool, Row,
    any::{AnyPoolOptions, AnyRow},
};
use std::{net::SocketAddr, path::PathBuf, sync::Arc};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

/// Sidecars reconnect without a random wait, so that a history is short.
struct NoChance;

impl Rng for NoChance {
    fn fill(&self, buffer: &mut [u8]) {
        buffer.fill(0);
    }
}

/// The issuer of all tokens, independent of the port.
const ISSUER: &str = "https://history.test";

/// The changes that have one row per recipient in the change feed.
const PER_RECIPIENT: [&str; 4] = ["status", "trust", "token", "session"];

/// A service and its API keys.
pub struct Service {
    pub id: String,
    pub key: String,
    sync_key: String,
}

/// A row of the change feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeRow {
    pub revision: i64,
    pub facet: String,
    pub subject: String,
    pub service: Option<String>,
}

/// All servers of the run of one history.
pub struct Environment {
    pub clock: Arc<ManualClock>,
    pub sidecar_clock: Arc<LaggingClock>,
    pub api: HttpClient,
    pub human: String,
    pub services: Vec<Service>,
    folder: TempDir,
    /// Database URL.
    database_url: String,
    control_plane: Server,
    sync_address: SocketAddr,
    proxy: TcpProxy,
    sidecar: Option<(Server, HttpClient, AuthorizationClient<Channel>)>,
    database: AnyPool,
}

impl Environment {
    /// Starts all servers, with this PostgreSQL database or with SQLite.
    pub async fn new(postgres: Option<String>) -> Self {
        let clock = ManualClock::new();
        let folder = temp_dir();
        let sqlite = || format!("sqlite://{}", folder.path().join("countersign.db").display());
        let database_url = postgres.unwrap_or_else(sqlite);
        let InProcessServer { server: control_plane, api, sync: sync_address } =
            start_control_plane(&folder, &database_url, &clock, 3600).await;
        let human = InProcessServer::env(folder.path(), "HUMAN_TOKEN");
        let mut services = Vec::new();
        for number in 0..SERVICES {
            services.push(create_service(&api, &human, number).await);
        }
        sqlx::any::install_default_drivers();
        let database = connect(&database_url).await;
        let proxy = TcpProxy::new().await;
        proxy.set_target(sync_address);
        let sidecar_clock = LaggingClock::new(Arc::clone(&clock));
        let mut environment = Self {
            clock,
            sidecar_clock,
            api,
            human,
            services,
            folder,
            database_url,
            control_plane,
            sync_address,
            proxy,
            sidecar: None,
            database,
        };
        environment.restart_sidecar().await;
        environment
    }

    /// Restarts the control plane with another lifetime of access tokens.
    pub async fn restart_control_plane(&mut self, killed: bool, token_seconds: u32, connected: bool) {
        let old = std::mem::replace(&mut self.control_plane, Server::none());
        if killed {
            drop(old);
        } else {
            old.stop().await;
        }
        let InProcessServer { server, api, sync } =
            start_control_plane(&self.folder, &self.database_url, &self.clock, token_seconds).await;
        (self.control_plane, self.api, self.sync_address) = (server, api, sync);
        self.proxy.disconnect();
        if connected {
            self.reconnect();
        }
    }

    /// Stops the sidecar at once and starts a new one.
    pub async fn restart_sidecar(&mut self) {
        drop(self.sidecar.take());
        let keys: Vec<_> = self.services.iter().map(|service| service.sync_key.as_str()).collect();
        let url = format!("https://{}", self.proxy.address);
        let authority = self.folder.path().join("ca.pem").display().to_string();
        let settings = [
            ("listen.grpc", "127.0.0.1:0"),
            ("listen.admin", "127.0.0.1:0"),
            ("sync.url", &url),
            ("sync.ca", &authority),
            ("sync.ping_seconds", "1"),
        ];
        let flags = settings.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        let environment = vec![("COUNTERSIGN_SYNC__KEYS".to_owned(), keys.join(","))];
        let settings = authz::config::read(None, environment, flags).unwrap();
        let clock = Arc::clone(&self.sidecar_clock);
        let (sender, addresses) = tokio::sync::oneshot::channel();
        let bind = |_| async move {
            let app = authz::App::bind(settings, clock, Arc::new(NoChance)).await.unwrap();
            sender.send((app.grpc_address().unwrap(), app.admin_address().unwrap())).unwrap();
            app
        };
        let serve = |app: authz::App, shutdown| async move { app.serve(shutdown).await.unwrap() };
        let server = Server::start(bind, serve).await;
        let (grpc, admin) = addresses.await.unwrap();
        let channel = Endpoint::from_shared(format!("http://{grpc}")).unwrap().connect_lazy();
        let admin = HttpClient::plain(format!("http://{admin}"));
        self.sidecar = Some((server, admin, AuthorizationClient::new(channel)));
    }

    pub fn disconnect(&self) {
        self.proxy.disconnect();
    }

    pub fn reconnect(&self) {
        self.proxy.set_target(self.sync_address);
    }

    /// Waits until the sidecar has all changes of its services and responds to checks.
    pub async fn wait_for_sidecar(&self) -> Result<(), String> {
        for service in &self.services {
            let required = self.newest_change_for(&service.id).await;
            let line = format!("countersign_authz_view_revision{{service=\"{}\"}}", service.id);
            let (_, admin, _) = self.sidecar.as_ref().unwrap();
            let mut missing = String::new();
            for _ in 0..4000 {
                let revision = metric(admin, &line).await.unwrap_or(0);
                let result = self.check(&service.id, None).await;
                missing = format!("revision {revision} of {required}, {}", result.reason);
                if revision >= required && result.status != 503 {
                    missing.clear();
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
            if !missing.is_empty() {
                return Err(format!("the sidecar does not receive all changes: {missing}"));
            }
        }
        Ok(())
    }

    /// Sends a check request to the sidecar.
    pub async fn check(&self, service: &str, token: Option<&str>) -> CheckResult {
        let bearer = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<_> = bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect();
        let request = check_request(&headers, &[("service_id", service), ("allow_unassigned", "true")]);
        let (_, _, client) = self.sidecar.as_ref().unwrap();
        CheckResult::from_response(
            client.clone().check(request).await.expect("a check never fails with a gRPC error").into_inner(),
        )
    }

    /// Verifies a token with the API.
    pub async fn verify(&self, service: &Service, token: &str) -> VerifyOutcome {
        let request = self.api.request("GET", &format!("/services/{}/verify", service.id)).bearer_auth(&service.key);
        VerifyOutcome::from_response(&HttpResponse::send(request.header("x-agent-token", token)).await)
    }

    /// Newest revision and revision floor (oldest revision from which a sidecar can resume) of the change feed.
    pub async fn feed_position(&self) -> (i64, i64) {
        let row = sqlx::query("SELECT revision, floor FROM feed").fetch_one(&self.database).await.unwrap();
        (row.get("revision"), row.get("floor"))
    }

    /// The signing keys that are not removed, and the number of revoked ones.
    pub async fn keys(&self) -> (Vec<Key>, i64) {
        let sql = "SELECT kid, published_at, signs_from, removed_at, revoked_at FROM signing_keys \
                   ORDER BY published_at, COALESCE(signs_from, 9223372036854775807), kid";
        let rows = sqlx::query(sql).fetch_all(&self.database).await.unwrap();
        let time = |row: &AnyRow, name: &str| row.get::<Option<i64>, _>(name);
        let live = rows.iter().filter(|row| time(row, "removed_at").is_none()).map(|row| Key {
            kid: row.get("kid"),
            published_at: row.get("published_at"),
            signs_from: time(row, "signs_from"),
        });
        let revoked = rows.iter().filter(|row| time(row, "revoked_at").is_some()).count();
        (live.collect(), i64::try_from(revoked).unwrap())
    }

    /// The changes after a revision, each once. Changes of agents, tokens and sessions have one row per recipient.
    pub async fn changes_since(&self, revision: i64) -> Vec<ChangeRow> {
        let sql =
            "SELECT revision, facet, subject, service_id FROM changes WHERE revision > $1 ORDER BY revision, position";
        let rows = sqlx::query(sql).bind(revision).fetch_all(&self.database).await.unwrap();
        let change = rows.iter().map(|row| {
            let facet: String = row.get("facet");
            let service = if PER_RECIPIENT.contains(&facet.as_str()) { None } else { row.get("service_id") };
            ChangeRow { revision: row.get("revision"), facet, subject: row.get("subject"), service }
        });
        let mut changes: Vec<_> = change.collect();
        changes.dedup();
        changes
    }

    /// Waits until trust changes are in the change feed. A background job writes trust changes to the feed in a
    /// separate transaction.
    pub async fn wait_for_trust_publication(&self) {
        let published = async || {
            let marked =
                sqlx::query("SELECT 1 AS marked FROM trust_marks").fetch_optional(&self.database).await.unwrap();
            marked.is_none().then_some(())
        };
        eventually("trust changes are published", published, String::new).await;
    }

    /// Revision of the newest change that a service receives. If the newest changes were deleted from the feed, it is the
    /// revision floor, because a sidecar that connects afterwards receives a snapshot.
    async fn newest_change_for(&self, service: &str) -> i64 {
        let sql = "SELECT COALESCE(MAX(changes.revision), feed.floor) AS newest FROM feed \
                   LEFT JOIN changes ON changes.service_id IS NULL OR changes.service_id = $1 OR (changes.service_id = '' \
                   AND EXISTS (SELECT 1 FROM services WHERE id = $1 AND refuses_unbound_since IS NULL)) \
                   GROUP BY feed.floor";
        sqlx::query(sql).bind(service.to_owned()).fetch_one(&self.database).await.unwrap().get("newest")
    }
}

/// Opens the database of the control plane. sqlx starts no maintenance task, which can loop for ever (sqlx issue 3645).
#[expect(clippy::disallowed_methods, reason = "the pool has no maintenance task")]
async fn connect(url: &str) -> AnyPool {
    let pool = AnyPoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
    pool.connect(url).await.unwrap()
}

/// A folder in `/dev/shm` if that exists, because histories do not test the disk.
fn temp_dir() -> TempDir {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

async fn start_control_plane(
    folder: &TempDir,
    database_url: &str,
    clock: &Arc<ManualClock>,
    token_seconds: u32,
) -> InProcessServer {
    let settings = [
        ("database.url", database_url.to_owned()),
        ("public_url", ISSUER.to_owned()),
        ("tokens.access_seconds", token_seconds.to_string()),
        ("sync.max_staleness_seconds", MAX_STALENESS.to_string()),
        // Snapshots and missed changes consist of many reads.
        ("sync.changes_per_read", "3".to_owned()),
    ];
    InProcessServer::start(folder.path(), &settings, clock).await
}

async fn create_service(api: &HttpClient, human: &str, number: usize) -> Service {
    let body = json!({ "name": format!("service {number}"), "acceptsUnboundTokens": number == 0 });
    let created = api.send_as(human, "POST", "/services", body).await.expect(201);
    let id = created["serviceId"].as_str().unwrap().to_owned();
    let key = async |scope: &str| {
        let body = json!({ "name": scope, "scope": scope });
        let created = api.send_as(human, "POST", &format!("/services/{id}/keys"), body).await.expect(201);
        created["apiKey"].as_str().unwrap().to_owned()
    };
    let (full, sync_key) = (key("full").await, key("sync").await);
    Service { id, key: full, sync_key }
}

#[expect(clippy::cast_possible_truncation, reason = "revisions are whole numbers")]
async fn metric(admin: &HttpClient, line: &str) -> Option<i64> {
    let response = HttpResponse::try_send(admin.request("GET", "/metrics")).await?;
    let value = response.body.as_str()?.lines().find_map(|metric| metric.strip_prefix(line))?.trim().parse::<f64>();
    value.ok().map(|value| value as i64)
}
