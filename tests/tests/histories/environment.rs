//! The world in which a history happens: a control plane and a sidecar as they are, in this process so that
//! their clocks can be moved, over real sockets, with a database that is looked into from beside.

use crate::{
    clocks::Lagging,
    model::Key,
    step::{MAX_STALENESS, SERVICES},
    wire::Wire,
};
use countersign_ext_authz as authz;
use countersign_tests::{
    HttpClient, HttpResponse, InProcessServer, ManualClock, Server, VerifyOutcome, eventually,
    sidecar::{CheckResult, request},
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

/// The issuer of all tokens, wherever the port is.
const ISSUER: &str = "https://history.test";

/// A service, and what manages and guards it.
pub struct Service {
    pub id: String,
    pub key: String,
    sync_key: String,
}

/// What the feed says of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noted {
    pub revision: i64,
    pub facet: String,
    pub subject: String,
    pub service: Option<String>,
}

/// Everything that runs.
pub struct Environment {
    pub clock: Arc<ManualClock>,
    pub lagging: Arc<Lagging>,
    pub api: HttpClient,
    pub human: String,
    pub services: Vec<Service>,
    folder: TempDir,
    /// The URL of the database.
    database_url: String,
    plane: Server,
    plane_sync: SocketAddr,
    wire: Wire,
    sidecar: Option<(Server, HttpClient, AuthorizationClient<Channel>)>,
    database: AnyPool,
}

impl Environment {
    /// On the database at the URL, or on SQLite.
    pub async fn new(postgres: Option<String>) -> Self {
        let clock = ManualClock::new();
        let folder = scratch();
        let sqlite = || format!("sqlite://{}", folder.path().join("countersign.db").display());
        let database_url = postgres.unwrap_or_else(sqlite);
        let InProcessServer { server: plane, api, sync: plane_sync } =
            start_plane(&folder, &database_url, &clock, 3600).await;
        let human = InProcessServer::env(folder.path(), "HUMAN_TOKEN");
        let mut services = Vec::new();
        for number in 0..SERVICES {
            services.push(make_service(&api, &human, number).await);
        }
        sqlx::any::install_default_drivers();
        let database = AnyPoolOptions::new().max_connections(1).connect(&database_url).await.unwrap();
        let wire = Wire::new().await;
        wire.lead_to(plane_sync);
        let lagging = Lagging::new(Arc::clone(&clock));
        let mut environment = Self {
            clock,
            lagging,
            api,
            human,
            services,
            folder,
            database_url,
            plane,
            plane_sync,
            wire,
            sidecar: None,
            database,
        };
        environment.restart_sidecar().await;
        environment
    }

    /// Ends the control plane and starts it again; tokens then live as long as said.
    pub async fn restart_plane(&mut self, killed: bool, token_seconds: u32, connected: bool) {
        let old = std::mem::replace(&mut self.plane, Server::none());
        if killed {
            drop(old);
        } else {
            old.stop().await;
        }
        let InProcessServer { server, api, sync } =
            start_plane(&self.folder, &self.database_url, &self.clock, token_seconds).await;
        (self.plane, self.api, self.plane_sync) = (server, api, sync);
        self.wire.cut();
        if connected {
            self.resume();
        }
    }

    /// Ends the sidecar at once and starts another.
    pub async fn restart_sidecar(&mut self) {
        drop(self.sidecar.take());
        let keys: Vec<_> = self.services.iter().map(|service| service.sync_key.as_str()).collect();
        let url = format!("https://{}", self.wire.address);
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
        let clock = Arc::clone(&self.lagging);
        let (told, addresses) = tokio::sync::oneshot::channel();
        let bind = async move {
            let app = authz::App::bind(settings, clock).await.unwrap();
            told.send((app.grpc_address().unwrap(), app.admin_address().unwrap())).unwrap();
            app
        };
        let serve = |app: authz::App, shutdown| async move { app.serve(shutdown).await.unwrap() };
        let server = Server::start(bind, serve).await;
        let (grpc, admin) = addresses.await.unwrap();
        let channel = Endpoint::from_shared(format!("http://{grpc}")).unwrap().connect_lazy();
        let admin = HttpClient::plain(format!("http://{admin}"));
        self.sidecar = Some((server, admin, AuthorizationClient::new(channel)));
    }

    pub fn cut(&self) {
        self.wire.cut();
    }

    pub fn resume(&self) {
        self.wire.lead_to(self.plane_sync);
    }

