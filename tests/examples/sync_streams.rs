//! Measures how changes reach many sync streams: `cargo run --release -p countersign-tests --example sync_streams -- 10000 100 1000 30`
//! opens 10,000 streams, one per service, each over its own TLS connection with a ping every 3 s. Then it makes 1,000 role
//! changes per second at 100 of these services for 30 s through the API. It prints the time from a change's revision (the time
//! of its transaction) to its arrival, and the bytes that the other streams received.

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
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval_at, sleep},
};
use tokio_stream::wrappers::ReceiverStream;

/// The default interval of a sidecar.
const PING_INTERVAL: Duration = Duration::from_secs(3);

/// Concurrent requests that create services, open streams or make changes.
const CONCURRENCY: usize = 32;

/// What one stream received.
#[derive(Default)]
struct Received {
    changes: AtomicU64,
    change_bytes: AtomicU64,
    pongs: AtomicU64,
    pong_bytes: AtomicU64,
    ended: AtomicU64,
}

/// A service that changes are made at.
struct Busy {
    key: String,
    path: String,
    role: String,
}

fn micros_since_epoch() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn argument(number: usize, default: usize) -> usize {
    std::env::args().nth(number).map_or(default, |text| text.parse().expect("the arguments are numbers"))
}

#[tokio::main]
async fn main() {
    let (streams, busy, rate, seconds) = (argument(1, 10_000), argument(2, 100), argument(3, 1000), argument(4, 30));
    let control = Arc::new(ControlPlane::start_with(&["quotas.services_per_person=1000000"]).await);
    let (latencies, mut arrivals) = mpsc::unbounded_channel();
    let received: Arc<Vec<Received>> = Arc::new((0..streams).map(|_| Received::default()).collect());

    let started = Instant::now();
    let services: Vec<_> = stream::iter(0..streams)
        .map(|number| {
            let control = Arc::clone(&control);
            async move { control.create_service(json!({ "name": format!("service {number}") })).await }
        })
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await;
    println!("{streams} services created in {:?}", started.elapsed());
    let started = Instant::now();
    stream::iter(services.iter().enumerate())
        .map(|(number, (_, key))| {
            let (control, key) = (Arc::clone(&control), key.clone());
            let (received, latencies) = (Arc::clone(&received), latencies.clone());
            async move { follow(&control, &key, number, received, latencies).await }
        })
        .buffer_unordered(CONCURRENCY)
        .collect::<Vec<()>>()
        .await;
    println!("{streams} streams opened in {:?}", started.elapsed());

    let busy_services: Arc<Vec<Busy>> = Arc::new(prepare(&control, &services[..busy]).await);
    sleep(PING_INTERVAL * 2).await;
    while arrivals.try_recv().is_ok() {}
    let counters = |count: &dyn Fn(&Received) -> &AtomicU64| -> Vec<u64> {
        received.iter().map(|stream| count(stream).load(Ordering::Relaxed)).collect()
    };
    let before = (counters(&|stream| &stream.changes), counters(&|stream| &stream.change_bytes));
    let pongs_before = (counters(&|stream| &stream.pongs), counters(&|stream| &stream.pong_bytes));
    let (made, elapsed) = make_changes(&control.api, &busy_services, rate, seconds).await;
    sleep(Duration::from_secs(2)).await;
    println!("{made} changes in {elapsed:?}: {:.0} per second", made as f64 / elapsed.as_secs_f64());

    let mut sorted: Vec<i64> = std::iter::from_fn(|| arrivals.try_recv().ok()).collect();
    sorted.sort_unstable();
    let quantile = |part: f64| sorted[((sorted.len() - 1) as f64 * part) as usize] as f64 / 1000.0;
    println!(
        "{} arrivals; from revision to arrival: p50 {:.1} ms, p99 {:.1} ms, p99.9 {:.1} ms, max {:.1} ms",
        sorted.len(),
        quantile(0.5),
        quantile(0.99),
        quantile(0.999),
        quantile(1.0)
    );
    let delta = |now: Vec<u64>, before: &[u64]| -> Vec<u64> {
        now.iter().zip(before).map(|(now, before)| now - before).collect()
    };
    let changes = delta(counters(&|stream| &stream.changes), &before.0);
    let bytes = delta(counters(&|stream| &stream.change_bytes), &before.1);
    println!("streams that ended: {}", counters(&|stream| &stream.ended).iter().sum::<u64>());
    let pongs = delta(counters(&|stream| &stream.pongs), &pongs_before.0);
    let pong_bytes = delta(counters(&|stream| &stream.pong_bytes), &pongs_before.1);
    let sum = |values: &[u64]| values.iter().sum::<u64>();
    println!(
        "streams with changes: {busy}, {} messages, {} bytes; other streams: {}, {} messages, {} bytes",
        sum(&changes[..busy]),
        sum(&bytes[..busy]),
        streams - busy,
        sum(&changes[busy..]),
        sum(&bytes[busy..])
    );
    println!(
        "pongs per stream: {} to {}; bytes of pongs per stream: {} to {}",
        pongs.iter().min().unwrap(),
        pongs.iter().max().unwrap(),
        pong_bytes.iter().min().unwrap(),
        pong_bytes.iter().max().unwrap()
    );
}

