//! A thousand calls that nobody waits for: the sidecar goes on, and keeps nothing of them.

use countersign_tests::{Agent, ControlPlane, Environment, Sidecar, eventually, sidecar::request};
use std::time::Duration;
use tokio::{io::AsyncWriteExt, net::TcpStream, task::JoinSet, time::timeout};

const CALLS: usize = 1_000;

/// What a process holds: open files, and MiB of memory.
async fn held(sidecar: &Sidecar) -> (f64, f64) {
    let figure = async |name| sidecar.metric(name).await.unwrap();
    (figure("process_open_fds").await, figure("process_resident_memory_bytes").await / 1024.0 / 1024.0)
}

/// Waits until it holds no more than before, but for a few connections and what an allocator keeps.
async fn holds_no_more(sidecar: &Sidecar, (files, memory): (f64, f64)) {
    let settled = async || {
        let now = held(sidecar).await;
        (now.0 <= files + 4.0 && now.1 <= memory + 32.0).then_some(())
    };
    eventually("files and memory are as before", settled, || format!("before: {files} files, {memory} MiB")).await;
}

async fn good(sidecar: &Sidecar, token: &str) -> bool {
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
    let allowed = async || good(&sidecar, &token).await.then_some(());
    eventually("the token passes", allowed, || sidecar.log()).await;
    let before = held(&sidecar).await;

    let bearer = format!("Bearer {token}");
    let shared = sidecar.client().await;
    for call in 0..CALLS {
        // Half of them on one connection, half with a connection of their own that is gone with them.
        let mut client = if call % 2 == 0 { shared.clone() } else { sidecar.client().await };
        let patience = Duration::from_micros(u64::try_from(call % 50).unwrap() * 10);
        let _cancelled = timeout(patience, client.check(request(&[("authorization", &bearer)], &[]))).await;
    }
    assert!(good(&sidecar, &token).await);
    drop(shared);
    holds_no_more(&sidecar, before).await;
}

#[tokio::test]
async fn clients_that_disconnect_from_envoy_release_files_and_memory() {
    let environment = Environment::start().await;
    let (agent, _) = environment.agent("reader", &["read"]).await;
    let token = agent.token().await;
    environment.call("/", &token).await.expect(200);
    let before = held(&environment.sidecar).await;
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
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    let answered = async || (environment.call("/", &token).await.status == 200).then_some(());
    eventually("a good request passes", answered, || environment.sidecar.log()).await;
    let refused = environment.call("/", "nonsense").await;
    assert_eq!(refused.error(), (401, "AUTHENTICATION_FAILED", "token_malformed"));
    holds_no_more(&environment.sidecar, before).await;
}
