//! The servers of a generated history (a random sequence of operations), and a direct connection to the database.
//! Control plane and sidecars run in this process, so that tests can set their clocks, and communicate over TCP.

use crate::{
    lagging_clock::LaggingClock,
    model::Key,
    operation::{MAX_STALENESS, SERVICES},
    rules,
    sidecars::{COPYING, Network, SIDECARS, Sidecars, request},
};
use countersign_control_plane::Dependencies;
use countersign_tests::{
    HttpClient, HttpResponse, InProcessServer, ManualClock, Server, VerifyOutcome, control_plane::text, eventually,
    sidecar::CheckResult,
};
use serde_json::{Value, json};
use sqlx::{
    AnyPool, Row,
    any::{AnyPoolOptions, AnyRow},
};
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tempfile::TempDir;

/// The issuer of all tokens, independent of the port.
const ISSUER: &str = "https://history.test";

/// SQL condition for the rows of the change feed that the service `$1` receives.
const RECEIVED: &str = "changes.recipient IS NULL OR changes.recipient = $1 OR (changes.recipient = '' AND EXISTS \
                        (SELECT 1 FROM services WHERE id = $1 AND refuses_unbound_since IS NULL))";

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
    database_url: String,
    control_plane: Server,
    sync_address: SocketAddr,
    pub network: Network,
    pub sidecars: Sidecars,
    /// A control plane with the data of the backup.
    restored: Option<Server>,
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
            start_control_plane(folder.path(), &database_url, &clock, 3600).await;
        let human = InProcessServer::env(folder.path(), "HUMAN_TOKEN");
        let mut services = Vec::new();
        for number in 0..SERVICES {
            services.push(create_service(&api, &human, number).await);
        }
        sqlx::any::install_default_drivers();
        let database = connect(&database_url).await;
        let sidecar_clock = LaggingClock::new(Arc::clone(&clock));
        let keys: Vec<_> = services.iter().map(|service| service.sync_key.as_str()).collect();
        let sidecars = Sidecars::new(folder.path(), keys.join(","), Arc::clone(&sidecar_clock)).await;
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
            network: Network::new(),
            sidecars,
            restored: None,
            database,
        };
        rules::write(&environment.sidecars.rules_file(), 0, &environment.service_ids());
        environment.apply_network();
        for sidecar in SIDECARS {
            environment.sidecars.restart(sidecar).await;
        }
        environment
    }

    /// The ids of the services.
    pub fn service_ids(&self) -> Vec<&str> {
        self.services.iter().map(|service| service.id.as_str()).collect()
    }

    /// Opens and closes connections as `network` says.
    pub fn apply_network(&self) {
        self.sidecars.set_network(self.network, self.sync_address);
    }

    /// Restarts the control plane with another lifetime of access tokens.
    pub async fn restart_control_plane(&mut self, killed: bool, token_seconds: u32) {
        let old = std::mem::replace(&mut self.control_plane, Server::none());
        if killed {
            drop(old);
        } else {
            old.stop().await;
        }
        let InProcessServer { server, api, sync } =
            start_control_plane(self.folder.path(), &self.database_url, &self.clock, token_seconds).await;
        (self.control_plane, self.api, self.sync_address) = (server, api, sync);
        self.sidecars.disconnect();
        self.apply_network();
    }

    /// Copies the database, if it is SQLite, so that another control plane can serve the data of this moment later.
    pub async fn back_up(&self) {
        if self.database_url.starts_with("sqlite") {
            let folder = self.backup();
            fs::create_dir(&folder).unwrap();
            for name in ["ca.key", "ca.pem", "dev.env", "master.key", "operator.key"] {
                fs::copy(self.folder.path().join(name), folder.join(name)).unwrap();
            }
            let copy = format!("VACUUM INTO '{}'", folder.join("countersign.db").display());
            sqlx::query(sqlx::AssertSqlSafe(copy)).execute(&self.database).await.unwrap();
        }
    }

    fn backup(&self) -> PathBuf {
        self.folder.path().join("backup")
    }

    pub fn has_backup(&self) -> bool {
        self.backup().is_dir()
    }

    /// Starts a control plane with the data of the backup. Until it is stopped, the second address of the sidecar with a copy leads
    /// to this control plane.
    pub async fn start_restored_control_plane(&mut self) {
        let folder = self.backup();
        let url = format!("sqlite://{}", folder.join("countersign.db").display());
        let InProcessServer { server, api: _, sync } = start_control_plane(&folder, &url, &self.clock, 3600).await;
        self.restored = Some(server);
        self.sidecars.divert_second_address(sync);
    }

    pub fn stop_restored_control_plane(&mut self) {
        self.restored = None;
        self.sidecars.disconnect();
        self.apply_network();
    }

    /// Waits until a sidecar has all changes of its services and responds to checks.
    pub async fn wait_for_sidecar(&self, sidecar: usize) -> Result<(), String> {
        for service in &self.services {
            let required = self.newest_change_for(&service.id).await;
            let mut missing = String::new();
            for _ in 0..4000 {
                let revision = self.sidecars.view_revision(sidecar, &service.id).await;
                let result = self.check(sidecar, &service.id, None).await;
                missing = format!("revision {revision} of {required}, {}", result.reason);
                if revision >= required && result.status != 503 {
                    missing.clear();
                    break;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            if !missing.is_empty() {
                return Err(format!("sidecar {sidecar} does not receive all changes of {}: {missing}", service.id));
            }
        }
        Ok(())
    }

    /// Waits until the sidecar that keeps copies has started from its copy for each service, or has refused that copy. Returns the
    /// revisions of the copies in use.
    pub async fn wait_for_start_from_copy(&self) -> [Option<i64>; SERVICES] {
        let decided = async || {
            let mut revisions = [None; SERVICES];
            for (revision, service) in revisions.iter_mut().zip(&self.services) {
                if self.check(COPYING, &service.id, None).await.status != 503 {
                    *revision = Some(self.sidecars.view_revision(COPYING, &service.id).await);
                }
            }
            let used = revisions.iter().flatten().count();
            let are_others_refused = self.sidecars.copies_refused(COPYING, SERVICES - used).await;
            are_others_refused.then_some(revisions)
        };
        eventually("the copies are used or refused", decided, String::new).await
    }

    pub async fn check(&self, sidecar: usize, service: &str, token: Option<&str>) -> CheckResult {
        let extensions = [("service_id", service), ("allow_unassigned", "true")];
        self.sidecars.check(sidecar, request(token, &extensions)).await
    }

    /// The receipt of a revision at a service. The request does not ask the control plane to wait, because the clock of the test
    /// stands still.
    pub async fn receipt(&self, service: &Service, revision: i64) -> Value {
        let path = format!("/services/{}/enforcement?revision={revision}", service.id);
        self.api.get_as(&service.key, &path).await.expect(200)
    }

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
            "SELECT revision, facet, subject, recipient FROM changes WHERE revision > $1 ORDER BY revision, position";
        let rows = sqlx::query(sql).bind(revision).fetch_all(&self.database).await.unwrap();
        let change = rows.iter().map(|row| {
            let facet: String = row.get("facet");
            let service = if PER_RECIPIENT.contains(&facet.as_str()) { None } else { row.get("recipient") };
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
                sqlx::query("SELECT 1 AS marked FROM changed_trust_scores").fetch_optional(&self.database).await;
            marked.unwrap().is_none().then_some(())
        };
        eventually("trust changes are published", published, String::new).await;
    }

    /// Revision of the newest change that a service receives. If the newest changes were deleted from the feed, it is the
    /// revision floor, because a sidecar that connects afterwards receives a snapshot.
    async fn newest_change_for(&self, service: &str) -> i64 {
        let sql = format!(
            "SELECT COALESCE(MAX(changes.revision), feed.floor) AS newest FROM feed LEFT JOIN changes ON {RECEIVED} GROUP BY feed.floor"
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(service.to_owned()).fetch_one(&self.database).await;
        row.unwrap().get("newest")
    }

    /// Revision of the newest change up to a revision that a service receives, if the feed contains it.
    pub async fn newest_change_until(&self, service: &str, revision: i64) -> Option<i64> {
        let sql = format!(
            "SELECT MAX(changes.revision) AS newest FROM changes WHERE changes.revision <= $2 AND ({RECEIVED})"
        );
        let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(service.to_owned()).bind(revision);
        query.fetch_one(&self.database).await.unwrap().get("newest")
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
    folder: &Path,
    database_url: &str,
    clock: &Arc<ManualClock>,
    token_seconds: u32,
) -> InProcessServer {
    let settings = [
        ("database.url", database_url.to_owned()),
        ("public_url", ISSUER.to_owned()),
        ("tokens.access_seconds", token_seconds.to_string()),
        ("sync.max_staleness_seconds", MAX_STALENESS.to_string()),
    ];
    let clock = Arc::clone(clock);
    // With so few changes per read, snapshots and missed changes take many reads.
    let dependencies = Dependencies { clock, changes_per_read: 3, ..Dependencies::default() };
    InProcessServer::start_with(folder, &settings, dependencies).await
}

async fn create_service(api: &HttpClient, human: &str, number: usize) -> Service {
    let body = json!({ "name": format!("service {number}"), "acceptsUnboundTokens": number == 0 });
    let created = api.send_as(human, "POST", "/services", body).await.expect(201);
    let id = text(&created["serviceId"]);
    let key = async |scope: &str| {
        let body = json!({ "name": scope, "scope": scope });
        text(&api.send_as(human, "POST", &format!("/services/{id}/keys"), body).await.expect(201)["apiKey"])
    };
    let (full, sync_key) = (key("full").await, key("sync").await);
    Service { id, key: full, sync_key }
}
