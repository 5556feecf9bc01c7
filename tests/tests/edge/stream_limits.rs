//! Tests how many sync streams an owner and a process may have, and how often a client may present invalid API keys.

use countersign_tests::{ControlPlane, Follower, eventually, follower::channel};
use serde_json::json;
use tonic::{Code, transport::Channel};

async fn open(channel: &Channel, key: &str) -> Result<Follower, tonic::Status> {
    Follower::open(channel.clone(), key, 0).await
}

/// The message of a refusal because of a limit.
async fn refusal(channel: &Channel, key: &str) -> String {
    let Err(refusal) = open(channel, key).await else { panic!("the stream must be refused") };
    assert_eq!(refusal.code(), Code::ResourceExhausted);
    refusal.message().to_owned()
}

#[tokio::test]
async fn owner_has_a_part_of_the_streams() {
    // With 2 connections, a control plane accepts 4 streams, and each owner may have a quarter of them.
    let control = ControlPlane::start_one_with(&["connections.max=2"]).await;
    let channel = channel(&control).await;
    let mut stream = open(&channel, control.key()).await.unwrap();
    // A second service of the same owner shares the owner's quota of streams.
    let (_, other_key) = control.create_service(json!({ "name": "Other" })).await;
    let message = refusal(&channel, &other_key).await;
    assert_eq!(message, "the owner of the service already has 1 open streams (connections.max)");
    assert_eq!(control.metric(r#"countersign_sync_streams_refused_total{limit="owner"}"#).await, Some(1.0));

    let mut of_others = Vec::new();
    for owner in ["bob", "carol", "dave"] {
        let (_, key) = control.create_service_of(&control.mint_human(owner), json!({ "name": owner })).await;
        of_others.push(open(&channel, &key).await.unwrap());
    }
    let (_, key) = control.create_service_of(&control.mint_human("erin"), json!({ "name": "Erin's" })).await;
    assert_eq!(refusal(&channel, &key).await, "the control plane already has 4 open streams (connections.max)");
    for open in of_others.iter_mut().chain([&mut stream]) {
        open.snapshot().await;
    }
    drop(stream);
    let opened = async || open(&channel, &key).await.ok();
    eventually("the place is free", opened, || control.log()).await.snapshot().await;
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
    // Even beyond the limit, the answer to a wrong API key is that it is wrong, and a valid key is accepted.
    assert_eq!(open(&wrong).await.err().unwrap().code(), Code::Unauthenticated);
    open(key).await.unwrap().snapshot().await;
    control.api.get_as(key, "/status").await.expect(200);
}
