//! TLS to Redis: trusted CAs, client certificates and host names.

use super::{
    fixture::{count_in_log, wait_for_redis_check},
    users::start_control_plane,
};
use countersign_tests::{ControlPlane, Redis, Sentinel, TlsFiles, tools};
use std::{path::Path, process::Command};

const HOST_NAME: &str = "localhost";
const ADDRESS: &str = "127.0.0.1";

/// Starts a control plane and asserts that it serves requests without Redis.
async fn assert_serves_without_redis(settings: &[&str]) -> ControlPlane {
    let control = start_control_plane(settings).await;
    wait_for_redis_check(&control, "down").await;
    control.api.get_as(control.key(), &control.path("/roles")).await.expect(200);
    control
}

/// Number of starts, because the check of the announced hosts at startup may exceed its timeout on a busy machine.
const ATTEMPTS: usize = 5;

#[tokio::test(flavor = "multi_thread")]
async fn redis_certificate_must_come_from_the_configured_ca() {
    let (tls_files, other_files) = (TlsFiles::create(HOST_NAME), TlsFiles::create(HOST_NAME));
    let redis = Redis::start_with_tls(&tls_files, &["tls-auth-clients no"]).await;
    let url = format!("redis.url={}", redis.url());
    let [ca_file, ..] = tls_files.settings();
    wait_for_redis_check(&start_control_plane(&[&url, &ca_file]).await, "up").await;
    let [other_ca_file, ..] = other_files.settings();
    for settings in [&[url.as_str()][..], &[&url, &other_ca_file]] {
        assert_serves_without_redis(settings).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_certificate_is_sent_to_a_redis_that_requires_it() {
    let (tls_files, other_files) = (TlsFiles::create(HOST_NAME), TlsFiles::create(HOST_NAME));
    let redis = Redis::start_with_tls(&tls_files, &[]).await;
    let url = format!("redis.url={}", redis.url());
    let [ca_file, certificate, private_key] = tls_files.settings();
    wait_for_redis_check(&start_control_plane(&[&url, &ca_file, &certificate, &private_key]).await, "up").await;
    assert_serves_without_redis(&[&url, &ca_file]).await;
    let [_, certificate, private_key] = other_files.settings();
    assert_serves_without_redis(&[&url, &ca_file, &certificate, &private_key]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_client_certificate_is_used_for_the_next_connection() {
    let (tls_files, other_files) = (TlsFiles::create(HOST_NAME), TlsFiles::create(HOST_NAME));
    let redis = Redis::start_with_tls(&tls_files, &[]).await;
    let url = format!("redis.url={}", redis.url());
    let folder = tempfile::tempdir().unwrap();
    // The settings name copies, which are those of another authority at first.
    let copy = |files: &TlsFiles| {
        files.settings().map(|setting| {
            let (key, path) = setting.split_once('=').unwrap();
            let path = Path::new(path);
            let copied = folder.path().join(path.file_name().unwrap());
            std::fs::copy(path, &copied).unwrap();
            format!("{key}={}", copied.display())
        })
    };
    let [ca_file, certificate, private_key] = copy(&other_files);
    let control = assert_serves_without_redis(&[&url, &ca_file, &certificate, &private_key]).await;
    copy(&tls_files);
    wait_for_redis_check(&control, "up").await;
}

/// The certificates of servers that a cluster or a Sentinel announces must match the announced hosts. If a certificate
/// does not match, the log contains the announced host at startup.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_checked_against_announced_host_names() {
    for host in [HOST_NAME, ADDRESS] {
        let tls_files = TlsFiles::create(host);
        let cluster = Redis::start_cluster_with_tls(&tls_files).await;
        let url = format!("redis.url={}", cluster.url());
        let [ca_file, certificate, private_key] = tls_files.settings();
        let settings = [url.as_str(), "redis.kind=cluster", &ca_file, &certificate, &private_key];
        // The Redis cluster announces its node as 127.0.0.1.
        if host == ADDRESS {
            wait_for_redis_check(&start_control_plane(&settings).await, "up").await;
            continue;
        }
        let expected =
            format!("the cluster announces a node that cannot be reached - Io: 127.0.0.1:{}", cluster.port());
        let mut control = assert_serves_without_redis(&settings).await;
        for _ in 0..ATTEMPTS {
            if count_in_log(&control, &expected) == 0 {
                // The check of the announced hosts at startup has a timeout of one second, which a busy machine may
                // exceed.
                control = assert_serves_without_redis(&settings).await;
            }
        }
        assert_eq!(count_in_log(&control, &expected), 1, "{}", control.log());
        let host_name_settings =
            [["cluster-announce-hostname", "localhost"], ["cluster-preferred-endpoint-type", "hostname"]];
        for [key, value] in host_name_settings {
            cluster.command::<()>(&["CONFIG", "SET", key, value]).await;
        }
        wait_for_redis_check(&control, "up").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_checked_against_addresses_announced_by_sentinels() {
    let tls_files = TlsFiles::create(ADDRESS);
    let master = Redis::start_with_tls(&tls_files, &[]).await;
    let _replica = Redis::start_replica_of(&master, &[]).await;
    let sentinel = Sentinel::start(&master).await;
    let url = format!("redis.url={}", sentinel.url());
    let [ca_file, certificate, private_key] = tls_files.settings();
    let sentinel_settings = [url.as_str(), "redis.kind=sentinel", "redis.sentinel_master=limits", &ca_file];
    wait_for_redis_check(
        &start_control_plane(&[&sentinel_settings[..], &[&certificate, &private_key]].concat()).await,
        "up",
    )
    .await;
    assert_serves_without_redis(&sentinel_settings).await;
}

/// Exit code and error output of a start and of `config check` with these settings.
fn startup_and_check_errors(settings: &[String], folder: &Path) -> [(Option<i32>, String); 2] {
    [&["--dev"][..], &["config", "check", "--dev"]].map(|arguments| {
        let mut command = Command::new(tools::binary("countersign-control-plane"));
        command.args(arguments).current_dir(folder);
        let ports = ["listen.api", "listen.sync", "listen.admin"].map(|key| format!("{key}=127.0.0.1:0"));
        for setting in ports.iter().chain(settings) {
            command.args(["--set", setting]);
        }
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    })
}

#[test]
fn invalid_tls_files_are_refused_with_the_setting() {
    let (tls_files, other_files) = (TlsFiles::create(HOST_NAME), TlsFiles::create(HOST_NAME));
    let folder = tempfile::tempdir().unwrap();
    let invalid_file = folder.path().join("invalid.pem");
    std::fs::write(&invalid_file, "not PEM").unwrap();
    let [ca_file, certificate, private_key] = tls_files.settings();
    let [_, _, other_key] = other_files.settings();
    let valid_settings = ["redis.url=rediss://127.0.0.1:1".to_owned(), ca_file, certificate, private_key];
    let mut cases = vec![(other_key, "redis.certificate, redis.private_key: ")];
    for key in ["redis.ca_file", "redis.certificate", "redis.private_key"] {
        cases.push((format!("{key}=/nowhere/at.all"), key));
        cases.push((format!("{key}={}", invalid_file.display()), key));
    }
    for (invalid_setting, expected_text) in cases {
        let [start, check] = startup_and_check_errors(
            &[&valid_settings[..], std::slice::from_ref(&invalid_setting)].concat(),
            folder.path(),
        );
        for ((code, error), expected) in [(start, 1), (check, 2)] {
            assert!(code == Some(expected) && error.contains(expected_text), "{invalid_setting}: {code:?} {error}");
            assert!(!error.contains("BEGIN"), "{error}");
        }
    }
    let [_, (code, error)] = startup_and_check_errors(
        &[&valid_settings[..2], &["redis.certificate=x.pem".to_owned()]].concat(),
        folder.path(),
    );
    assert!(code == Some(2) && error.contains("redis.private_key: set it"), "{error}");
}
