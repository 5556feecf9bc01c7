//! Measures a control plane whose database contains a backlog: expired logins, which housekeeping deletes, changed agents,
//! which each new sidecar reads, and the agents that hold a role, which is deleted.
//!
//! `cargo run --release -p countersign-tests --example backlog -- 10000000 1000000 1000000` uses an SQLite database. Further
//! arguments are settings of the control plane: `database.url=URL` selects an empty PostgreSQL database. Build the servers first,
//! with the same profile: `cargo build --release --workspace --bins`. With `BENCH_CHECK`, all times are so short that the figures
//! mean nothing.
//!
//! First, clients log agents in and verify tokens without a backlog. Then the control plane stops, this program inserts the
//! backlog, and the control plane starts again, with the same clients. Two sidecars start: the first after ten seconds, the second
//! when the control plane no longer keeps the snapshot of the first. Requests in the first seconds after a start of the control
//! plane do not count.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints figures and panics on errors")]
#![expect(clippy::cast_precision_loss, reason = "the figures are printed with a few digits")]

use countersign_process::{Clock, SystemClock};
use countersign_tests::{
    Agent, ControlPlane, Sidecar,
    bulk::{BulkInserts, batches, numbers},
    http::HttpClient,
    quantiles::{quantile, sorted},
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{task::JoinHandle, time::sleep};

/// Number of agents whose logins have expired, and number of clients that log agents in.
const AGENTS: i64 = 10_000;
const CLIENTS: usize = 4;

/// Number of agents that a client logs in, one after the other. A login reads the live sessions of its agent, so it would become
/// slower if one agent logged in for an hour.
const AGENTS_PER_CLIENT: usize = 200;

/// How often a token is verified until the client gets a new one. These verifications take some minutes.
const VERIFICATIONS_PER_TOKEN: u64 = 10_000;

/// Pause of each client between two requests of the same kind.
const PAUSE: Duration = Duration::from_millis(20);

/// Time after a start of the control plane until requests are measured.
const WARM_UP: Duration = Duration::from_secs(5);

/// For how long requests are measured without a backlog. With only 30 seconds, the p99 differed by a quarter between runs.
const USUAL_TIME: Duration = Duration::from_mins(3);

/// Interval of the output.
const INTERVAL: Duration = Duration::from_secs(30);

/// Time before the start of the first sidecar, and between the starts of both.
const SIDECAR_PAUSE: Duration = Duration::from_secs(10);

/// In a check (`BENCH_CHECK`), no time above is longer than this one.
const CHECK_TIME: Duration = Duration::from_secs(1);

/// The time of the first expired login, in microseconds since 1970: September 2020.
const LOGGED_IN_AT: i64 = 1_600_000_000_000_000;

/// Latencies of requests in milliseconds, or the errors of failed requests.
type Latencies = Arc<Mutex<Vec<Result<f64, String>>>>;

/// For how long this program waits or measures: `full`, or less in a check (`BENCH_CHECK`).
fn time(full: Duration) -> Duration {
    if std::env::var_os("BENCH_CHECK").is_some() { full.min(CHECK_TIME) } else { full }
}

/// The requests that all clients have sent since the last report.
#[derive(Clone, Default)]
struct Load {
    logins: Latencies,
    verifications: Latencies,
}

impl Load {
    fn start(&self, control: &ControlPlane, agents: &Arc<[Agent]>) -> [JoinHandle<()>; 2] {
        let (api, service, key) = (control.api.clone(), control.service().to_owned(), control.key().to_owned());
        let verify = verify(api, service, key, Arc::clone(agents), self.verifications.clone());
        [tokio::spawn(log_in(Arc::clone(agents), self.logins.clone())), tokio::spawn(verify)]
    }

    /// Waits for the first seconds after a start of the control plane, and drops the latencies of the requests in this time.
    async fn warm_up(&self) {
        sleep(time(WARM_UP)).await;
        for latencies in [&self.logins, &self.verifications] {
            latencies.lock().unwrap().clear();
        }
    }

    /// Prints the latencies of the requests since the last call of this function.
    fn report(&self) -> [Quantiles; 2] {
        let [logins, verifications] = [&self.logins, &self.verifications].map(Quantiles::take);
        println!("  logins:        {logins}\n  verifications: {verifications}");
        [logins, verifications]
    }
}

/// Verifies a token of the first agent, again and again.
async fn verify(api: HttpClient, service: String, key: String, agents: Arc<[Agent]>, latencies: Latencies) {
    let (path, mut token) = (format!("/services/{service}/verify"), String::new());
    for number in 0_u64.. {
        // A token is valid for an hour, so get a new one in time.
        if number % VERIFICATIONS_PER_TOKEN == 0 {
            token = format!("Bearer {}", agents[0].token_for(&service).await);
        }
        let request = api.request("GET", &path).bearer_auth(&key);
        let started = SystemClock.since_boot();
        let response = request.header("x-agent-token", &token).send().await;
        record(&latencies, started, response.and_then(reqwest::Response::error_for_status)).await;
    }
}

/// Logs agents in, one after the other, again and again.
async fn log_in(agents: Arc<[Agent]>, latencies: Latencies) {
    for agent in agents.iter().cycle() {
        let started = SystemClock.since_boot();
        record(&latencies, started, agent.api().login(&agent.key, &agent.id, None).await).await;
    }
}

/// Records the latency of a request, or its error, and pauses.
async fn record<T>(latencies: &Latencies, started: Duration, result: Result<T, impl ToString>) {
    let result = result.map(|_| seconds_since(started) * 1000.0).map_err(|error| error.to_string());
    latencies.lock().unwrap().push(result);
    sleep(PAUSE).await;
}

/// Figures of one kind of request, in milliseconds.
struct Quantiles {
    /// All latencies, in ascending order.
    millis: Vec<f64>,
    median: f64,
    p99: f64,
    max: f64,
    failed: usize,
    first_error: String,
}

impl Quantiles {
    fn take(latencies: &Latencies) -> Self {
        let results = std::mem::take(&mut *latencies.lock().unwrap());
        let first_error = results.iter().find_map(|result| result.clone().err()).unwrap_or_default();
        let millis = sorted(results.iter().filter_map(|result| result.clone().ok()).collect());
        let [median, p99, max] = [0.5, 0.99, 1.0].map(|part| quantile(&millis, part));
        Self { median, p99, max, failed: results.len() - millis.len(), first_error, millis }
    }
}

impl std::fmt::Display for Quantiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { millis, median, p99, max, failed, first_error } = self;
        let count = millis.len();
        write!(f, "{count}, p50 {median:.1} ms, p99 {p99:.1} ms, max {max:.1} ms, {failed} failed {first_error}")
    }
}

