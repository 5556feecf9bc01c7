//! Requests to the control plane, beside the limits of the machine: a constant route over the same TLS, commits of the same
//! database with the same durability, and signatures.

use crate::{
    constant_route,
    rounds::{Comparison, alternate},
    servers::{ChildServer, SERVER_CORE, per_second, pin},
    signatures::Signed,
    wrk::wrk,
};
use countersign_tests::{Agent, ControlPlane, postgres::Postgres, process::free_port};
use serde_json::json;
use sqlx::{AnyConnection, Connection as _, Executor as _};
use std::{collections::BTreeMap, time::Duration};

/// Callers at the same time.
const CALLERS: usize = 32;

/// The time of each side of a round.
const TIME: Duration = Duration::from_secs(1);

/// Connections of `wrk`.
const CONNECTIONS: &str = "32";

/// The durability with which the control plane opens an SQLite file.
const SQLITE_DURABILITY: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL";

/// Measures everything.
pub async fn measure(rounds: usize) -> BTreeMap<String, Comparison> {
    let mut results = BTreeMap::new();
    let postgres = Postgres::start_durable().await;
    for (engine, database) in [("sqlite", String::new()), ("postgres", postgres.create_database().await)] {
        let deployment = Deployment::start(&database).await;
        if engine == "sqlite" {
            results.insert("verify_http".to_owned(), deployment.verify(rounds).await);
            eprintln!("verify_http: {:?}", results["verify_http"]);
        }
        let bare = match engine {
            "sqlite" => {
                let folder = tempfile::tempdir().expect("a temporary folder can be created");
                let url = format!("sqlite://{}?mode=rwc", folder.path().join("bare.db").display());
                BareCommits::connect(&url, 1, Some(folder)).await
            }
            _ => BareCommits::connect(&postgres.create_database().await, CALLERS, None).await,
        };
        let signatures = Signed::new().both_per_second(TIME);
        let operations: [(&str, Operation); 4] = [
            ("login", Operation::Login),
            ("refresh", Operation::Refresh),
            ("role_change", Operation::RoleChange),
            ("feedback", Operation::Feedback),
        ];
        for (name, operation) in operations {
            let limit = async || {
                let commits = bare.per_second().await;
                // Only a login needs a verification and a signature.
                if matches!(operation, Operation::Login) { commits.min(signatures) } else { commits }
            };
            let comparison = alternate(rounds, async || deployment.per_second(operation).await, limit).await;
            results.insert(format!("{name}_{engine}"), comparison);
            eprintln!("{name}_{engine}: {:?}", results[&format!("{name}_{engine}")]);
        }
    }
    results
}

/// What a caller does again and again.
#[derive(Debug, Clone, Copy)]
enum Operation {
    /// Gets a challenge and logs in.
    Login,
    /// Refreshes the session that the caller has begun.
    Refresh,
    /// Assigns a role, and revokes it with the next call.
    RoleChange,
    /// Gives feedback about an agent.
    Feedback,
}

/// A control plane with an agent for each caller.
struct Deployment {
    control: ControlPlane,
    agents: Vec<Agent>,
    role: String,
    sessions: Vec<tokio::sync::Mutex<countersign_client::Tokens>>,
}

impl Deployment {
    async fn start(database: &str) -> Self {
        let url = format!("database.url={database}");
        let control = ControlPlane::start_one_with(&[&url, "quotas.sessions_per_agent=1000000"]).await;
        pin(control.process_id(), SERVER_CORE);
        let role = control.create_role("reader", &["read"]).await;
        let mut agents = Vec::new();
        let mut sessions = Vec::new();
        for _ in 0..CALLERS {
            let agent = Agent::register(&control, "Caller").await;
            let tokens = agent.api().login(&agent.key, &agent.id, Some(control.service())).await;
            sessions.push(tokio::sync::Mutex::new(tokens.expect("the login succeeds")));
            agents.push(agent);
        }
        Self { control, agents, role, sessions }
    }

    /// `verify` beside a constant route, both over TLS on the same processor.
    async fn verify(&self, rounds: usize) -> Comparison {
        let token = self.agents[0].token_for(self.control.service()).await;
        self.control.assign(&self.agents[0].id, &self.role).await;
        let port = free_port();
        let _constant = ChildServer::start("constant-route", Some(port)).await;
        let ours = format!("{}{}", self.control.urls()[0], self.control.path("/verify"));
        let constant = format!("https://127.0.0.1:{port}{}", constant_route::PATH);
        let headers = [format!("authorization: Bearer {}", self.control.key()), format!("x-agent-token: {token}")];
        let headers: Vec<_> = headers.iter().map(String::as_str).collect();
        let verify = async || wrk(&ours, &headers, CONNECTIONS).await;
        alternate(rounds, verify, async || wrk(&constant, &headers, CONNECTIONS).await).await
    }

    async fn per_second(&self, operation: Operation) -> f64 {
        per_second(CALLERS, TIME, async |caller, call| self.call(operation, caller, call).await).await
    }

    async fn call(&self, operation: Operation, caller: usize, call: u64) {
        let (control, agent) = (&self.control, &self.agents[caller]);
        match operation {
            Operation::Login => drop(agent.token_for(control.service()).await),
            Operation::Refresh => {
                let mut tokens = self.sessions[caller].lock().await;
                *tokens = agent.api().refresh_with(&tokens.refresh_token).await.expect("the refresh succeeds");
            }
            Operation::RoleChange if call.is_multiple_of(2) => control.assign(&agent.id, &self.role).await,
            Operation::RoleChange => drop(control.revoke(&agent.id, &self.role).await),
            Operation::Feedback => {
                let body = json!({ "agentId": agent.id, "score": 1 });
                let response = control.api.send_as(control.key(), "POST", "/trust/feedback", body).await;
                assert!(response.status < 300, "{response:?}");
            }
        }
    }
}

/// Transactions that insert one row, each with a commit, over connections of their own.
struct BareCommits {
    connections: Vec<tokio::sync::Mutex<AnyConnection>>,
    _folder: Option<tempfile::TempDir>,
}

impl BareCommits {
    async fn connect(url: &str, count: usize, folder: Option<tempfile::TempDir>) -> Self {
        sqlx::any::install_default_drivers();
        let mut connections = Vec::new();
        for number in 0..count {
            let mut connection = AnyConnection::connect(url).await.expect("the database can be opened");
            if folder.is_some() {
                connection.execute(SQLITE_DURABILITY).await.expect("SQLite has these modes");
            }
            if number == 0 {
                let sql = "CREATE TABLE bare (number BIGINT NOT NULL)";
                connection.execute(sql).await.expect("the table can be created");
            }
            connections.push(tokio::sync::Mutex::new(connection));
        }
        Self { connections, _folder: folder }
    }

    async fn per_second(&self) -> f64 {
        per_second(self.connections.len(), TIME, async |caller, call| {
            let insert = sqlx::query("INSERT INTO bare (number) VALUES ($1)").bind(i64::try_from(call).unwrap());
            insert.execute(&mut *self.connections[caller].lock().await).await.expect("the row is inserted");
        })
        .await
    }
}