    /// Waits until the sidecar has learnt everything and answers.
    pub async fn settle(&self) -> Result<(), String> {
        for service in &self.services {
            let wanted = self.concerning(&service.id).await;
            let line = format!("countersign_authz_view_revision{{service=\"{}\"}}", service.id);
            let (_, admin, _) = self.sidecar.as_ref().unwrap();
            let mut missing = String::new();
            for _ in 0..4000 {
                let known = metric(admin, &line).await.unwrap_or(0);
                let verdict = self.check(&service.id, None).await;
                missing = format!("revision {known} of {wanted}, {}", verdict.reason);
                if known >= wanted && verdict.status != 503 {
                    missing.clear();
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
            if !missing.is_empty() {
                return Err(format!("the sidecar does not catch up: {missing}"));
            }
        }
        Ok(())
    }

    /// What the sidecar says of a request at a service.
    pub async fn check(&self, service: &str, token: Option<&str>) -> CheckResult {
        let bearer = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<_> = bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect();
        let request = request(&headers, &[("service_id", service), ("allow_unassigned", "true")]);
        let (_, _, client) = self.sidecar.as_ref().unwrap();
        CheckResult::of(client.clone().check(request).await.expect("a verdict").into_inner())
    }

    /// What the API says of a token at a service.
    pub async fn verify(&self, service: &Service, token: &str) -> VerifyOutcome {
        let request = self.api.request("GET", &format!("/services/{}/verify", service.id)).bearer_auth(&service.key);
        VerifyOutcome::from_response(&HttpResponse::send(request.header("x-agent-token", token)).await)
    }

    /// Where the feed stands: revision and floor.
    pub async fn position(&self) -> (i64, i64) {
        let row = sqlx::query("SELECT revision, floor FROM feed").fetch_one(&self.database).await.unwrap();
        (row.get("revision"), row.get("floor"))
    }

    /// The signing keys that are believed, and how many were revoked so far.
    pub async fn keys(&self) -> (Vec<Key>, i64) {
        let sql = "SELECT kid, published_at, signs_from, removed_at, revoked_at FROM signing_keys \
                   ORDER BY published_at, COALESCE(signs_from, 9223372036854775807), kid";
        let rows = sqlx::query(sql).fetch_all(&self.database).await.unwrap();
        let at = |row: &AnyRow, name: &str| row.get::<Option<i64>, _>(name);
        let live = rows.iter().filter(|row| at(row, "removed_at").is_none()).map(|row| Key {
            kid: row.get("kid"),
            published_at: row.get("published_at"),
            signs_from: at(row, "signs_from"),
        });
        let revoked = rows.iter().filter(|row| at(row, "revoked_at").is_some()).count();
        (live.collect(), i64::try_from(revoked).unwrap())
    }

    /// What was noted since.
    pub async fn noted_since(&self, revision: i64) -> Vec<Noted> {
        let sql =
            "SELECT revision, facet, subject, service_id FROM changes WHERE revision > $1 ORDER BY revision, position";
        let rows = sqlx::query(sql).bind(revision).fetch_all(&self.database).await.unwrap();
        let noted = rows.iter().map(|row| Noted {
            revision: row.get("revision"),
            facet: row.get("facet"),
            subject: row.get("subject"),
            service: row.get("service_id"),
        });
        noted.collect()
    }

    /// Waits until sidecars are told of all feedback: this is done in a transaction of its own.
    pub async fn await_trust_told(&self) {
        let told = async || {
            let marked =
                sqlx::query("SELECT 1 AS marked FROM trust_marks").fetch_optional(&self.database).await.unwrap();
            marked.is_none().then_some(())
        };
        eventually("changed trust is told", told, String::new).await;
    }

    /// The newest change that concerns a service.
    async fn concerning(&self, service: &str) -> i64 {
        let sql =
            "SELECT COALESCE(MAX(revision), 0) AS newest FROM changes WHERE service_id IS NULL OR service_id = $1";
        sqlx::query(sql).bind(service.to_owned()).fetch_one(&self.database).await.unwrap().get("newest")
    }
}

/// In memory where there is such a place: a history is about order, not about the disk.
fn scratch() -> TempDir {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

async fn start_plane(
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
    ];
    InProcessServer::start(folder.path(), &settings, clock).await
}

async fn make_service(api: &HttpClient, human: &str, number: usize) -> Service {
    let body = json!({ "name": format!("service {number}"), "acceptsUnboundTokens": number == 0 });
    let made = api.send_as(human, "POST", "/services", body).await.expect(201);
    let id = made["serviceId"].as_str().unwrap().to_owned();
    let key = async |scope: &str| {
        let body = json!({ "name": scope, "scope": scope });
        let made = api.send_as(human, "POST", &format!("/services/{id}/keys"), body).await.expect(201);
        made["apiKey"].as_str().unwrap().to_owned()
    };
    let (full, sync_key) = (key("full").await, key("sync").await);
    Service { id, key: full, sync_key }
}

#[expect(clippy::cast_possible_truncation, reason = "revisions are whole numbers")]
async fn metric(admin: &HttpClient, line: &str) -> Option<i64> {
    let answer = HttpResponse::try_send(admin.request("GET", "/metrics")).await?;
    let figure = answer.body.as_str()?.lines().find_map(|found| found.strip_prefix(line))?.trim().parse::<f64>();
    figure.ok().map(|figure| figure as i64)
}