#[tokio::main]
async fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let number = |position: usize| arguments.get(position).map_or(100_000, |count| count.parse::<i64>().unwrap());
    let (logins, changed, holders) = (number(0), number(1), number(2));
    let settings: Vec<_> = arguments.iter().skip(3).map(String::as_str).collect();
    let mut control = ControlPlane::start_one_with(&settings).await;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut agents = Vec::new();
        for _ in 0..AGENTS_PER_CLIENT {
            agents.push(Agent::register(&control, "Client").await);
        }
        clients.push(Arc::from(agents));
    }
    let start = |load: &Load, control: &ControlPlane| -> Vec<_> {
        clients.iter().flat_map(|agents| load.start(control, agents)).collect()
    };
    let role = control.create_role("deleted", &["read"]).await;
    let sync_key = control.create_key(control.service(), "sync").await;
    let load = Load::default();
    let tasks = start(&load, &control);
    load.warm_up().await;
    sleep(time(USUAL_TIME)).await;
    println!("without a backlog:");
    let usual = load.report();
    tasks.iter().for_each(JoinHandle::abort);
    control.kill();

    let started = SystemClock.since_boot();
    let mut inserts = BulkInserts::connect(&control.database_url(), &clients[0][0].id).await;
    inserts.prepare().await;
    insert_expired_logins(&mut inserts, logins).await;
    let numbers_of_changed = (AGENTS + 1, AGENTS + changed);
    inserts.agents(numbers_of_changed, "suspended").await;
    inserts.changes(numbers_of_changed, "status", control.service()).await;
    inserts.agents((AGENTS + changed + 1, holders), "active").await;
    inserts.assignments((1, holders), control.service(), std::slice::from_ref(&role)).await;
    inserts.checkpoint().await;
    let elapsed = seconds_since(started);
    println!("{logins} logins, {changed} changed agents and {holders} holders of a role inserted in {elapsed:.0} s");

    control.restart().await;
    let _tasks = start(&load, &control);
    load.warm_up().await;
    let sidecars = start_sidecars(&control, &sync_key);
    let ((), p99s) = tokio::join!(sidecars, wait_until_deleted(&mut inserts, Backlog::Logins(logins), &load));
    compare(&p99s, &usual);

    load.report();
    let started = SystemClock.since_boot();
    control.delete_role(&role).await.expect(200);
    println!("the role is deleted after {:.1} ms", seconds_since(started) * 1000.0);
    let p99s = wait_until_deleted(&mut inserts, Backlog::Holders, &load).await;
    compare(&p99s, &usual);
}

