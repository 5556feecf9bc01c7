//! Measures how long a revocation takes to reach the sidecars, at several numbers of sync streams.
//!
//! `make bench-propagation` runs it. `propagation 1 100` measures at 1 and at 100 streams. `PROPAGATION_REVOCATIONS` sets the
//! number of revocations at each number of streams (500).
//!
//! All streams belong to one service, so every stream receives every change. At most three of the streams come from real sidecars.
//! The others come from followers: each has a TLS connection of its own, and sends pings as a sidecar does, but keeps no data. All
//! run on this machine and share its cores.
//!
//! A revocation removes the only role of an agent. Checks with the agent's token run against every real sidecar, one per
//! millisecond. Two times are measured, which both begin when the API responds to the revocation: until every real sidecar has
//! refused a check of the agent, and until every follower has received the change. A refusal before the response counts as 0. After
//! each revocation, its receipt is read until it says that the revocation is in force at all streams. The next change begins when
//! every stream has received this one.
//!
//! For each number of streams, a line of JSON goes to standard output:
//!
//! - `p50_ms`, `p99_ms`, `max_ms`: until the last real sidecar refuses, in milliseconds
//! - `followers_p50_ms`, `followers_p99_ms`, `followers_max_ms`: until the last follower has the change; absent without followers
//! - `receipt_p50_ms`, `receipt_p99_ms`, `receipt_max_ms`: the time that the receipt states, from the revocation until the last
//!   stream has reported it
//! - `early_receipts`: how many receipts came too early: a sidecar allowed a check that began after the stated instant; must be 0
//! - `kib_per_stream`: growth of the control plane's resident memory since the first measurement, divided by the streams that
//!   were opened since; absent in the first line

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark prints figures and panics on errors"
)]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "the figures are printed with a few digits"
)]

use countersign_identity::Timestamp;
use countersign_process::{Clock, SystemClock};
use countersign_proto::{
    envoy::service::auth::v3::authorization_client::AuthorizationClient, v1::follow_response::Message as Response,
};
use countersign_tests::{
    Agent, ControlPlane, Sidecar,
    follower::{Follower, PING_INTERVAL, connect},
    quantiles::{quantile, sorted},
    sidecar::{self, check_request},
};
use futures_util::future::join_all;
use serde_json::{Map, Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    runtime::Runtime,
    sync::mpsc,
    time::{interval, sleep},
};
use tonic::transport::Channel;

/// Number of streams that are opened at the same time.
const CONCURRENCY: usize = 16;

/// Maximum number of real sidecars among the streams.
const SIDECARS: usize = 3;

/// Time between two checks of a sidecar.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// What the followers received of the change that is under way.
#[derive(Default)]
struct Arrivals {
    followers: AtomicUsize,
    last_micros: AtomicU64,
}

/// How long one revocation took to reach all streams, in milliseconds after the API responded.
struct Times {
    sidecars: f64,
    followers: f64,
    /// What the receipt states. Only this time is in milliseconds after the revocation itself.
    receipt: f64,
    is_early_receipt: bool,
}

/// The first check of a sidecar with the expected result.
struct FirstCheck {
    /// When the check was answered, since boot.
    answered_at: Duration,
    /// When the last check with another result began.
    last_other_began_at: Timestamp,
}

/// The servers, streams and figures of a measurement.
struct Bench {
    control: ControlPlane,
    sync_key: String,
    agent: Agent,
    role: String,
    token: String,
    sidecars: Vec<(Sidecar, AuthorizationClient<Channel>)>,
    /// The followers have threads of their own, so that the checks do not wait for them.
    follower_threads: Runtime,
    followers: usize,
    arrivals: Arc<Arrivals>,
}

fn main() {
    let arguments: Vec<usize> =
        std::env::args().skip(1).map(|text| text.parse().expect("an argument is a number of streams")).collect();
    let stages = if arguments.is_empty() { vec![1, 100, 1_000, 10_000] } else { arguments };
    let revocations = std::env::var("PROPAGATION_REVOCATIONS");
    let revocations = revocations.map_or(500, |text| text.parse().expect("a number of revocations"));
    let follower_threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let checks = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    checks.block_on(measure(follower_threads, &stages, revocations));
}

