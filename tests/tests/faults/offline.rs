//! Tests a sidecar that restarts while it cannot reach the control plane: it decides with its copy on disk until that is too old.
//!
//! `OFFLINE_SECONDS=600 REQUESTS_PER_SECOND=200 cargo test --workspace --test faults -- offline --nocapture` makes the test longer.

use countersign_process::{Clock, SystemClock};
use countersign_tests::{Agent, ControlPlane, Envoy, Sidecar, Upstream, eventually};
use std::{collections::BTreeMap, env, time::Duration};
use tokio::time::{MissedTickBehavior, interval, sleep};

/// The test ends the outage this time before the view of the sidecar is too old.
const MARGIN: Duration = Duration::from_secs(4);

/// Number of restarts of the sidecar while the control plane is away.
const RESTARTS: u32 = 2;

fn variable(name: &str, default: u64) -> u64 {
    env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The number of answers with each status and reason.
type Answers = BTreeMap<(u16, String), usize>;

/// Waits until a time since boot.
async fn wait_until(time: Duration) {
    sleep(time.saturating_sub(SystemClock.since_boot())).await;
}

/// Sends requests with a token through Envoy at a fixed rate until a time since boot. Returns the answers.
async fn send_requests(envoy: &Envoy, token: &str, until: Duration) -> Answers {
    let pause = Duration::from_secs(1) / u32::try_from(variable("REQUESTS_PER_SECOND", 100)).unwrap();
    let mut due = interval(pause);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut answers = Answers::new();
    while SystemClock.since_boot() < until {
        due.tick().await;
        let response = envoy.listener.get_as(token, "/").await;
        let reason = response.header("x-agent-reason").to_owned();
        *answers.entry((response.status, reason)).or_default() += 1;
    }
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_decides_offline_through_restarts_until_its_copy_is_too_old() {
    let offline = Duration::from_secs(variable("OFFLINE_SECONDS", 8));
    let max_staleness = format!("sync.max_staleness_seconds={}", (offline + MARGIN).as_secs());
    let mut control = ControlPlane::start_process_with(&[&max_staleness]).await;
    let copies = tempfile::tempdir().unwrap();
    let directory = format!("copy.directory={}", copies.path().display());
    let key = control.create_key(control.service(), "sync").await;
    let mut sidecar = Sidecar::start_with(&control, &[&key], &[&directory]);
    sidecar.wait_until_ready().await;
    let upstream = Upstream::start().await;
    let envoy = Envoy::start_example(&sidecar.socket(), upstream.port).await;

    let role = control.create_role("reader", &["read"]).await;
    let (live, dead) = (Agent::register(&control, "live").await, Agent::register(&control, "dead").await);
    for agent in [&live, &dead] {
        control.assign(&agent.id, &role).await;
    }
    let (live_token, dead_token) = (live.token().await, dead.token().await);
    let path = control.path(&format!("/agents/{}/roles/{role}", dead.id));
    let revoked = control.api.send_as(control.key(), "DELETE", &path, serde_json::json!({})).await.expect(200);
    let written =
        async || sidecar.metric("countersign_authz_view_copy_writes_total{result=\"ok\"}").await.filter(|it| *it > 0.0);
    eventually("a copy is written", written, || sidecar.log()).await;
    // The receipt states that the copy contains the revocation.
    let in_force = async || {
        let path = control.path(&format!("/enforcement?revision={}&wait=3", revoked["revision"]));
        let receipt = control.api.get_as(control.key(), &path).await.expect(200);
        (receipt["enforced"] == true && receipt["sidecars"] == 1).then_some(())
    };
    eventually("the revocation is in force", in_force, || sidecar.log()).await;

    control.kill();
    let away_since = SystemClock.since_boot();
    let stale_by = away_since + offline + MARGIN;
    let until = away_since + offline;
    let restarts = async {
        for restart in 1..=RESTARTS {
            wait_until(away_since + offline * restart / (RESTARTS + 1)).await;
            sidecar.restart();
        }
    };
    let requests =
        async { tokio::join!(send_requests(&envoy, &live_token, until), send_requests(&envoy, &dead_token, until)) };
    let ((), (of_live, of_dead)) = tokio::join!(restarts, requests);
    println!("offline for {offline:?}, {RESTARTS} restarts: live token {of_live:?}, dead token {of_dead:?}");
    // Answers with 503 are from the restarts, while Envoy does not reach the sidecar, or the sidecar has no view yet.
    assert!(of_live.keys().all(|(status, _)| [200, 503].contains(status)), "a live token is refused: {of_live:?}");
    assert!(of_dead.keys().all(|(status, _)| [403, 503].contains(status)), "a dead token is accepted: {of_dead:?}");
    assert!(of_live.contains_key(&(200, String::new())) && of_dead.contains_key(&(403, "no_role".to_owned())));

    wait_until(stale_by).await;
    for token in [&live_token, &dead_token] {
        let answers = send_requests(&envoy, token, SystemClock.since_boot() + Duration::from_secs(1)).await;
        assert!(answers.keys().all(|(status, _)| *status == 503), "a stale view is used: {answers:?}");
    }
    control.restart().await;
    sidecar.wait_for_check(&live_token, |result| result.status == 200).await;
    assert_eq!(sidecar.check_token(&dead_token).await.reason, "no_role");
}
