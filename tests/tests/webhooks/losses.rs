//! How a role is lost: it is taken away, it ends, or there is no such role any more. Each loss is told once.

use countersign_process::{Clock, SystemClock};
use countersign_tests::{Agent, ControlPlane, EventSource, Received, Receiver, Target, eventually};
use serde_json::{Value, json};
use std::time::Duration;

const LOST: [&str; 1] = ["agent.role_revoked"];

/// When a role ends that lasts so many seconds from now.
fn seconds_from_now(seconds: i64) -> (i64, String) {
    let end = SystemClock.now().seconds() + seconds;
    (end, jiff::Timestamp::from_second(end).unwrap().to_string())
}

/// Who lost which role and why, in the order of the agents.
fn lost(receiver: &Receiver) -> Vec<(String, String, String)> {
    let text = |data: &Value, name: &str| data[name].as_str().unwrap().to_owned();
    let events = receiver.of_kind(LOST[0]);
    let lost = events.iter().map(|event| {
        let data = event.data();
        (text(&data, "agentId"), text(&data, "roleId"), text(&data, "reason"))
    });
    let mut lost: Vec<_> = lost.collect();
    lost.sort();
    lost
}

#[tokio::test]
async fn expired_role_is_reported_once_within_seconds_and_across_a_crash() {
    let mut control = ControlPlane::start().await;
    let receiver = Receiver::good().await;
    let target = Target::create_for(&control, &receiver.url, &LOST).await;
    let role = control.create_role("reader", &["read"]).await;
    let mut agents = Vec::new();
    for _ in 0..4 {
        agents.push(Agent::register(&control, "Agent").await);
    }
    // In two groups: one ends while the control plane runs, one while it is away.
    let (first_end, first) = seconds_from_now(2);
    for agent in &agents[..2] {
        control.assign_until(&agent.id, &role, Some(first.clone())).await;
    }
    let all = receiver.until(2).await;
    let noticed = SystemClock.now().seconds();
    assert!((first_end..first_end + 5).contains(&noticed), "ended at {first_end}, told at {noticed}");
    for event in &all {
        let at: jiff::Timestamp = event.json()["timestamp"].as_str().unwrap().parse().unwrap();
        assert!((first_end..=noticed).contains(&at.as_second()), "{}", event.json());
    }
    let (second_end, second) = seconds_from_now(2);
    for agent in &agents[2..] {
        control.assign_until(&agent.id, &role, Some(second.clone())).await;
    }
    control.kill();
    let over = async || (SystemClock.now().seconds() > second_end).then_some(());
    eventually("the roles end", over, String::new).await;
    control.restart().await;
    receiver.until(4).await;
    control.restart().await;
    let test = target.test().await;
    eventually(
        "the test comes",
        async || receiver.received().iter().any(|one| one.id() == test).then_some(()),
        String::new,
    )
    .await;
    let mut expected: Vec<_> =
        agents.iter().map(|agent| (agent.id.clone(), role.clone(), "expired".to_owned())).collect();
    expected.sort();
    assert_eq!(lost(&receiver), expected);
}

#[tokio::test]
async fn deleted_role_is_reported_for_every_agent_that_had_it() {
    let control = ControlPlane::start().await;
    let receiver = Receiver::good().await;
    Target::create_for(&control, &receiver.url, &LOST).await;
    let role = control.create_role("reader", &["read"]).await;
    let mut agents = Vec::new();
    for _ in 0..4 {
        agents.push(Agent::register(&control, "Agent").await.id);
    }
    let [for_good, for_long, revoked, ended] = &agents[..] else { unreachable!("four agents") };
    control.assign(for_good, &role).await;
    control.assign_until(for_long, &role, Some(seconds_from_now(3600).1)).await;
    control.assign(revoked, &role).await;
    assert!(control.revoke(revoked, &role).await);
    assert!(!control.revoke(revoked, &role).await, "nothing is lost twice");
    control.assign_until(ended, &role, Some(seconds_from_now(2).1)).await;
    receiver.until(2).await;
    control.delete_role(&role).await.expect(200);
    receiver.until(4).await;
    let mut expected =
        [(for_good, "role_deleted"), (for_long, "role_deleted"), (revoked, "revoked"), (ended, "expired")]
            .map(|(agent, why)| (agent.clone(), role.clone(), why.to_owned()));
    expected.sort();
    assert_eq!(lost(&receiver), expected);
}

#[tokio::test]
async fn extended_or_revoked_role_is_not_reported_as_expired() {
    let control = ControlPlane::start().await;
    let receiver = Receiver::good().await;
    let target = Target::create(&control, &receiver.url).await;
    let source = EventSource::new(&control).await;
    let other = control.create_role("writer", &["write"]).await;
    let (agent, role) = (source.agent.id.as_str(), source.role.as_str());
    let (end, soon) = seconds_from_now(2);
    control.assign_until(agent, role, Some(soon.clone())).await;
    control.assign_until(agent, &other, Some(soon.clone())).await;
    let (_, late) = seconds_from_now(3600);
    control.assign_until(agent, role, Some(late.clone())).await;
    assert!(control.revoke(agent, &other).await);
    let over = async || (SystemClock.now().seconds() > end + 3).then_some(());
    eventually("its first end is over", over, String::new).await;
    let test = target.test().await;
    eventually(
        "the test comes",
        async || receiver.received().iter().any(|one| one.id() == test).then_some(()),
        String::new,
    )
    .await;
    assert_eq!(lost(&receiver), [(agent.to_owned(), other, "revoked".to_owned())]);
    let mut ends: Vec<_> = receiver.of_kind("agent.role_assigned").iter().map(Received::data).collect();
    ends.retain(|data| data["roleId"] == json!(role));
    let mut ends: Vec<_> = ends.into_iter().map(|data| data["expiresAt"].clone()).collect();
    ends.sort_by_key(ToString::to_string);
    assert_eq!(ends, [json!(soon), json!(late)]);
}

#[tokio::test]
async fn reassigned_role_is_reported_again_when_it_expires() {
    let control = ControlPlane::start().await;
    let receiver = Receiver::good().await;
    Target::create_for(&control, &receiver.url, &LOST).await;
    let source = EventSource::new(&control).await;
    for round in 1..=2 {
        control.assign_until(&source.agent.id, &source.role, Some(seconds_from_now(2).1)).await;
        receiver.until(round).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let ended = (source.agent.id.clone(), source.role.clone(), "expired".to_owned());
    assert_eq!(lost(&receiver), [ended.clone(), ended]);
    // What has ended cannot be taken away.
    control.revoke(&source.agent.id, &source.role).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(receiver.count(), 2);
}