async fn measure(follower_threads: Runtime, stages: &[usize], revocations: usize) {
    let mut bench = Bench::start(follower_threads).await;
    let mut first: Option<(usize, usize)> = None;
    for &streams in stages {
        bench.open_streams(streams).await;
        let cpu = bench.control.cpu_time();
        let mut times = Vec::new();
        for _ in 0..revocations {
            times.push(bench.revoke().await);
            bench.assign().await;
        }
        let cpu = bench.control.cpu_time().saturating_sub(cpu) / (2 * revocations as u32);
        eprintln!("{streams} streams: the control plane needs {cpu:?} of CPU for a change and the pings meanwhile");
        let memory = bench.control.resident_memory();
        let mut line = Map::from_iter([("streams".to_owned(), json!(streams))]);
        add_quantiles(&mut line, "", times.iter().map(|times| times.sidecars).collect());
        add_quantiles(&mut line, "receipt_", times.iter().map(|times| times.receipt).collect());
        line.insert("early_receipts".to_owned(), json!(times.iter().filter(|times| times.is_early_receipt).count()));
        if bench.followers > 0 {
            add_quantiles(&mut line, "followers_", times.iter().map(|times| times.followers).collect());
        }
        if let Some((fewer, before)) = first {
            let growth = memory.saturating_sub(before) as f64 / 1024.0 / (streams - fewer) as f64;
            line.insert("kib_per_stream".to_owned(), rounded(growth));
        }
        first.get_or_insert((streams, memory));
        println!("{}", Value::Object(line));
    }
    // Dropping the runtime would panic, because this code runs in another one.
    bench.follower_threads.shutdown_background();
}

impl Bench {
    async fn start(follower_threads: Runtime) -> Self {
        let control = ControlPlane::start_one_with(&["connections.max=100000"]).await;
        let (agent, role) = Agent::with_role(&control, "reader", &["read"]).await;
        let token = agent.token_for(control.service()).await;
        let sync_key = control.create_key(control.service(), "sync").await;
        let (sidecars, followers, arrivals) = (Vec::new(), 0, Arc::default());
        Self { control, sync_key, agent, role, token, sidecars, follower_threads, followers, arrivals }
    }

    /// Opens streams until there are this many.
    async fn open_streams(&mut self, streams: usize) {
        while self.sidecars.len() < streams.min(SIDECARS) {
            let sidecar = Sidecar::start_with(&self.control, &[&self.sync_key], &["sync.ping_seconds=3"]);
            sidecar.wait_until_ready().await;
            let client = sidecar.client().await;
            self.sidecars.push((sidecar, client));
        }
        let missing = streams.saturating_sub(self.sidecars.len() + self.followers);
        let (ready, mut all_ready) = mpsc::channel(1);
        for number in 0..missing.min(CONCURRENCY) {
            let count = (missing - number).div_ceil(CONCURRENCY);
            let (url, authority) = (self.control.env["SYNC_URL"].clone(), self.control.authority());
            let (key, arrivals, ready) = (self.sync_key.clone(), Arc::clone(&self.arrivals), ready.clone());
            self.follower_threads.spawn(async move {
                for _ in 0..count {
                    follow(connect(&url, &authority).await, &key, Arc::clone(&arrivals)).await;
                }
                drop(ready);
            });
        }
        drop(ready);
        let _closed: Option<()> = all_ready.recv().await;
        self.followers += missing;
        // Wait until the new streams have begun to send pings.
        sleep(PING_INTERVAL).await;
    }

