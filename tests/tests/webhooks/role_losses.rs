//! Tests that an agent's loss of a role, by revocation, expiry or deletion, emits one event.

use countersign_process::{Clock, SystemClock};
use countersign_tests::{Agent, ControlPlane, EventSource, Received, Receiver, Reply, Target, eventually};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::time::Duration;

const ROLE_REVOKED: [&str; 1] = ["agent.role_revoked"];

/// The time that is this number of seconds from now, in Unix seconds and as text.
fn seconds_from_now(seconds: i64) -> (i64, String) {
    let end = SystemClock.now().seconds() + seconds;
    (end, jiff::Timestamp::from_second(end).unwrap().to_string())
}

/// Agent, role and reason of each loss, sorted.
fn losses(receiver: &Receiver) -> Vec<(String, String, String)> {
    let text = |data: &Value, name: &str| data[name].as_str().unwrap().to_owned();
    let events = receiver.of_kind(ROLE_REVOKED[0]);
    let losses = events.iter().map(|event| {
        let data = event.data();
        (text(&data, "agentId"), text(&data, "roleId"), text(&data, "reason"))
    });
    let mut losses: Vec<_> = losses.collect();
    losses.sort();
    losses
}

#[tokio::test]
async fn expired_role_is_reported_once_within_seconds_and_across_a_crash() {
    let mut control = ControlPlane::start_process().await;
    let receiver = Receiver::start_ok().await;
    let target = Target::create_for(&control, &receiver.url, &ROLE_REVOKED).await;
    let role = control.create_role("reader", &["read"]).await;
    let agents = join_all((0..4).map(|_| Agent::register(&control, "Agent"))).await;
    // The roles of two agents expire while the control plane runs, the roles of the other agents while the control
    // plane is stopped.
    let (first_end, first) = seconds_from_now(2);
    for agent in &agents[..2] {
        control.assign_until(&agent.id, &role, Some(first.clone())).await;
    }
    let requests = receiver.wait_for_requests(2).await;
    let received_at = SystemClock.now().seconds();
    assert!((first_end..first_end + 5).contains(&received_at), "expired at {first_end}, reported at {received_at}");
    for event in &requests {
        let at: jiff::Timestamp = event.json()["timestamp"].as_str().unwrap().parse().unwrap();
        assert!((first_end..=received_at).contains(&at.as_second()), "{}", event.json());
    }
    let (second_end, second) = seconds_from_now(2);
    for agent in &agents[2..] {
        control.assign_until(&agent.id, &role, Some(second.clone())).await;
    }
    control.kill();
    let expired = async || (SystemClock.now().seconds() > second_end).then_some(());
    eventually("the roles expire", expired, String::new).await;
    control.restart().await;
    receiver.wait_for_requests(4).await;
    control.restart().await;
    let test = target.send_test_event().await;
    receiver.wait_for_event(&test).await;
    let mut expected: Vec<_> =
        agents.iter().map(|agent| (agent.id.clone(), role.clone(), "expired".to_owned())).collect();
    expected.sort();
    assert_eq!(losses(&receiver), expected);
}

#[tokio::test]
async fn deleted_role_is_reported_for_every_agent_that_had_it() {
    let control = ControlPlane::start().await;
    let receiver = Receiver::start_ok().await;
    Target::create_for(&control, &receiver.url, &ROLE_REVOKED).await;
    let role = control.create_role("reader", &["read"]).await;
    let agents = join_all((0..4).map(async |_| Agent::register(&control, "Agent").await.id)).await;
    let [permanent, long_lived, revoked, expired_agent] = &agents[..] else { unreachable!("there are four agents") };
    control.assign(permanent, &role).await;
    control.assign_until(long_lived, &role, Some(seconds_from_now(3600).1)).await;
    control.assign(revoked, &role).await;
    assert!(control.revoke(revoked, &role).await);
    assert!(!control.revoke(revoked, &role).await, "a role is revoked once");
    control.assign_until(expired_agent, &role, Some(seconds_from_now(2).1)).await;
    receiver.wait_for_requests(2).await;
    control.delete_role(&role).await.expect(200);
    receiver.wait_for_requests(4).await;
    let mut expected =
        [(permanent, "role_deleted"), (long_lived, "role_deleted"), (revoked, "revoked"), (expired_agent, "expired")]
            .map(|(agent, reason)| (agent.clone(), role.clone(), reason.to_owned()));
    expected.sort();
    assert_eq!(losses(&receiver), expected);
}

#[tokio::test]
async fn extended_or_revoked_role_is_not_reported_as_expired() {
    let control = ControlPlane::start().await;
    let (target, receiver) = Target::with_receiver(&control, Reply::Status(200)).await;
    let source = EventSource::new(&control).await;
    let other = control.create_role("writer", &["write"]).await;
    let (agent, role) = (source.agent.id.as_str(), source.role.as_str());
    let (end, soon) = seconds_from_now(2);
    control.assign_until(agent, role, Some(soon.clone())).await;
    control.assign_until(agent, &other, Some(soon.clone())).await;
    let (_, late) = seconds_from_now(3600);
    control.assign_until(agent, role, Some(late.clone())).await;
    assert!(control.revoke(agent, &other).await);
    let expired = async || (SystemClock.now().seconds() > end + 3).then_some(());
    eventually("the original expiry has passed", expired, String::new).await;
    let test = target.send_test_event().await;
    receiver.wait_for_event(&test).await;
    assert_eq!(losses(&receiver), [(agent.to_owned(), other, "revoked".to_owned())]);
    let mut assignments: Vec<_> = receiver.of_kind("agent.role_assigned").iter().map(Received::data).collect();
    assignments.retain(|data| data["roleId"] == json!(role));
    let mut assignments: Vec<_> = assignments.into_iter().map(|data| data["expiresAt"].clone()).collect();
    assignments.sort_by_key(ToString::to_string);
    assert_eq!(assignments, [json!(soon), json!(late)]);
}

#[tokio::test]
async fn reassigned_role_is_reported_again_when_it_expires() {
    let control = ControlPlane::start().await;
    let receiver = Receiver::start_ok().await;
    Target::create_for(&control, &receiver.url, &ROLE_REVOKED).await;
    let source = EventSource::new(&control).await;
    for round in 1..=2 {
        control.assign_until(&source.agent.id, &source.role, Some(seconds_from_now(2).1)).await;
        receiver.wait_for_requests(round).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let expired_agent = (source.agent.id.clone(), source.role.clone(), "expired".to_owned());
    assert_eq!(losses(&receiver), [expired_agent.clone(), expired_agent]);
    // Revoking an expired role has no effect.
    control.revoke(&source.agent.id, &source.role).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(receiver.count(), 2);
}
