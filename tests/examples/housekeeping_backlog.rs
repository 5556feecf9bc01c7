//! Measures how fast housekeeping deletes expired sessions, and how long logins take meanwhile.
//!
//! `cargo run --release -p countersign-tests --example housekeeping_backlog -- 10000000` inserts ten million expired sessions
//! with two refresh tokens each into an SQLite database, starts the control plane, logs agents in while the sessions are
//! deleted, and prints the figures. A URL as second argument selects an empty PostgreSQL database. Build the control plane with
//! the same profile before: `cargo build --release --workspace --bins`.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints figures and panics on errors")]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "the figures are printed with a few digits"
)]

use countersign_process::{Clock, SystemClock};
use countersign_tests::{Agent, ControlPlane};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::sleep;

/// Number of agents whose sessions expire, and of agents that log in at the same time.
const AGENTS: i64 = 10_000;
const CLIENTS: usize = 4;

/// Pause of each client between two logins.
const PAUSE: Duration = Duration::from_millis(20);

/// Interval of the output.
const INTERVAL: Duration = Duration::from_secs(10);

/// Number of sessions that one statement inserts.
const BATCH: i64 = 100_000;

/// Latencies of logins in milliseconds, or the errors of failed logins.
type Logins = Arc<Mutex<Vec<Result<f64, String>>>>;

#[tokio::main]
async fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let sessions: i64 = arguments.first().map_or(100_000, |count| count.parse().unwrap());
    let setting = arguments.get(1).map(|url| format!("database.url={url}"));
    let settings: Vec<_> = setting.iter().map(String::as_str).collect();
    let mut control = ControlPlane::start_one_with(&settings).await;
    let mut agents = Vec::new();
    for _ in 0..CLIENTS {
        agents.push(Arc::new(Agent::register(&control, "Client").await));
    }
    let logins = Logins::default();
    let clients: Vec<_> = agents.iter().map(|agent| tokio::spawn(log_in(agent.clone(), logins.clone()))).collect();
    sleep(INTERVAL).await;
    println!("without a backlog: {}", report(&logins));
    clients.iter().for_each(tokio::task::JoinHandle::abort);
    control.kill();

    sqlx::any::install_default_drivers();
    let mut database = AnyConnection::connect(&control.database_url()).await.unwrap();
    let started = SystemClock.since_boot();
    insert_expired(&mut database, &agents[0].id, sessions).await;
    println!("{sessions} sessions and twice as many refresh tokens inserted in {:.0} s", seconds_since(started));

    control.restart().await;
    let started = SystemClock.since_boot();
    logins.lock().unwrap().clear();
    for agent in &agents {
        tokio::spawn(log_in(agent.clone(), logins.clone()));
    }
    let mut last = sessions;
    loop {
        sleep(INTERVAL).await;
        let left =
            count(&mut database, "SELECT CAST(COUNT(*) AS BIGINT) FROM sessions WHERE expires_at < 1700000000000000")
                .await;
        let rate = (last - left) as f64 * 3.0 / INTERVAL.as_secs_f64();
        println!("{:.0} s: {left} sessions left, {rate:.0} rows/s; {}", seconds_since(started), report(&logins));
        last = left;
        if left == 0 {
            break;
        }
    }
    let elapsed = seconds_since(started);
    println!("{} rows in {elapsed:.0} s: {:.0} rows/s", sessions * 3, sessions as f64 * 3.0 / elapsed);
}

fn seconds_since(started: Duration) -> f64 {
    SystemClock.since_boot().saturating_sub(started).as_secs_f64()
}

/// Logs an agent in again and again.
async fn log_in(agent: Arc<Agent>, logins: Logins) {
    loop {
        let started = SystemClock.since_boot();
        let result = agent.api().login(&agent.key, &agent.id, None).await;
        let result = result.map(|_| seconds_since(started) * 1000.0).map_err(|error| error.to_string());
        logins.lock().unwrap().push(result);
        sleep(PAUSE).await;
    }
}

