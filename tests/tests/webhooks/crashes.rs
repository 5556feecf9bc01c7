//! Sends a thousand events to six targets while the control plane is killed repeatedly, and tests that working
//! targets get every event and that no redirect is followed.

use countersign_process::{Clock, SystemClock};
use countersign_tests::{
    Agent, ControlPlane, HttpClient, HttpResponse, Received, Receiver, Reply, StandardWebhooks, Target,
    target::retry_setting,
};
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};

const AGENTS: usize = 50;
const ROLES: usize = 20;
const KILLS: usize = 20;

/// Maximum time until the last event is delivered.
const MAX_DURATION: Duration = Duration::from_mins(3);

/// Repeats the assignment of a role until it is acknowledged. The control plane may have executed the assignment before it was
/// killed. Then the repetition has no effect.
async fn assign(api: &HttpClient, key: &str, path: &str, role: &str) {
    loop {
        let request = api.request("POST", path).bearer_auth(key).json(&json!({ "roleId": role }));
        match HttpResponse::try_send(request).await {
            Some(response) if response.status == 200 => return,
            Some(response) => assert_eq!(response.status, 503, "{}", response.body),
            None => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Agent and role of each event id. An assignment that was delivered under two ids is listed twice.
fn delivered(all: &[Received]) -> Vec<(String, String)> {
    let text = |data: &Value, name: &str| data[name].as_str().unwrap().to_owned();
    let mut ids = BTreeSet::new();
    let unique = all.iter().filter(|request| ids.insert(request.id().to_owned()));
    unique.map(|request| (text(&request.data(), "agentId"), text(&request.data(), "roleId"))).collect()
}

/// Asserts that requests with the same id have the same body.
#[track_caller]
fn assert_consistent(all: &[Received]) {
    let events: BTreeSet<_> = all.iter().map(|request| (request.id(), request.body.as_slice())).collect();
    let ids: BTreeSet<_> = all.iter().map(Received::id).collect();
    assert_eq!(events.len(), ids.len(), "each id has one body");
}

struct Receivers {
    working: Receiver,
    flaky: Receiver,
    hanging: Receiver,
    private: Receiver,
    redirecting: Receiver,
    gone: Receiver,
    slow: Receiver,
}

impl Receivers {
    async fn start() -> Self {
        let private = Receiver::start_ok().await;
        Self {
            working: Receiver::start_ok().await,
            flaky: Receiver::start_with(|_, earlier| Reply::Status(if earlier == 0 { 500 } else { 200 })).await,
            hanging: Receiver::start(Reply::Never).await,
            redirecting: Receiver::start(Reply::redirect(307, &private.url)).await,
            gone: Receiver::start(Reply::Status(410)).await,
            slow: Receiver::start(Reply::SlowHeaders).await,
            private,
        }
    }
}

/// Assigns every role to every agent, in four concurrent tasks, for about as long as the crashes take.
fn assign_all(control: &ControlPlane, agents: Vec<Agent>, roles: Vec<String>) -> tokio::task::JoinHandle<()> {
    let (api, key, path) = (control.api.clone(), control.key().to_owned(), control.path("/agents"));
    tokio::spawn(async move {
        let tasks = agents.chunks(AGENTS.div_ceil(4)).map(async |agents| {
            for role in &roles {
                for agent in agents {
                    assign(&api, &key, &format!("{path}/{}/roles", agent.id), role).await;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        });
        join_all(tasks).await;
    })
}

async fn kill_repeatedly(control: &mut ControlPlane) {
    for round in 0..KILLS {
        tokio::time::sleep(Duration::from_millis(100 + 50 * (round as u64 % 8))).await;
        control.kill();
        control.restart().await;
    }
}

async fn wait_for_all_events(name: &str, receiver: &Receiver, started: Duration, count: impl Fn(&Receiver) -> usize) {
    while count(receiver) < AGENTS * ROLES {
        let elapsed = SystemClock.since_boot().saturating_sub(started);
        assert!(
            elapsed < MAX_DURATION,
            "{name} received {} of {} events in {elapsed:?}",
            count(receiver),
            AGENTS * ROLES
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("{name}: all events after {:.1?}", SystemClock.since_boot().saturating_sub(started));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_is_delivered_across_twenty_crashes() {
    let mut control = ControlPlane::start_process_with(&[&retry_setting(&[1; 30]), "webhooks.attempt_seconds=2"]).await;
    let receivers = Receivers::start().await;
    let mut targets = Vec::new();
    for receiver in [
        &receivers.working,
        &receivers.flaky,
        &receivers.hanging,
        &receivers.redirecting,
        &receivers.gone,
        &receivers.slow,
    ] {
        targets.push(Target::create_for(&control, &receiver.url, &["agent.role_assigned"]).await);
    }
    let agents = join_all((0..AGENTS).map(|_| Agent::register(&control, "Agent"))).await;
    let create_role = async |number| control.create_role(&format!("role-{number}"), &[]).await;
    let roles = join_all((0..ROLES).map(create_role)).await;
    let mut expected: Vec<_> =
        agents.iter().flat_map(|agent| roles.iter().map(|role| (agent.id.clone(), role.clone()))).collect();
    expected.sort();

    let started = SystemClock.since_boot();
    let assign_task = assign_all(&control, agents, roles);
    kill_repeatedly(&mut control).await;
    println!("{KILLS} crashes in {:.1?}", SystemClock.since_boot().saturating_sub(started));
    assign_task.await.unwrap();
    wait_for_all_events("the working target", &receivers.working, started, Receiver::events).await;
    // The flaky receiver accepts each event at the second attempt.
    wait_for_all_events("the flaky target", &receivers.flaky, started, Receiver::accepted).await;

    let mut library = StandardWebhooks::start();
    for (receiver, target) in [(&receivers.working, &targets[0]), (&receivers.flaky, &targets[1])] {
        let requests = receiver.received();
        let mut delivered = delivered(&requests);
        delivered.sort();
        assert_eq!(delivered, expected, "each event has one id");
        assert_consistent(&requests);
        library.assert_signatures(&target.secret, &requests);
        println!("{} deliveries of {} events", requests.len(), delivered.len());
    }
    assert_eq!(
        (receivers.private.count(), receivers.private.connections()),
        (0, 0),
        "requests and connections to the redirect target"
    );
    assert!(receivers.redirecting.count() > 0 && receivers.hanging.count() > 0 && receivers.slow.count() > 0);
    let disabled_target = targets[4]
        .wait_until("the target that responds 410 is disabled", |target| target["status"] == "disabled")
        .await;
    assert_eq!(disabled_target["disabledReason"], "gone");
}