    /// Revokes the role, and waits until every stream has the change.
    async fn revoke(&self) -> Times {
        self.arrivals.followers.store(0, Ordering::Relaxed);
        let refusals = join_all(self.sidecars.iter().map(|(_, client)| self.first_check(client, 403)));
        let change = async {
            let path = self.control.path(&format!("/agents/{}/roles/{}", self.agent.id, self.role));
            let revoked = self.control.api.send_as(self.control.key(), "DELETE", &path, json!({})).await.expect(200);
            let responded = SystemClock.since_boot();
            let revision = revoked["revision"].as_i64().unwrap();
            let (receipt, ()) = tokio::join!(self.receipt(revision), self.wait_for_followers());
            (responded, revision, receipt)
        };
        let (refusals, (responded, revision, receipt)) = tokio::join!(refusals, change);
        let milliseconds = |at: Duration| at.saturating_sub(responded).as_secs_f64() * 1000.0;
        let followers = Duration::from_micros(self.arrivals.last_micros.load(Ordering::Relaxed));
        // A revision is the time of its change in microseconds.
        let in_force_at = Timestamp::from_micros(revision).saturating_add(receipt);
        Times {
            sidecars: milliseconds(refusals.iter().map(|check| check.answered_at).max().unwrap_or_default()),
            followers: milliseconds(followers),
            receipt: receipt.as_secs_f64() * 1000.0,
            is_early_receipt: refusals.iter().any(|check| check.last_other_began_at > in_force_at),
        }
    }

    /// Reads the receipt of a revision until the revision is in force at all streams. Returns how long that took, by the receipt.
    async fn receipt(&self, revision: i64) -> Duration {
        let path = self.control.path(&format!("/enforcement?revision={revision}&wait=3"));
        loop {
            let receipt = self.control.api.get_as(self.control.key(), &path).await.expect(200);
            if receipt["enforced"] == true {
                assert_eq!(receipt["sidecars"], self.sidecars.len() + self.followers, "{receipt}");
                return Duration::from_millis(receipt["milliseconds"].as_u64().unwrap());
            }
        }
    }

    /// Assigns the role again, and waits until every stream has the change.
    async fn assign(&self) {
        self.arrivals.followers.store(0, Ordering::Relaxed);
        self.control.assign(&self.agent.id, &self.role).await;
        join_all(self.sidecars.iter().map(|(_, client)| self.first_check(client, 200))).await;
        self.wait_for_followers().await;
    }

    async fn wait_for_followers(&self) {
        while self.arrivals.followers.load(Ordering::Acquire) < self.followers {
            sleep(CHECK_INTERVAL).await;
        }
    }

    /// Sends checks to a sidecar until it answers with the status.
    async fn first_check(&self, client: &AuthorizationClient<Channel>, status: u16) -> FirstCheck {
        let authorization = format!("Bearer {}", self.token);
        let mut client = client.clone();
        let mut last_other_began_at = Timestamp::from_micros(0);
        loop {
            let began_at = SystemClock.now();
            let request = check_request(&[("authorization", &authorization)], &[]);
            if sidecar::check(&mut client, request).await.status == status {
                return FirstCheck { answered_at: SystemClock.since_boot(), last_other_began_at };
            }
            last_other_began_at = began_at;
            sleep(CHECK_INTERVAL).await;
        }
    }
}

/// Opens a stream, and counts and reports the changes that arrive in a background task.
async fn follow(channel: Channel, key: &str, arrivals: Arc<Arrivals>) {
    let mut follower = Follower::open(channel, key, 0).await.unwrap();
    let revision = loop {
        let page = follower.snapshot().await;
        if page.last {
            break page.revision;
        }
    };
    follower.report(revision).await;
    tokio::spawn(async move {
        let mut timer = interval(PING_INTERVAL);
        loop {
            let message = follower.next_with_pings(&mut timer).await.expect("the stream stays open");
            let Response::Delta(delta) = message else { continue };
            follower.report(delta.revision).await;
            if !delta.agents.is_empty() {
                arrivals.last_micros.fetch_max(SystemClock.since_boot().as_micros() as u64, Ordering::Relaxed);
                arrivals.followers.fetch_add(1, Ordering::Release);
            }
        }
    });
}

fn add_quantiles(line: &mut Map<String, Value>, prefix: &str, milliseconds: Vec<f64>) {
    let milliseconds = sorted(milliseconds);
    for (name, part) in [("p50_ms", 0.5), ("p99_ms", 0.99), ("max_ms", 1.0)] {
        line.insert(format!("{prefix}{name}"), rounded(quantile(&milliseconds, part)));
    }
}

fn rounded(value: f64) -> Value {
    json!((value * 100.0).round() / 100.0)
}
