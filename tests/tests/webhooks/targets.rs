//! Tests of the operations on a target: pause, resume, test, replay, change and delete.

use countersign_process::{Clock, SystemClock};
use countersign_tests::{
    ControlPlane, EventSource, Receiver, Reply, StandardWebhooks, Target, eventually, target::start_with_retries,
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};

#[tokio::test]
async fn paused_target_gets_its_events_when_it_is_resumed() {
    let mut control = ControlPlane::start_process().await;
    let (target, receiver) = Target::with_receiver(&control, Reply::Status(200)).await;
    target.pause().await;
    EventSource::new(&control).await.cause_events(6).await;
    let test = target.send_test_event().await;
    let first = receiver.wait_for_requests(1).await.remove(0);
    assert_eq!(first.id(), test, "a paused target gets test events");
    target.wait_until_count("pending", 6).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((receiver.count(), target.count_deliveries("pending").await), (1, 6));
    control.restart().await;
    assert_eq!(target.read().await["status"], "paused");
    target.resume().await;
    let requests = receiver.wait_for_requests(7).await;
    StandardWebhooks::start().assert_signatures(&target.secret, &requests);
    assert_eq!(receiver.events(), 7);
    target.wait_until_count("pending", 0).await;
    assert_eq!(target.count_deliveries("delivered").await, 7);
}

#[tokio::test]
async fn pause_also_stops_events_that_were_read_from_the_queue() {
    let control = ControlPlane::start().await;
    let (target, receiver) =
        Target::with_receiver(&control, Reply::Delayed(Duration::from_millis(300), Box::new(Reply::Status(200)))).await;
    EventSource::new(&control).await.cause_events(60).await;
    receiver.wait_for_requests(20).await;
    target.pause().await;
    // Wait until the requests that the server had begun before the pause are over.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let received_count = receiver.count();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(receiver.count(), received_count);
    target.wait_until_count("pending", 60 - received_count as u64).await;
    target.resume().await;
    receiver.wait_for_requests(60).await;
    assert_eq!(receiver.events(), 60);
}

#[tokio::test]
async fn deleted_target_gets_no_more_events() {
    let control = start_with_retries(&[1, 1, 1, 1], &[]).await;
    let (target, receiver) = Target::with_receiver(&control, Reply::Status(500)).await;
    let other = Receiver::start_ok().await;
    Target::create(&control, &other.url).await;
    let source = EventSource::new(&control).await;
    source.assign().await;
    receiver.wait_for_requests(1).await;
    target.delete().await;
    // A request that was pending when the target was deleted may still arrive.
    let before = receiver.count();
    source.revoke().await;
    other.wait_for_requests(2).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(receiver.count() <= before + 1, "{} after {before}", receiver.count());
    for (method, subpath) in
        [("GET", ""), ("GET", "/deliveries"), ("POST", "/test"), ("POST", "/rotate-secret"), ("DELETE", "")]
    {
        let path = control.path(&format!("/webhooks/{}{subpath}", target.id));
        let response = control.api.send_as(control.key(), method, &path, json!({})).await;
        assert_eq!(response.code(), (404, "WEBHOOK_NOT_FOUND"), "{method} {subpath}");
    }
}

#[tokio::test]
async fn delivered_and_dead_events_are_replayed_since_a_time() {
    let control = start_with_retries(&[1], &[]).await;
    let receiver = Receiver::start_with(|received, _| {
        Reply::Status(if received.json()["event"] == "agent.role_revoked" { 500 } else { 200 })
    });
    let receiver = receiver.await;
    let target = Target::create(&control, &receiver.url).await;
    let source = EventSource::new(&control).await;
    source.cause_events(2).await;
    let wait_for_totals = async |delivered, dead| {
        target.wait_until_count("delivered", delivered).await;
        target.wait_until_count("dead", dead).await;
    };
    wait_for_totals(1, 1).await;
    let second = SystemClock.now().seconds();
    let has_begun = async || (SystemClock.now().seconds() > second).then_some(());
    eventually("the next second begins", has_begun, String::new).await;
    let since = jiff::Timestamp::from_second(SystemClock.now().seconds()).unwrap().to_string();
    let early_time = "2020-01-01T00:00:00Z";
    source.cause_events(4).await;
    wait_for_totals(3, 3).await;
    let ids: BTreeSet<_> = receiver.received().iter().map(|request| request.id().to_owned()).collect();
    assert_eq!(ids.len(), 6);

    receiver.set_reply(Reply::Status(200));
    let before = receiver.count();
    assert_eq!(target.replay_since(json!({ "since": since, "status": "dead" })).await, 2);
    wait_for_totals(5, 1).await;
    assert_eq!(receiver.count(), before + 2);
    assert_eq!(target.replay_since(json!({ "since": since, "status": "delivered" })).await, 4);
    receiver.wait_for_requests(before + 6).await;
    wait_for_totals(5, 1).await;
    assert_eq!(target.replay_since(json!({ "since": early_time })).await, 6);
    wait_for_totals(6, 0).await;
    let requests = receiver.wait_for_requests(before + 12).await;
    assert_eq!(
        requests.iter().map(|request| request.id().to_owned()).collect::<BTreeSet<_>>(),
        ids,
        "the replayed events have their original ids"
    );
    StandardWebhooks::start().assert_signatures(&target.secret, &requests);
    let future = jiff::Timestamp::from_second(SystemClock.now().seconds() + 60).unwrap().to_string();
    assert_eq!(target.replay_since(json!({ "since": future })).await, 0);
}