/// The figures of the logins since the last call.
fn report(logins: &Logins) -> String {
    let logins = std::mem::take(&mut *logins.lock().unwrap());
    let mut millis: Vec<f64> = logins.iter().filter_map(|login| login.clone().ok()).collect();
    let first_error = logins.iter().find_map(|login| login.clone().err()).unwrap_or_default();
    millis.sort_by(f64::total_cmp);
    let quantile =
        |part: f64| millis.get((millis.len().saturating_sub(1) as f64 * part) as usize).copied().unwrap_or(0.0);
    let [median, p99, max] = [0.5, 0.99, 1.0].map(quantile);
    let failed = logins.len() - millis.len();
    format!(
        "{} logins, p50 {median:.1} ms, p99 {p99:.1} ms, max {max:.1} ms, {failed} failed {first_error}",
        millis.len()
    )
}

async fn execute(database: &mut AnyConnection, sql: &str) {
    let result = database.execute(AssertSqlSafe(sql)).await;
    result.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

async fn count(database: &mut AnyConnection, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(database).await.unwrap()
}

/// Inserts sessions that expired in 2023, in the order of their ids, of random agents and with random challenges.
async fn insert_expired(database: &mut AnyConnection, agent: &str, sessions: i64) {
    let is_sqlite = database.backend_name() == "SQLite";
    let random = if is_sqlite { "lower(hex(randomblob(16)))" } else { "md5(CAST(random() AS TEXT) || n)" };
    if is_sqlite {
        execute(database, "PRAGMA synchronous = OFF").await;
        execute(database, "PRAGMA cache_size = -1000000").await;
    }
    let copies = numbers(1, AGENTS);
    let id =
        |number: &str| format!("substr('{agent}', 1, 16) || substr(CAST(10000000000000000 + {number} AS TEXT), 2)");
    execute(
        database,
        &format!(
            "{copies} INSERT INTO agents (id, email, name, public_key, public_key_hash, status, cutoff, trust, metadata, \
             created_at, updated_at, superseded_at) SELECT {}, email, name, public_key, public_key_hash, status, cutoff, \
             trust, metadata, created_at, updated_at, created_at FROM agents, numbers WHERE id = '{agent}'",
            id("n")
        ),
    )
    .await;
    let suffix = "'0000000000' || substr(CAST(10000000000000000 + n AS TEXT), 2)";
    let mut first = 1;
    while first <= sessions {
        let last = (first + BATCH - 1).min(sessions);
        let numbers = numbers(first, last);
        let holder = id(&format!("(n * 7919 % {AGENTS} + 1)"));
        let begun = "1600000000000000 + n";
        let mut statements = vec![format!(
            "{numbers} INSERT INTO sessions (id, challenge_id, agent_id, begun_at, begun_revision, expires_at) \
             SELECT 'ses_' || {suffix}, {random}, {holder}, {begun}, 0, {begun} FROM numbers"
        )];
        statements.extend(["0", "1"].map(|generation| {
            format!(
                "{numbers} INSERT INTO refresh_tokens (id, session_id, secret_hash, issued_at, audience, access_expires_at) \
                 SELECT 'ref_{generation}' || substr({suffix}, 2), 'ses_' || {suffix}, {random} || {random}, {begun}, '', \
                 {begun} FROM numbers"
            )
        }));
        for sql in statements {
            execute(database, &sql).await;
        }
        first = last + 1;
    }
    // A database that is in use has statistics.
    execute(database, if is_sqlite { "PRAGMA optimize" } else { "VACUUM ANALYZE" }).await;
}

fn numbers(first: i64, last: i64) -> String {
    format!(
        "WITH RECURSIVE numbers(n) AS (SELECT CAST({first} AS BIGINT) UNION ALL SELECT n + 1 FROM numbers WHERE n < {last})"
    )
}
