//! Requests to the control plane, beside the limits of the machine: a constant route over the same TLS, commits of the same
//! database with the same durability, and signatures.
//!
//! The control plane and PostgreSQL share a processor; the callers have the other one.

use crate::{
    constant_route,
    deployment::{CALLERS, CONNECTIONS, Deployment, Operation},
    rounds::{Comparison, alternate},
    servers::{ChildServer, per_second, start_on_server_core},
    signatures::Signed,
    wrk::wrk,
};
use countersign_tests::{postgres::Postgres, process::free_port};
use sqlx::{AnyConnection, Connection as _, Executor as _};
use std::{collections::BTreeMap, time::Duration};

/// The time of each side of a round.
const TIME: Duration = Duration::from_secs(1);

/// The durability with which the control plane opens an SQLite file.
const SQLITE_DURABILITY: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL";

/// Measures everything.
pub async fn measure(rounds: usize) -> BTreeMap<String, Comparison> {
    let mut results = BTreeMap::new();
    let postgres = start_on_server_core(Postgres::start_durable()).await;
    for (engine, database) in [("sqlite", String::new()), ("postgres", postgres.create_database().await)] {
        let deployment = Deployment::start(&database).await;
        if engine == "sqlite" {
            results.extend(verify(&deployment, rounds).await);
        }
        let bare = match engine {
            "sqlite" => {
                let folder = tempfile::tempdir().expect("a temporary folder can be created");
                let url = format!("sqlite://{}?mode=rwc", folder.path().join("bare.db").display());
                BareCommits::connect(&url, 1, Some(folder)).await
            }
            _ => BareCommits::connect(&postgres.create_database().await, CALLERS, None).await,
        };
        let signed = Signed::new();
        for (name, operation) in Operation::ALL {
            let limit = async || {
                let commits = bare.per_second().await;
                // Only a login needs a verification and a signature.
                let is_login = matches!(operation, Operation::Login);
                if is_login { commits.min(signed.both_per_second(TIME)) } else { commits }
            };
            let comparison = alternate(rounds, async || deployment.per_second(operation, TIME).await, limit).await;
            results.insert(format!("{name}_{engine}"), comparison);
            eprintln!("{name}_{engine}: {:?}", results[&format!("{name}_{engine}")]);
        }
        let refreshes = async || deployment.per_second(Operation::Refresh, TIME).await;
        results.insert(format!("refresh_{engine}_control"), alternate(rounds, refreshes, refreshes).await);
    }
    results
}

/// `verify` beside a constant route and beside itself, all over TLS on the same processor.
async fn verify(deployment: &Deployment, rounds: usize) -> [(String, Comparison); 2] {
    let headers = deployment.verification_headers().await;
    let port = free_port();
    let _constant = ChildServer::start_constant_route(port).await;
    let constant = format!("https://127.0.0.1:{port}{}", constant_route::PATH);
    let borrowed: Vec<_> = headers.iter().map(String::as_str).collect();
    let verify = async || deployment.verifications_per_second(&headers).await;
    let comparison = alternate(rounds, verify, async || wrk(&constant, &borrowed, CONNECTIONS).await).await;
    eprintln!("verify_http: {comparison:?}");
    [("verify_http".to_owned(), comparison), ("verify_control".to_owned(), alternate(rounds, verify, verify).await)]
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