/// Prints the p99 of each kind of request, divided by its p99 without a backlog.
fn compare(p99s: &[[f64; 2]; 2], usual: &[Quantiles; 2]) {
    println!("p99 divided by the usual p99:");
    for (kind, name) in ["logins", "verifications"].into_iter().enumerate() {
        let [whole, worst] = p99s[kind].map(|p99| p99 / usual[kind].p99);
        println!("  {name}: {whole:.2} over the whole time, {worst:.2} in the worst interval");
    }
}

/// Rows that the control plane deletes.
#[derive(Clone, Copy)]
enum Backlog {
    /// This number of expired logins, each a session and a refresh token.
    Logins(i64),
    /// The assignments of a deleted role.
    Holders,
}

impl Backlog {
    /// The number of rows that the control plane has not deleted yet.
    async fn count(self, inserts: &mut BulkInserts<'_>) -> i64 {
        let sql = match self {
            // Sessions are deleted in the order of their expiry, and one expires each microsecond. So the expiry of the oldest one
            // tells how many are left.
            Self::Logins(_) => "SELECT CAST(MIN(expires_at) AS BIGINT) FROM sessions",
            Self::Holders => "SELECT CAST(COUNT(*) AS BIGINT) FROM assignments",
        };
        let number: i64 = sqlx::query_scalar(sql).fetch_one(&mut inserts.database).await.unwrap();
        match self {
            Self::Logins(logins) => 2 * (LOGGED_IN_AT + logins - number + 1).max(0),
            Self::Holders => number,
        }
    }
}

/// Starts two sidecars: the first after ten seconds, the second when the control plane no longer keeps the snapshot of the first.
async fn start_sidecars(control: &ControlPlane, key: &str) {
    for _ in 0..2 {
        sleep(time(SIDECAR_PAUSE)).await;
        let started = SystemClock.since_boot();
        let sidecar = Sidecar::start_with(control, &[key], &[]);
        while !sidecar.admin.request("GET", "/readyz").send().await.is_ok_and(|response| response.status() == 200) {
            sleep(Duration::from_millis(50)).await;
        }
        println!("a new sidecar has its view after {:.1} s", seconds_since(started));
    }
}

/// Waits until the control plane has deleted all rows. Returns the p99 of each kind of request, and its largest p99 in an interval.
async fn wait_until_deleted(database: &mut BulkInserts<'_>, backlog: Backlog, load: &Load) -> [[f64; 2]; 2] {
    let started = SystemClock.since_boot();
    let rows = backlog.count(database).await;
    let (mut left, mut all, mut worst) = (rows, [vec![], vec![]], [0.0_f64; 2]);
    while left > 0 {
        sleep(time(INTERVAL)).await;
        let before = left;
        left = backlog.count(database).await;
        let rate = (before - left) as f64 / time(INTERVAL).as_secs_f64();
        println!("{:.0} s: {left} rows left, {rate:.0} rows/s", seconds_since(started));
        for (kind, current) in load.report().into_iter().enumerate() {
            worst[kind] = worst[kind].max(current.p99);
            all[kind].extend(current.millis);
        }
    }
    let elapsed = seconds_since(started);
    println!("{rows} rows in {elapsed:.0} s: {:.0} rows/s", rows as f64 / elapsed);
    let [logins, verifications] = all.map(|millis| quantile(&sorted(millis), 0.99));
    [[logins, worst[0]], [verifications, worst[1]]]
}

fn seconds_since(started: Duration) -> f64 {
    SystemClock.since_boot().saturating_sub(started).as_secs_f64()
}

/// Inserts logins that expired in 2020, of random agents. The ids of sessions, tokens and challenges ascend with the time, like the
/// ids that the control plane generates.
async fn insert_expired_logins(inserts: &mut BulkInserts<'_>, logins: i64) {
    let random = if inserts.is_sqlite() { "lower(hex(randomblob(16)))" } else { "md5(CAST(random() AS TEXT) || n)" };
    inserts.agents((1, AGENTS), "active").await;
    let suffix = "'0000000000' || substr(CAST(10000000000000000 + n AS TEXT), 2)";
    let holder = inserts.agent_id(&format!("(n * 7919 % {AGENTS} + 1)"));
    let begun = format!("{LOGGED_IN_AT} + n");
    for (first, last) in batches(1, logins) {
        let numbers = numbers(first, last);
        let sql = format!(
            "{numbers} INSERT INTO sessions (id, challenge_id, agent_id, started_at, started_revision, expires_at, audiences, \
             refresh_common_hash, refresh_hash) SELECT 'ses_' || {suffix}, {suffix}, {holder}, {begun}, 0, {begun}, '', \
             {random} || {random}, {random} || {random} FROM numbers"
        );
        inserts.execute(&sql).await;
    }
    inserts.analyze().await;
}
