//! Measures how many requests a server answers per second, and the CPU time that it needs for each.
//!
//! `cargo run --release -p countersign-tests --example rates` uses an SQLite database. A URL as argument selects an empty
//! PostgreSQL database. Build the servers with the same profile before: `cargo build --release --workspace --bins`.
//!
//! The clients run on the same machine and send their requests without pauses. The CPU time is that of the control plane or of
//! the sidecar alone, without the clients and without PostgreSQL.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints figures and panics on errors")]

use countersign_process::{Clock, SystemClock};
use countersign_tests::{Agent, ControlPlane, Sidecar, sidecar::check_request};
use futures_util::future::join_all;
use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// Number of clients, each with an agent.
const CLIENTS: usize = 16;

/// Time for which the requests of one kind are measured.
const DURATION: Duration = Duration::from_secs(20);

#[tokio::main]
async fn main() {
    let setting = std::env::args().nth(1).map(|url| format!("database.url={url}"));
    let settings: Vec<_> = setting.iter().map(String::as_str).chain(["quotas.sessions_per_agent=1000000"]).collect();
    let control = ControlPlane::start_one_with(&settings).await;
    let agents = join_all((0..CLIENTS).map(|_| Agent::register(&control, "Client"))).await;
    let tokens = join_all(agents.iter().map(|agent| agent.token_for(control.service()))).await;
    let sidecar = Sidecar::start(&control).await;
    let checks = join_all((0..CLIENTS).map(|_| sidecar.client())).await;

    let control_plane_cpu = || control.cpu_time();
    measure("logins, each a challenge and a login", control_plane_cpu, async |client: usize| {
        agents[client].login().await
    })
    .await;
    let verify = async |client: usize| assert_eq!(control.verify(&tokens[client]).await.status, 200);
    measure("verifications", control_plane_cpu, verify).await;
    let check = async |client: usize| {
        let authorization = format!("Bearer {}", tokens[client]);
        let request = check_request(&[("authorization", &authorization)], &[]);
        checks[client].clone().check(request).await.unwrap()
    };
    measure("checks, each client over a connection of its own", || sidecar.cpu_time(), check).await;
}

/// Sends requests with all clients, and prints the rate and the CPU time of a request.
async fn measure<T>(what: &str, cpu: impl Fn() -> Duration, request: impl AsyncFn(usize) -> T) {
    let answered = AtomicU32::new(0);
    let (started, cpu_before) = (SystemClock.since_boot(), cpu());
    let elapsed = || SystemClock.since_boot().saturating_sub(started);
    let client = async |number| {
        while elapsed() < DURATION {
            request(number).await;
            answered.fetch_add(1, Ordering::Relaxed);
        }
    };
    join_all((0..CLIENTS).map(client)).await;
    let (elapsed, cpu, answered) = (elapsed(), cpu().saturating_sub(cpu_before), answered.load(Ordering::Relaxed));
    println!(
        "{what}: {:.0}/s, {:.0} µs of CPU each, so {:.0}/s per core",
        f64::from(answered) / elapsed.as_secs_f64(),
        cpu.as_secs_f64() * 1e6 / f64::from(answered),
        f64::from(answered) / cpu.as_secs_f64(),
    );
}
