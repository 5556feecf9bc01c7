//! Tests that the sidecar keeps serving and releases resources after a thousand cancelled calls.

use countersign_tests::{Agent, ControlPlane, Sidecar, eventually, sidecar::check_request};
use std::time::Duration;
use tokio::time::timeout;

const CALLS: usize = 1_000;

/// Number of open files and resident memory in MiB of the sidecar.
async fn resource_usage(sidecar: &Sidecar) -> (f64, f64) {
    let metric = async |name| sidecar.metric(name).await.unwrap();
    (metric("process_open_fds").await, metric("process_resident_memory_bytes").await / 1024.0 / 1024.0)
}

/// Waits until resource usage returns to the earlier values, apart from a few connections and memory that the allocator keeps.
async fn wait_for_usage(sidecar: &Sidecar, (files, memory): (f64, f64)) {
    let poll = async || {
        let usage = resource_usage(sidecar).await;
        (usage.0 <= files + 4.0 && usage.1 <= memory + 32.0).then_some(())
    };
    eventually("open files and memory return to their earlier values", poll, || {
        format!("before: {files} files, {memory} MiB")
    })
    .await;
}

#[tokio::test]
async fn cancelled_calls_release_files_and_memory() {
    let control = ControlPlane::start().await;
    let sidecar = Sidecar::start(&control).await;
    let agent = Agent::register(&control, "Agent").await;
    control.assign_new_role(&agent.id, "reader", &["read"]).await;
    let token = agent.token().await;
    sidecar.wait_until_accepted(&token).await;
    let before = resource_usage(&sidecar).await;

    let bearer = format!("Bearer {token}");
    let shared = sidecar.client().await;
    for call in 0..CALLS {
        // Half of the calls share one connection. Each of the other calls uses a connection that closes with the call.
        let mut client = if call % 2 == 0 { shared.clone() } else { sidecar.client().await };
        let delay = Duration::from_micros(u64::try_from(call % 50).unwrap() * 10);
        let _cancelled = timeout(delay, client.check(check_request(&[("authorization", &bearer)], &[]))).await;
    }
    assert_eq!(sidecar.check_token(&token).await.status, 200);
    drop(shared);
    wait_for_usage(&sidecar, before).await;
}
