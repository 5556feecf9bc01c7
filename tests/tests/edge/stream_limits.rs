//! The limits of sync streams: of an API key, of the process with its owners, and of invalid API keys.

use countersign_tests::{ControlPlane, Follower, HttpClient, eventually, follower::channel};
use serde_json::json;
use tonic::{Code, transport::Channel};

/// The streams that an API key may have open at the same time.
const STREAMS_PER_KEY: usize = 1000;

/// The streams of one connection.
const STREAMS_PER_CONNECTION: usize = 50;

async fn open(channel: &Channel, key: &str) -> Result<Follower, tonic::Status> {
    Follower::open(channel.clone(), key, 0).await
}

#[tokio::test]
async fn streams_of_a_key_are_limited() {
    // An eighth of the connections would be fewer than the streams that each key may have.
    let control = ControlPlane::start_one_with(&["connections.max=1000"]).await;
    let mut streams = Vec::new();
    for _ in 0..STREAMS_PER_KEY / STREAMS_PER_CONNECTION {
        let channel = channel(&control).await;
        for _ in 0..STREAMS_PER_CONNECTION {
            streams.push(open(&channel, control.key()).await.unwrap());
        }
    }
    let last = channel(&control).await;
    let refusal = open(&last, control.key()).await.err().unwrap();
    assert_eq!(refusal.code(), Code::ResourceExhausted);
    assert!(refusal.message().contains("1000 open streams (connections.max)"), "{}", refusal.message());
    let other = control.create_key(control.service(), "sync").await;
    open(&last, &other).await.unwrap();
    drop(streams);
    let too_often =
        async || open(&last, control.key()).await.err().filter(|status| status.message().contains("too often"));
    let refusal = eventually("the streams have ended", too_often, || control.log()).await;
    assert!(refusal.message().contains("2000 per minute"), "{}", refusal.message());
}

#[tokio::test]
async fn stream_of_another_owner_takes_the_place_of_one_of_the_owner_with_the_most() {
    // A control plane has twice as many streams as the sync port has connections.
    let control = ControlPlane::start_one_with(&["connections.max=2"]).await;
    let channel = channel(&control).await;
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(open(&channel, control.key()).await.unwrap());
    }
    // Another service of the same owner has no share of its own.
    let (_, other_key) = control.create_service(json!({ "name": "Other" })).await;
    let refusal = open(&channel, &other_key).await.err().unwrap();
    assert_eq!(refusal.code(), Code::ResourceExhausted);
    assert!(refusal.message().contains("4 open streams, 4 of them of this owner"), "{}", refusal.message());
    let refused = "countersign_sync_streams_refused_total{limit=\"process\"} 1\n";
    let metrics = HttpClient::plain(control.env["ADMIN_URL"].clone()).get("/metrics").await.body;
    assert!(metrics.as_str().unwrap().contains(refused), "{metrics}");
    assert!(control.log().contains("sync stream refused: the control plane has 4 open streams"), "{}", control.log());

    let (_, key) = control.create_service_of(&control.mint_human("bob"), json!({ "name": "Bob's" })).await;
    let mut of_bob = Vec::new();
    for _ in 0..2 {
        of_bob.push(open(&channel, &key).await.unwrap());
        let ended = end_of(streams.pop().unwrap()).await;
        assert_eq!(ended.code(), Code::ResourceExhausted);
        assert!(ended.message().contains("more than their share"), "{}", ended.message());
    }
    // Each owner has two streams, so neither can displace the other.
    assert_eq!(open(&channel, control.key()).await.err().unwrap().code(), Code::ResourceExhausted);
    assert_eq!(open(&channel, &key).await.err().unwrap().code(), Code::ResourceExhausted);
    for stream in &mut of_bob {
        stream.snapshot().await;
    }
}

#[tokio::test]
async fn invalid_keys_of_streams_count_for_the_client_address_as_those_of_the_api_do() {
    let control = ControlPlane::start_one_with(&["limits.address_per_minute=3"]).await;
    let key = control.key();
    let (start, last) = key.split_at(key.len() - 1);
    let wrong = format!("{start}{}", if last == "0" { "1" } else { "0" });
    let open = async |key: &str| Follower::start(&control, key, 0).await;
    for _ in 0..3 {
        assert_eq!(open(&wrong).await.err().unwrap().code(), Code::Unauthenticated);
    }
    let response = control.api.get_as(&wrong, "/status").await;
    assert_eq!(response.error(), (429, "RATE_LIMIT_EXCEEDED", ""), "{}", response.body);
    assert_eq!(response.text("/error/details/category"), "failures");
    // Beyond the limit, a wrong API key is still reported as such, and a valid one is accepted.
    assert_eq!(open(&wrong).await.err().unwrap().code(), Code::Unauthenticated);
    open(key).await.unwrap().snapshot().await;
    control.api.get_as(key, "/status").await.expect(200);
}

/// The status with which a stream ends.
async fn end_of(mut stream: Follower) -> tonic::Status {
    loop {
        if let Err(status) = stream.next().await {
            return status;
        }
    }
}
