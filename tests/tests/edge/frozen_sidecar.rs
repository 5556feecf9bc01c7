//! Tests a sidecar that is frozen while thousands of changes are made: it costs the control plane no memory, and catches up.
//!
//! `FROZEN_CHANGES=20000 FROZEN_AGENTS=1000 cargo test --workspace --test edge -- frozen_sidecar --nocapture` measures it longer.

use countersign_process::{Clock, SystemClock};
use countersign_tests::{Agent, ControlPlane, Sidecar, eventually};
use futures_util::{StreamExt, stream};
use std::{env, str::FromStr};

/// Number of requests at the same time.
const CONCURRENCY: usize = 8;

/// The memory by which the control plane may grow, in bytes: much less than a queue of all changes would need.
const MAX_GROWTH: usize = 48 << 20;

fn variable<T: FromStr>(name: &str, default: T) -> T {
    env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_sidecar_costs_no_memory_and_converges() {
    let (agent_count, changes) = (variable("FROZEN_AGENTS", 100), variable("FROZEN_CHANGES", 3000));
    let control = ControlPlane::start_one_with(&[]).await;
    let sidecar = Sidecar::start(&control).await;
    let role = control.create_role("reader", &["read"]).await;
    let register = async |number: usize| {
        let agent = Agent::register(&control, &format!("agent {number}")).await;
        control.assign(&agent.id, &role).await;
        let token = agent.token().await;
        (agent, token)
    };
    let agents: Vec<_> = stream::iter(0..agent_count).map(register).buffered(CONCURRENCY).collect().await;
    // The first round of changes fills the caches of the control plane, so their memory is not counted as growth.
    let change = async |number: usize| {
        let (agent, _) = &agents[number % agent_count];
        // Agents with even and odd numbers change in opposite directions, so that at the end only some agents have the role.
        if (number / agent_count + number).is_multiple_of(2) {
            control.assign(&agent.id, &role).await;
        } else {
            control.revoke(&agent.id, &role).await;
        }
    };
    stream::iter(0..agent_count).for_each_concurrent(CONCURRENCY, change).await;

    sidecar.signal("STOP");
    let before = control.resident_memory();
    let mut most = before;
    for round in 0..changes / agent_count {
        let first = (round + 1) * agent_count;
        stream::iter(first..first + agent_count).for_each_concurrent(CONCURRENCY, change).await;
        most = most.max(control.resident_memory());
    }
    let growth = most.saturating_sub(before);
    println!("{changes} changes: the control plane grew by {} KiB", growth >> 10);
    assert!(growth < MAX_GROWTH, "the control plane grew by {growth} bytes");

    sidecar.signal("CONT");
    let thawed_at = SystemClock.since_boot();
    let newest = control.api.get_as(control.key(), &control.path("/enforcement")).await.expect(200)["revision"].clone();
    let in_force = async || {
        let path = control.path(&format!("/enforcement?revision={newest}&wait=1"));
        let receipt = control.api.get_as(control.key(), &path).await.expect(200);
        (receipt["enforced"] == true && receipt["sidecars"] == 1).then_some(())
    };
    eventually("the sidecar converges", in_force, || sidecar.log()).await;
    println!("it converged after {:?}", SystemClock.since_boot().saturating_sub(thawed_at));
    let mut allowed = 0;
    for (agent, token) in &agents {
        let (checked, verified) = (sidecar.check_token(token).await, control.verify(token).await);
        // The API answers 200 with empty roles if an agent has no role; the sidecar requires one.
        let has_role = verified.status == 200 && verified.body["agent"]["roles"] != serde_json::json!([]);
        assert_eq!(checked.status == 200, has_role, "{}: {checked:?}, {}", agent.id, verified.body);
        allowed += usize::from(has_role);
    }
    assert!(allowed > 0 && allowed < agents.len(), "some agents have the role, and some do not");
}
