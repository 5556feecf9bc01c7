//! A thousand events to six targets while the control plane is killed again and again: whoever takes events gets each
//! of them, and nobody gets what is not theirs.

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

/// How long everything may take until the last event has come.
const AT_MOST: Duration = Duration::from_mins(3);

/// Assigns until it is acknowledged: a control plane that was killed may have done it, and then it is done once.
async fn assign(api: &HttpClient, key: &str, path: &str, role: &str) {
    loop {
        let request = api.request("POST", path).bearer_auth(key).json(&json!({ "roleId": role }));
        match HttpResponse::try_send(request).await {
            Some(answer) if answer.status == 200 => return,
            Some(answer) => assert_eq!(answer.status, 503, "{}", answer.body),
            None => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Who got which role, for each event: one that was told under two ids is there twice.
fn told(all: &[Received]) -> Vec<(String, String)> {
    let text = |data: &Value, name: &str| data[name].as_str().unwrap().to_owned();
    let mut seen = BTreeSet::new();
    let firsts = all.iter().filter(|one| seen.insert(one.id().to_owned()));
    firsts.map(|one| (text(&one.data(), "agentId"), text(&one.data(), "roleId"))).collect()
}

/// The same id is always the same event.
#[track_caller]
fn assert_consistent(all: &[Received]) {
    let events: BTreeSet<_> = all.iter().map(|one| (one.id(), one.body.as_slice())).collect();
    let ids: BTreeSet<_> = all.iter().map(Received::id).collect();
    assert_eq!(events.len(), ids.len(), "an id stands for two bodies");
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

/// Gives every role to every agent, from four hands, for about as long as the crashes take.
fn source(control: &ControlPlane, agents: Vec<Agent>, roles: Vec<String>) -> tokio::task::JoinHandle<()> {
    let (api, key, path) = (control.api.clone(), control.key().to_owned(), control.path("/agents"));
    tokio::spawn(async move {
        let hands = agents.chunks(AGENTS.div_ceil(4)).map(async |agents| {
            for role in &roles {
                for agent in agents {
                    assign(&api, &key, &format!("{path}/{}/roles", agent.id), role).await;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        });
        futures_util::future::join_all(hands).await;
    })
}

async fn kill_again_and_again(control: &mut ControlPlane) {
    for round in 0..KILLS {
        tokio::time::sleep(Duration::from_millis(100 + 50 * (round as u64 % 8))).await;
        control.kill();
        control.restart().await;
    }
}

/// Waits until a receiver took every event.
async fn all_came(what: &str, receiver: &Receiver, began: Duration, taken: impl Fn(&Receiver) -> usize) {
    while taken(receiver) < AGENTS * ROLES {
        let waited = SystemClock.since_boot().saturating_sub(began);
        assert!(waited < AT_MOST, "{what} took {} of {} events in {waited:?}", taken(receiver), AGENTS * ROLES);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("{what}: all events after {:.1?}", SystemClock.since_boot().saturating_sub(began));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_is_delivered_across_twenty_crashes() {
    let mut control = control_with_retries(&[1; 30], &["webhooks.attempt_seconds=2"]).await;
    let to = Receivers::start().await;
    let mut targets = Vec::new();
    for receiver in [&to.good, &to.flaky, &to.hanging, &to.redirecting, &to.gone, &to.dripping] {
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

    let began = SystemClock.since_boot();
    let causing = source(&control, agents, roles);
    kill_again_and_again(&mut control).await;
    println!("{KILLS} crashes in {:.1?}", SystemClock.since_boot().saturating_sub(began));
    causing.await.unwrap();
    all_came("the good target", &to.good, began, Receiver::events).await;
    // Each came a second time, and was taken then.
    all_came("the flaky target", &to.flaky, began, Receiver::accepted).await;

    let mut library = StandardWebhooks::start();
    for (receiver, target) in [(&to.good, &targets[0]), (&to.flaky, &targets[1])] {
        let all = receiver.received();
        let mut told = told(&all);
        told.sort();
        assert_eq!(told, expected, "each event once, under one id");
        assert_consistent(&all);
        library.assert_signed(&target.secret, &all);
        println!("{} deliveries of {} events", all.len(), told.len());
    }
    assert_eq!((to.private.count(), to.private.connections()), (0, 0), "a redirect was followed");
    assert!(to.redirecting.count() > 0 && to.hanging.count() > 0 && to.dripping.count() > 0);
    let gone = targets[4].until("the one that is gone is disabled", |target| target["status"] == "disabled").await;
    assert_eq!(gone["disabledReason"], "gone");
}
