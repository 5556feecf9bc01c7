//! Measures how changes reach many sync streams.
//!
//! `cargo run --release -p countersign-tests --example sync_streams -- 10000 100 1000 30` opens 10,000 streams, one per
//! service, each over its own TLS connection with a ping every 3 s. Then it makes 1,000 role changes per second at 100 of these
//! services for 30 s through the API. It prints the time from a change's revision (the time of its transaction) to its arrival,
//! and what the other streams received.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark prints figures and panics on errors"
)]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "the figures are printed with a few digits"
)]

use countersign_process::{Clock, SystemClock};
use countersign_proto::v1::{
    FollowRequest, FollowResponse, Ping, follow_request::Message as Request, follow_response::Message as Response,
    sync_client::SyncClient,
};
use countersign_tests::{
    Agent, ControlPlane, HttpClient,
    follower::{channel, follow_request, hello},
};
use futures_util::{StreamExt, stream};
use prost::Message as _;
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval, sleep},
};
use tokio_stream::wrappers::ReceiverStream;

/// The default interval of a sidecar.
const PING_INTERVAL: Duration = Duration::from_secs(3);

/// Concurrent requests that create services, open streams or make changes.
const CONCURRENCY: usize = 32;

/// What one stream received.
#[derive(Default)]
struct StreamCounters {
    changes: AtomicU64,
    change_bytes: AtomicU64,
    pongs: AtomicU64,
    pong_bytes: AtomicU64,
    ended: AtomicU64,
}

impl StreamCounters {
    fn values(&self) -> [u64; 5] {
        [&self.changes, &self.change_bytes, &self.pongs, &self.pong_bytes, &self.ended]
            .map(|counter| counter.load(Ordering::Relaxed))
    }
}

type AllCounters = Arc<Vec<StreamCounters>>;

/// A service that changes are made at.
struct BusyService {
    key: String,
    path: String,
    role: String,
}

fn argument(number: usize, default: usize) -> usize {
    std::env::args().nth(number).map_or(default, |text| text.parse().expect("the arguments are numbers"))
}

#[tokio::main]
async fn main() {
    let (streams, busy) = (argument(1, 10_000), argument(2, 100));
    let (rate, seconds) = (argument(3, 1000), argument(4, 30));
    let control =
        ControlPlane::start_process_with(&["quotas.services_per_person=1000000", "connections.max=100000"]).await;
    let services: Vec<(String, String)> = stream::iter(0..streams)
        .map(|number| control.create_service(json!({ "name": format!("service {number}") })))
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await;
    let (latencies, mut arrivals) = mpsc::unbounded_channel();
    let counters: AllCounters = Arc::new((0..streams).map(|_| StreamCounters::default()).collect());
    stream::iter(services.iter().enumerate())
        .map(|(number, (_, key))| follow(&control, key, (number, Arc::clone(&counters)), latencies.clone()))
        .buffer_unordered(CONCURRENCY)
        .count()
        .await;
    println!("{streams} streams are open");

    let busy_services = prepare(&control, &services[..busy]).await;
    sleep(PING_INTERVAL * 2).await;
    while arrivals.try_recv().is_ok() {}
    let before: Vec<_> = counters.iter().map(StreamCounters::values).collect();
    make_changes(&control.api, &busy_services, rate, seconds).await;
    sleep(Duration::from_secs(2)).await;
    report_latencies(std::iter::from_fn(|| arrivals.try_recv().ok()).collect());
    let received: Vec<[u64; 5]> = counters
        .iter()
        .zip(before)
        .map(|(now, before)| std::array::from_fn(|index| now.values()[index] - before[index]))
        .collect();
    report_streams("with changes", &received[..busy]);
    report_streams("without changes", &received[busy..]);
}

fn report_latencies(mut micros: Vec<i64>) {
    micros.sort_unstable();
    let quantile = |part: f64| micros[((micros.len() - 1) as f64 * part) as usize] as f64 / 1000.0;
    let [median, p99, p999, max] = [0.5, 0.99, 0.999, 1.0].map(quantile);
    println!("{} changes arrived", micros.len());
    println!("from revision to arrival: p50 {median:.1} ms, p99 {p99:.1} ms, p99.9 {p999:.1} ms, max {max:.1} ms");
}

