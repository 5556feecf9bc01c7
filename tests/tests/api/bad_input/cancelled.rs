//! Tests that the sidecar keeps serving and releases resources after a thousand cancelled calls.

use countersign_tests::{Agent, ControlPlane, Environment, Sidecar, eventually, sidecar::check_request};
use std::time::Duration;
use tokio::{io::AsyncWriteExt, net::TcpStream, task::JoinSet, time::timeout};

const CALLS: usize = 1_000;

/// Number of open files and resident memory in MiB of the sidecar.
async fn resource_usage(sidecar: &Sidecar) -> (f64, f64) {
    let metric = async |name| sidecar.metric(name).await.unwrap();
    (metric("process_open_fds").await, metric("process_resident_memory_bytes").await / 1024.0 / 1024.0)
}

/// Waits until resource usage returns to the earlier values, apart from a few connections and memory that the
/// allocator keeps.
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

async fn accepts_token(sidecar: &Sidecar, token: &str) -> bool {
    sidecar.check_token(token).await.status == 200
}

#[tokio::test]
async fn cancelled_calls_release_files_and_memory() {
    let control = ControlPlane::start().await;
    let sidecar = Sidecar::start(&control).await;
    let agent = Agent::register(&control, "Agent").await;
    let role = control.create_role("reader", &["read"]).await;
    control.assign(&agent.id, &role).await;
    let token = agent.token().await;
    let allowed = async || accepts_token(&sidecar, &token).await.then_some(());
    eventually("the sidecar accepts the token", allowed, || sidecar.log()).await;
    let before = resource_usage(&sidecar).await;

    let bearer = format!("Bearer {token}");
    let shared = sidecar.client().await;
    for call in 0..CALLS {
        // Half of the calls share one connection. Each of the other calls uses a connection that closes with the call.
        let mut client = if call % 2 == 0 { shared.clone() } else { sidecar.client().await };
        let delay = Duration::from_micros(u64::try_from(call % 50).unwrap() * 10);
        let _cancelled = timeout(delay, client.check(check_request(&[("authorization", &bearer)], &[]))).await;
    }
    assert!(accepts_token(&sidecar, &token).await);
    drop(shared);
    wait_for_usage(&sidecar, before).await;
}

#[tokio::test]
async fn clients_that_disconnect_from_envoy_release_files_and_memory() {
    let environment = Environment::start().await;
    let (agent, _) = environment.agent("reader", &["read"]).await;
    let token = agent.token().await;
    environment.call("/", &token).await.expect(200);
    let before = resource_usage(&environment.sidecar).await;
    let address = environment.envoy.listener.url.strip_prefix("http://").unwrap().to_owned();
    let mut callers = JoinSet::new();
    for _ in 0..10 {
        let (address, token) = (address.clone(), token.clone());
        callers.spawn(async move {
            for _ in 0..CALLS / 10 {
                let mut stream = TcpStream::connect(&address).await.unwrap();
                let request = format!("GET / HTTP/1.1\r\nhost: service\r\nauthorization: Bearer {token}\r\n\r\n");
                stream.write_all(request.as_bytes()).await.unwrap();
                drop(stream);
            }
        });
    }
    while let Some(result) = callers.join_next().await {
        result.unwrap();
    }
    // On a busy machine, Envoy's timeout of a check can pass while the sidecar answers the callers that disconnected.
    let passes = async || (environment.call("/", &token).await.status == 200).then_some(());
    eventually("a valid request passes", passes, || environment.sidecar.log()).await;
    let is_refused = async || {
        let refused = environment.call("/", "nonsense").await;
        (refused.error() == (401, "AUTHENTICATION_FAILED", "token_malformed")).then_some(())
    };
    eventually("an invalid token is refused", is_refused, || environment.sidecar.log()).await;
    wait_for_usage(&environment.sidecar, before).await;
}
