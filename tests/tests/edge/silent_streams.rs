//! A sync stream whose client sends no pings ends, and one whose client pings continues.

use countersign_control_plane::Dependencies;
use countersign_tests::InProcessServer;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tonic::Code;

/// So short that a stream may be silent for only about a second instead of three minutes.
const KEY_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// A time that is longer than a stream may be silent.
const LONG_SILENCE: Duration = Duration::from_secs(3);

#[tokio::test]
async fn stream_ends_only_if_its_client_sends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let dependencies = Dependencies { key_check_interval: KEY_CHECK_INTERVAL, ..Dependencies::default() };
    let server = InProcessServer::start_with(folder.path(), &[], dependencies).await;
    let mut silent = server.follow(folder.path()).await;
    let mut alive = server.follow(folder.path()).await;
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
