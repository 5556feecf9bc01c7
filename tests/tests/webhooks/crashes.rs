//! A thousand events to six targets while the control plane is killed repeatedly: working targets get every event, and
//! no target gets an event of another.

use countersign_process::{Clock, SystemClock};
use countersign_tests::{
    Agent, ControlPlane, HttpClient, HttpResponse, Received, Receiver, Reply, StandardWebhooks, Target,
    target::control_with_retries,
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};

const AGENTS: usize = 50;
const ROLES: usize = 20;
const KILLS: usize = 20;

/// Maximum time until the last event is delivered.
const MAX_DURATION: Duration = Duration::from_mins(3);

/// Assigns a role until the request is acknowledged. A killed control plane may have executed it; repeating it then has no
/// effect.
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

/// The same id is always the same event.
#[track_caller]
fn assert_consistent(all: &[Received]) {
    let events: BTreeSet<_> = all.iter().map(|request| (request.id(), request.body.as_slice())).collect();
    let ids: BTreeSet<_> = all.iter().map(Received::id).collect();
    assert_eq!(events.len(), ids.len(), "one id has two bodies");
}

struct Receivers {
    good: Receiver,
    flaky: Receiver,
    hanging: Receiver,
    private: Receiver,
    redirecting: Receiver,
    gone: Receiver,
    dripping: Receiver,
}

impl Receivers {
    async fn start() -> Self {
        let private = Receiver::good().await;
        Self {
            good: Receiver::good().await,
            flaky: Receiver::start_with(|_, before| Reply::Status(if before == 0 { 500 } else { 200 })).await,
            hanging: Receiver::start(Reply::Never).await,
            redirecting: Receiver::start(Reply::redirect(307, &private.url)).await,
            gone: Receiver::start(Reply::Status(410)).await,
            dripping: Receiver::start(Reply::SlowHeaders).await,
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
        futures_util::future::join_all(tasks).await;
    })
}

async fn kill_repeatedly(control: &mut ControlPlane) {
    for round in 0..KILLS {
        tokio::time::sleep(Duration::from_millis(100 + 50 * (round as u64 % 8))).await;
        control.kill();
        control.restart().await;
    }
}

/// Waits until a receiver has every event.
async fn await_all_events(name: &str, receiver: &Receiver, started: Duration, count: impl Fn(&Receiver) -> usize) {
    while count(receiver) < AGENTS * ROLES {
        let elapsed = SystemClock.since_boot().saturating_sub(started);
        assert!(elapsed < MAX_DURATION, "{name} took {} of {} events in {elapsed:?}", count(receiver), AGENTS * ROLES);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("{name}: all events after {:.1?}", SystemClock.since_boot().saturating_sub(started));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_is_delivered_across_twenty_crashes() {
    let mut control = control_with_retries(&[1; 30], &["webhooks.attempt_seconds=2"]).await;
    let receivers = Receivers::start().await;
    let mut targets = Vec::new();
    for receiver in [
        &receivers.good,
        &receivers.flaky,
        &receivers.hanging,
        &receivers.redirecting,
        &receivers.gone,
        &receivers.dripping,
    ] {
        targets.push(Target::create_for(&control, &receiver.url, &["agent.role_assigned"]).await);
    }
    let (mut agents, mut roles) = (Vec::new(), Vec::new());
    for _ in 0..AGENTS {
        agents.push(Agent::register(&control, "Agent").await);
    }
    for number in 0..ROLES {
        roles.push(control.create_role(&format!("role-{number}"), &[]).await);
    }
    let mut expected: Vec<_> =
        agents.iter().flat_map(|agent| roles.iter().map(|role| (agent.id.clone(), role.clone()))).collect();
    expected.sort();

    let started = SystemClock.since_boot();
    let assigning = assign_all(&control, agents, roles);
    kill_repeatedly(&mut control).await;
    println!("{KILLS} crashes in {:.1?}", SystemClock.since_boot().saturating_sub(started));
    assigning.await.unwrap();
    await_all_events("the good target", &receivers.good, started, Receiver::events).await;
    // The flaky receiver accepts each event at the second attempt.
    await_all_events("the flaky target", &receivers.flaky, started, Receiver::accepted).await;

    let mut library = StandardWebhooks::start();
    for (receiver, target) in [(&receivers.good, &targets[0]), (&receivers.flaky, &targets[1])] {
        let all = receiver.received();
        let mut delivered = delivered(&all);
        delivered.sort();
        assert_eq!(delivered, expected, "each event has one id");
        assert_consistent(&all);
        library.assert_signed(&target.secret, &all);
        println!("{} deliveries of {} events", all.len(), delivered.len());
    }
    assert_eq!((receivers.private.count(), receivers.private.connections()), (0, 0), "a redirect was followed");
    assert!(receivers.redirecting.count() > 0 && receivers.hanging.count() > 0 && receivers.dripping.count() > 0);
    let gone =
        targets[4].until("the target that answers 410 is disabled", |target| target["status"] == "disabled").await;
    assert_eq!(gone["disabledReason"], "gone");
}
