//! A sync stream whose client sends no pings ends, and one whose client pings continues.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_control_plane::Dependencies;
use countersign_tests::{Follower, InProcessServer, follower::connect};
use std::{path::Path, time::Duration};
use tokio::time::{sleep, timeout};
use tonic::Code;

/// Short, so that a stream may be silent for about a second instead of three minutes.
const KEY_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Longer than a stream may be silent.
const LONG_SILENCE: Duration = Duration::from_secs(3);

async fn open_stream(server: &InProcessServer, folder: &Path) -> Follower {
    let authority = std::fs::read(folder.join("ca.pem")).unwrap();
    let channel = connect(&format!("https://localhost:{}", server.sync.port()), &authority).await;
    let mut follower = Follower::open(channel, &InProcessServer::env(folder, "SERVICE_KEY"), 0).await.unwrap();
    assert!(follower.snapshot().await.last);
    follower
}

#[tokio::test]
async fn stream_ends_only_if_its_client_sends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let dependencies = Dependencies { key_check_interval: KEY_CHECK_INTERVAL, ..Dependencies::default() };
    let server = InProcessServer::start_with(folder.path(), &[], dependencies).await;
    let mut silent = open_stream(&server, folder.path()).await;
    let mut alive = open_stream(&server, folder.path()).await;
    let pings = async {
        for number in 1..=u64::try_from(LONG_SILENCE.as_millis() / 100).unwrap() {
            alive.ping(number).await.unwrap();
            sleep(Duration::from_millis(100)).await;
        }
    };
    let (end, ()) = tokio::join!(timeout(LONG_SILENCE * 10, silent.next()), pings);
    let status = end.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("no ping for too long"), "{status}");
    // The first stream was silent from the beginning, and this one is silent from now on.
    let status = timeout(LONG_SILENCE * 10, alive.next()).await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
}
