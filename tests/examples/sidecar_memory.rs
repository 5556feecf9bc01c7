//! Measures the memory of a sidecar: idle, with many registered agents, and with changed agents in its view.
//!
//! `cargo run --release -p countersign-tests --example sidecar_memory -- 1000000 1000 10000 100000` inserts 1,000,000 agents, and starts a
//! new sidecar with 1,000, 10,000 and 100,000 changed agents in its view. Each changed agent has three roles, and its roles, its
//! trust score and its status have changed. Build the servers with the same profile before:
//! `cargo build --release --workspace --bins`.
//!
//! For each sidecar, a line of JSON goes to standard output: the agents that are registered and those in the view, `rss_kib` (resident
//! memory some seconds after the view has arrived), and `bytes_per_changed_agent` (growth since the idle sidecar).

#![expect(clippy::print_stdout, clippy::expect_used, reason = "a benchmark prints figures and panics on errors")]

use countersign_tests::{Agent, ControlPlane, Sidecar, bulk::BulkInserts};
use serde_json::json;
use std::time::Duration;
use tokio::time::sleep;

/// Time after the arrival of the view until memory is measured.
const SETTLING_TIME: Duration = Duration::from_secs(4);

const ROLES: usize = 3;

#[tokio::main]
async fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<i64>().expect("the arguments are numbers"));
    let registered = numbers.next().expect("the first argument is the number of registered agents");
    let mut control = ControlPlane::start_one_with(&[]).await;
    let template = Agent::register(&control, "template").await.id;
    let mut roles = Vec::new();
    for number in 0..ROLES {
        roles.push(control.create_role(&format!("role-{number}"), &["read", "write"]).await);
    }
    let idle = measure(&control).await;
    println!("{}", json!({ "registered": 1, "changed": 0, "rss_kib": idle >> 10 }));

    let (service, mut changed) = (control.service().to_owned(), 0);
    control.kill();
    let mut inserts = BulkInserts::connect(&control.database_url(), &template).await;
    inserts.prepare().await;
    inserts.agents((1, registered), "active").await;
    for total in numbers {
        let range = (changed + 1, total);
        inserts.assignments(range, &service, &roles).await;
        for facet in ["status", "trust", "roles"] {
            inserts.changes(range, facet, &service).await;
        }
        inserts.checkpoint().await;
        changed = total;
        control.restart().await;
        let memory = measure(&control).await;
        let growth = i64::try_from(memory).expect("memory fits") - i64::try_from(idle).expect("memory fits");
        let record = json!({
            "registered": registered, "changed": changed, "rss_kib": memory >> 10,
            "bytes_per_changed_agent": growth / changed.max(1),
        });
        println!("{record}");
        control.kill();
    }
}

/// The resident memory of a new sidecar.
async fn measure(control: &ControlPlane) -> usize {
    let sidecar = Sidecar::start(control).await;
    sleep(SETTLING_TIME).await;
    sidecar.resident_memory()
}