/// Opens a stream as a sidecar does, and counts what arrives in a background task.
async fn follow(
    control: &ControlPlane,
    key: &str,
    number: usize,
    received: Arc<Vec<Received>>,
    latencies: mpsc::UnboundedSender<i64>,
) {
    let (requests, receiver) = mpsc::channel(8);
    requests.send(follow_request(Request::Hello(hello(0)))).await.unwrap();
    let mut request = tonic::Request::new(ReceiverStream::new(receiver));
    request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    let mut responses = SyncClient::new(channel(control).await).follow(request).await.unwrap().into_inner();
    let first = responses.message().await.unwrap().unwrap();
    assert!(matches!(first.message, Some(Response::Snapshot(_))));
    tokio::spawn(ping(requests));
    tokio::spawn(async move {
        while let Ok(Some(response)) = responses.message().await {
            count(&received[number], &response, &latencies);
        }
        received[number].ended.fetch_add(1, Ordering::Relaxed);
    });
}

async fn ping(requests: mpsc::Sender<FollowRequest>) {
    let mut timer = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 1.. {
        timer.tick().await;
        if requests.send(follow_request(Request::Ping(Ping { number }))).await.is_err() {
            return;
        }
    }
}

fn count(stream: &Received, response: &FollowResponse, latencies: &mpsc::UnboundedSender<i64>) {
    let bytes = response.encoded_len() as u64;
    match &response.message {
        Some(Response::Pong(_)) => {
            stream.pongs.fetch_add(1, Ordering::Relaxed);
            stream.pong_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        Some(Response::Delta(delta)) => {
            stream.changes.fetch_add(1, Ordering::Relaxed);
            stream.change_bytes.fetch_add(bytes, Ordering::Relaxed);
            let now = micros_since_epoch();
            for facet in delta.agents.iter().filter_map(|agent| agent.roles.as_ref()) {
                latencies.send(now - facet.revision).unwrap();
            }
        }
        _ => panic!("unexpected {response:?}"),
    }
}

/// Creates a role and an agent for each busy service.
async fn prepare(control: &ControlPlane, services: &[(String, String)]) -> Vec<Busy> {
    let mut prepared = Vec::new();
    for (service, key) in services {
        let body = json!({ "name": "reader", "description": "", "permissions": ["read"] });
        let created = control.api.send_as(key, "POST", &format!("/services/{service}/roles"), body).await.expect(201);
        let agent = Agent::register(control, "agent").await;
        let path = format!("/services/{service}/agents/{}/roles", agent.id);
        prepared.push(Busy { key: key.clone(), path, role: text(&created["roleId"]) });
    }
    prepared
}

/// Makes changes at the rate, or as fast as the API allows. Returns their number and the time.
async fn make_changes(api: &HttpClient, busy: &Arc<Vec<Busy>>, rate: usize, seconds: usize) -> (usize, Duration) {
    let (started, total) = (Instant::now(), rate * seconds);
    let made = stream::iter(0..total)
        .map(|number| {
            let (service, due) = (&busy[number % busy.len()], Duration::from_secs(1) * number as u32 / rate as u32);
            async move {
                tokio::time::sleep_until(started + due).await;
                if number / busy.len() % 2 == 0 {
                    api.send_as(&service.key, "POST", &service.path, json!({ "roleId": service.role }))
                        .await
                        .expect(200);
                } else {
                    let path = format!("{}/{}", service.path, service.role);
                    api.send_as(&service.key, "DELETE", &path, json!({})).await.expect(200);
                }
            }
        })
        .buffer_unordered(CONCURRENCY)
        .count();
    let deadline = Duration::from_secs(10 * seconds as u64);
    (tokio::time::timeout(deadline, made).await.expect("the API keeps up"), started.elapsed())
}