#[tokio::test]
async fn delivery_list_contains_the_status_of_each_delivery() {
    let control = start_with_retries(&[600], &[]).await;
    let receiver = Receiver::start_with(|received, _| {
        Reply::Status(if received.json()["event"] == "agent.role_revoked" { 500 } else { 200 })
    });
    let receiver = receiver.await;
    let target = Target::create(&control, &receiver.url).await;
    EventSource::new(&control).await.cause_events(4).await;
    receiver.wait_for_requests(4).await;
    let attempted = async || {
        let deliveries = target.deliveries("").await;
        (deliveries.len() == 4 && deliveries.iter().all(|delivery| delivery["attempts"] == 1)).then_some(deliveries)
    };
    let deliveries = eventually("each delivery has one attempt", attempted, String::new).await;
    let kinds: Vec<_> = deliveries.iter().map(|delivery| delivery["event"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["agent.role_revoked", "agent.role_assigned"].repeat(2), "deliveries are listed newest first");
    for delivery in &deliveries {
        let (status, code, failure) = match delivery["event"].as_str().unwrap() {
            "agent.role_revoked" => ("pending", 500, json!("status")),
            _ => ("delivered", 200, Value::Null),
        };
        assert_eq!((&delivery["status"], &delivery["responseStatus"]), (&json!(status), &json!(code)));
        assert_eq!((&delivery["failure"], &delivery["payload"]), (&failure, &Value::Null));
    }
    let newest = &deliveries[0]["eventId"];
    assert_eq!(target.deliveries("?status=pending").await.len(), 2);
    assert_eq!(target.deliveries("?status=delivered&limit=1").await.len(), 1);
    assert_eq!(&target.deliveries("?limit=1").await[0]["eventId"], newest);
    assert_eq!(&target.deliveries("?limit=1&offset=1").await[0]["eventId"], &deliveries[1]["eventId"]);
    assert!(target.deliveries("?status=dead").await.is_empty());
}

#[tokio::test]
async fn changed_url_and_filter_apply_to_queued_events() {
    let control = ControlPlane::start().await;
    let (old_receiver, new_receiver) = (Receiver::start_ok().await, Receiver::start_ok().await);
    let target = Target::create(&control, &old_receiver.url).await;
    let source = EventSource::new(&control).await;
    source.cause_events(2).await;
    old_receiver.wait_for_requests(2).await;
    target.change(json!({ "url": new_receiver.url, "events": ["agent.role_revoked"] })).await;
    source.cause_events(2).await;
    new_receiver.wait_for_requests(1).await;
    let test = target.send_test_event().await;
    target.wait_for_delivery_status(&test, "delivered").await;
    assert_eq!((old_receiver.count(), new_receiver.count()), (2, 2));
    assert_eq!(new_receiver.of_kind("agent.role_revoked").len(), 1);
}

/// Number of hosts of one owner: more than the control plane keeps connections open to.
const HOSTS: usize = 40;

/// An owner with many hosts cannot occupy a connection of the control plane with each of them.
#[tokio::test]
async fn connections_to_only_some_hosts_of_an_owner_stay_open() {
    let control = ControlPlane::start_one_with(&[]).await;
    let receiver = Receiver::on_all_addresses().await;
    let mut owned = (control.service().to_owned(), control.key().to_owned());
    for number in 1..=HOSTS {
        let url = format!("http://127.0.0.{number}:{}/", receiver.port());
        // A service has ten webhooks at most, so create another service.
        if number % 10 == 0 {
            owned = control.create_service(json!({ "name": "another" })).await;
        }
        let (service, key) = &owned;
        let target = Target::create_in(&control.api, key, &format!("/services/{service}/webhooks"), &url, &["*"]).await;
        let event = target.send_test_event().await;
        target.wait_for_delivery_status(&event, "delivered").await;
    }
    assert_eq!(receiver.connections(), HOSTS);
    assert!((1..HOSTS).contains(&receiver.max_open_connections()), "{}", receiver.max_open_connections());
}