fn report_streams(name: &str, streams: &[[u64; 5]]) {
    let sum = |index: usize| streams.iter().map(|stream| stream[index]).sum::<u64>();
    let (changes, change_bytes, pongs, pong_bytes, ended) = (sum(0), sum(1), sum(2), sum(3), sum(4));
    println!(
        "{} streams {name}: {changes} changes with {change_bytes} bytes, {pongs} pongs with {pong_bytes} bytes, {ended} ended",
        streams.len()
    );
}

/// Opens a stream as a sidecar does, and counts what arrives in a background task.
async fn follow(
    control: &ControlPlane,
    key: &str,
    (number, counters): (usize, AllCounters),
    latencies: mpsc::UnboundedSender<i64>,
) {
    let (requests, request_stream) = mpsc::channel(8);
    requests.send(follow_request(Request::Hello(hello(0)))).await.unwrap();
    let mut request = tonic::Request::new(ReceiverStream::new(request_stream));
    request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    let mut responses = SyncClient::new(channel(control).await).follow(request).await.unwrap().into_inner();
    let first = responses.message().await.unwrap().unwrap();
    assert!(matches!(first.message, Some(Response::Snapshot(_))));
    tokio::spawn(ping(requests));
    tokio::spawn(async move {
        let counters = &counters[number];
        while let Ok(Some(response)) = responses.message().await {
            count(counters, &response, &latencies);
        }
        counters.ended.fetch_add(1, Ordering::Relaxed);
    });
}

async fn ping(requests: mpsc::Sender<FollowRequest>) {
    let mut timer = interval(PING_INTERVAL);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 1.. {
        timer.tick().await;
        if requests.send(follow_request(Request::Ping(Ping { number }))).await.is_err() {
            return;
        }
    }
}

fn count(counters: &StreamCounters, response: &FollowResponse, latencies: &mpsc::UnboundedSender<i64>) {
    let bytes = response.encoded_len() as u64;
    match &response.message {
        Some(Response::Pong(_)) => {
            counters.pongs.fetch_add(1, Ordering::Relaxed);
            counters.pong_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        Some(Response::Delta(delta)) => {
            counters.changes.fetch_add(1, Ordering::Relaxed);
            counters.change_bytes.fetch_add(bytes, Ordering::Relaxed);
            for facet in delta.agents.iter().filter_map(|agent| agent.roles.as_ref()) {
                latencies.send(SystemClock.now().micros() - facet.revision).unwrap();
            }
        }
        _ => panic!("unexpected {response:?}"),
    }
}

/// Creates a role and an agent for each busy service.
async fn prepare(control: &ControlPlane, services: &[(String, String)]) -> Vec<BusyService> {
    let mut prepared = Vec::new();
    for (service, key) in services {
        let body = json!({ "name": "reader", "description": "", "permissions": ["read"] });
        let created = control.api.send_as(key, "POST", &format!("/services/{service}/roles"), body).await.expect(201);
        let agent = Agent::register(control, "agent").await;
        let path = format!("/services/{service}/agents/{}/roles", agent.id);
        prepared.push(BusyService { key: key.clone(), path, role: created["roleId"].as_str().unwrap().to_owned() });
    }
    prepared
}

/// Makes changes at the rate, or as fast as the API allows: each agent gets the role and loses it in turn.
async fn make_changes(api: &HttpClient, services: &[BusyService], rate: usize, seconds: usize) {
    let started = SystemClock.since_boot();
    let made = stream::iter(0..rate * seconds)
        .map(|number| async move {
            let due = Duration::from_secs_f64(number as f64 / rate as f64);
            sleep((started + due).saturating_sub(SystemClock.since_boot())).await;
            let BusyService { key, path, role } = &services[number % services.len()];
            if (number / services.len()).is_multiple_of(2) {
                api.send_as(key, "POST", path, json!({ "roleId": role })).await.expect(200);
            } else {
                api.send_as(key, "DELETE", &format!("{path}/{role}"), json!({})).await.expect(200);
            }
        })
        .buffer_unordered(CONCURRENCY)
        .count()
        .await;
    let elapsed = SystemClock.since_boot().saturating_sub(started).as_secs_f64();
    println!("{made} changes in {elapsed:.1} s: {:.0} per second", made as f64 / elapsed);
}
