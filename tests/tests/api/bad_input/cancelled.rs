//! A thousand cancelled calls: the sidecar keeps serving and releases their resources.

use countersign_tests::{Agent, ControlPlane, Environment, Sidecar, eventually, sidecar::request};
use std::time::Duration;
use tokio::{io::AsyncWriteExt, net::TcpStream, task::JoinSet, time::timeout};

const CALLS: usize = 1_000;

/// Open files and memory in MiB of a process.
async fn resource_usage(sidecar: &Sidecar) -> (f64, f64) {
    let figure = async |name| sidecar.metric(name).await.unwrap();
    (figure("process_open_fds").await, figure("process_resident_memory_bytes").await / 1024.0 / 1024.0)
}

/// Waits until usage is as before, apart from a few connections and memory that the allocator keeps.
async fn await_usage(sidecar: &Sidecar, (files, memory): (f64, f64)) {
    let settled = async || {
        let now = resource_usage(sidecar).await;
        (now.0 <= files + 4.0 && now.1 <= memory + 32.0).then_some(())
    };
    eventually("files and memory are as before", settled, || format!("before: {files} files, {memory} MiB")).await;
}

async fn token_passes(sidecar: &Sidecar, token: &str) -> bool {
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
    let allowed = async || token_passes(&sidecar, &token).await.then_some(());
    eventually("the token passes", allowed, || sidecar.log()).await;
    let before = resource_usage(&sidecar).await;

    let bearer = format!("Bearer {token}");
    let shared = sidecar.client().await;
    for call in 0..CALLS {
        // Half of the calls share one connection; the others each use a connection that closes with the call.
        let mut client = if call % 2 == 0 { shared.clone() } else { sidecar.client().await };
        let delay = Duration::from_micros(u64::try_from(call % 50).unwrap() * 10);
        let _cancelled = timeout(delay, client.check(request(&[("authorization", &bearer)], &[]))).await;
    }
    assert!(token_passes(&sidecar, &token).await);
    drop(shared);
    await_usage(&sidecar, before).await;
}

#[tokio::test]
async fn clients_that_disconnect_from_envoy_release_files_and_memory() {
    let environment = Environment::start().await;
    let (agent, _) = environment.agent("reader", &["read"]).await;
    let token = agent.token().await;
    environment.call("/", &token).await.expect(200);
    let before = resource_usage(&environment.sidecar).await;
    let address = environment.envoy.site.url.strip_prefix("http://").unwrap().to_owned();
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
    let passes = async || (environment.call("/", &token).await.status == 200).then_some(());
    eventually("a good request passes", passes, || environment.sidecar.log()).await;
    let refused = environment.call("/", "nonsense").await;
    assert_eq!(refused.error(), (401, "AUTHENTICATION_FAILED", "token_malformed"));
    await_usage(&environment.sidecar, before).await;
}
