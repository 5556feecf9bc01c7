//! Which processes of sidecars a receipt counts, and for how long.

use super::*;

/// A new stream of the same process replaces the earlier one, even before the control plane knows that the earlier one has ended.
#[tokio::test]
async fn streams_of_one_process_count_once() {
    let fixture = Fixture::new(0, &[]).await;
    let (first, revision) = fixture.confirmed_sidecar(hello_of(3)).await;
    fixture.wait_for_list(1).await;
    let resumed = Hello { revision, stream_number: 2, ..hello_of(3) };
    let mut second = fixture.follow(resumed).await;
    second.ping(1).await.unwrap();
    second.report(revision).await;
    assert_eq!(fixture.wait_for_list(1).await[0]["instance"], instance_text(3));
    drop(first);
    let receipt = fixture.complete_receipt(revision).await;
    assert_eq!(receipt["sidecars"], 1, "{receipt}");
}

/// After an API key is replaced, the process decides with the data of the new stream. So the stream with the old key no longer
/// counts.
#[tokio::test]
async fn stream_of_a_replaced_key_is_replaced() {
    let fixture = Fixture::new(0, &[]).await;
    let control = &fixture.control;
    let (first, revision) = fixture.confirmed_sidecar(hello_of(3)).await;
    drop(first);
    let key = control.create_key(control.service(), "sync").await;
    let resumed = Hello { revision, stream_number: 2, ..hello_of(3) };
    let channel = follower::channel(control).await;
    let mut second = Follower::open_with_hello(channel, &key, resumed).await.unwrap();
    second.ping(1).await.unwrap();
    let replaced = async || {
        let listed = fixture.list().await;
        (listed.len() == 1 && listed[0]["status"] == "connected").then(|| listed[0].clone())
    };
    let sidecar = eventually("the stream is replaced", replaced, || control.log()).await;
    assert!(key.contains(&sidecar["keyId"].as_str().unwrap()["key_".len()..]), "{sidecar}");
}

/// Another process says that it has taken over the copy of this one. The disk may have been cloned, so a process whose stream is
/// open has not ended.
#[tokio::test]
async fn process_is_forgotten_in_favor_of_the_owner_of_its_copy_after_its_stream_has_ended() {
    let fixture = Fixture::new(0, &[]).await;
    let (mut first, _) = fixture.confirmed_sidecar(hello_of(3)).await;
    let (_clone, _) = fixture.confirmed_sidecar(Hello { previous_instance: vec![3; 16], ..hello_of(5) }).await;
    // The control plane tries several times per second to forget the process, so a second suffices to show that it fails.
    tokio::time::sleep(Duration::from_secs(1)).await;
    first.ping(2).await.unwrap();
    assert_eq!(fixture.list().await.len(), 2, "the process is connected");
    drop(first);
    let mut heir = fixture.follow(Hello { previous_instance: vec![3; 16], ..hello_of(6) }).await;
    let revision = last_page(&mut heir).await;
    heir.report(revision).await;
    let listed = async || {
        let list = fixture.list().await;
        list.iter().all(|sidecar| sidecar["instance"] != instance_text(3)).then_some(())
    };
    eventually("the process is forgotten", listed, || fixture.control.log()).await;
}

/// The process asks for a new snapshot, but until it has one, it still decides with the data that an earlier stream has confirmed.
#[tokio::test]
async fn process_that_connects_without_a_revision_counts_as_confirmed() {
    let mut fixture = Fixture::new(0, &[]).await;
    let (first, _) = fixture.confirmed_sidecar(hello_of(3)).await;
    fixture.control.kill();
    fixture.control.restart().await;
    let mut second = fixture.follow(Hello { stream_number: 2, ..hello_of(3) }).await;
    last_page(&mut second).await;
    drop((first, second));
    let silent = async || fixture.list().await.pop().filter(|sidecar| sidecar["status"] == "silent");
    eventually("the process is silent", silent, || fixture.control.log()).await;
    fixture.unconfirmed_receipt(&format!("revision={}", fixture.change(false).await)).await;
}

/// The sidecar does not know the shorter maximum staleness, so without contact, it may decide for as long as the earlier one
/// allows.
#[tokio::test]
async fn shorter_max_staleness_does_not_apply_to_processes_that_decide_already() {
    let mut fixture = Fixture::new(0, &["sync.max_staleness_seconds=3000"]).await;
    let (_first, revision) = fixture.confirmed_sidecar(hello_of(3)).await;
    fixture.control.restart_with("sync.max_staleness_seconds=30").await;
    let resumed = Hello { revision, stream_number: 2, ..hello_of(3) };
    let mut second = fixture.follow(resumed).await;
    second.ping(1).await.unwrap();
    let receipt = fixture.receipt(&format!("revision={}", fixture.change(false).await)).await.expect(200);
    let refuses_by: jiff::Timestamp = receipt["refusesBy"].as_str().unwrap().parse().unwrap();
    let remaining = refuses_by.as_microsecond() - SystemClock.now().micros();
    assert!(remaining > 2_000_000_000, "{receipt}");
}

/// The copy on disk may be older than the view. Until the process reports, it could restart from the copy and decide without the
/// change.
#[tokio::test]
async fn resumed_data_is_in_force_when_it_is_reported() {
    let fixture = Fixture::new(0, &[]).await;
    let (_first, _) = fixture.confirmed_sidecar(hello_of(3)).await;
    let revoked = fixture.change(false).await;
    let mut second = fixture.follow(Hello { revision: revoked, stream_number: 2, ..hello_of(3) }).await;
    let settings = second.delta().await;
    second.ping(1).await.unwrap();
    fixture.unconfirmed_receipt(&format!("revision={revoked}&wait=1")).await;
    second.report(settings.revision).await;
    fixture.complete_receipt(revoked).await;
}

/// The owner of another service has a stream that never reports, and the deployment changes all the time. The stream delays the
/// audit entries only until its data would be too old.
#[tokio::test]
async fn silent_stream_of_a_stranger_delays_the_audit_log_of_the_deployment_only_until_it_is_stale() {
    let fixture = Fixture::new(0, &["sync.max_staleness_seconds=5"]).await;
    let mut silent = fixture.follow(hello_of(3)).await;
    last_page(&mut silent).await;
    silent.ping(1).await.unwrap();
    let mut is_suspended = false;
    let confirmed = async || {
        is_suspended = !is_suspended;
        let status = if is_suspended { "suspended" } else { "active" };
        fixture.control.set_status(&fixture.agent.id, status).await.expect(200);
        let entries = fixture.audit_entries("", "changes.enforced").await;
        entries.into_iter().find(|entry| entry["serviceId"].is_null() && entry["details"]["expiredSidecars"] == 1)
    };
    eventually("changes of the deployment are confirmed", confirmed, || fixture.control.log()).await;
}
