//! TLS to Redis: trusted CAs, client certificates and host names.

use super::{
    fixture::{ATTEMPTS, count_in_log, wait_for_redis_check},
    users::{redis_url, start_control_plane},
};
use countersign_tests::{ControlPlane, Redis, Sentinel, TlsFiles, tools};
use std::{path::Path, process::Command};

const HOST_NAME: &str = "localhost";
const ADDRESS: &str = "127.0.0.1";

/// Starts a control plane and asserts that it serves requests without Redis.
async fn assert_serves_without_redis(url: &str) -> ControlPlane {
    let control = start_control_plane(&[url]).await;
    wait_for_redis_check(&control, "down").await;
    control.api.get_as(control.key(), &control.path("/roles")).await.expect(200);
    control
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_certificate_must_come_from_the_configured_ca() {
    let (tls_files, other_files) = (TlsFiles::create(HOST_NAME), TlsFiles::create(HOST_NAME));
    let redis = Redis::start_with_tls(&tls_files, &["tls-auth-clients no"]).await;
    let url = |parameters: &[String]| redis_url(&redis.url(), "", parameters);
    let [ca_file, ..] = tls_files.parameters();
    wait_for_redis_check(&start_control_plane(&[&url(&[ca_file])]).await, "up").await;
    let [other_ca_file, ..] = other_files.parameters();
    for parameters in [&[][..], &[other_ca_file]] {
        assert_serves_without_redis(&url(parameters)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_certificate_is_sent_to_a_redis_that_requires_it() {
    let (tls_files, other_files) = (TlsFiles::create(HOST_NAME), TlsFiles::create(HOST_NAME));
    let redis = Redis::start_with_tls(&tls_files, &[]).await;
    let url = |parameters: &[String]| redis_url(&redis.url(), "", parameters);
    wait_for_redis_check(&start_control_plane(&[&url(&tls_files.parameters())]).await, "up").await;
    let [ca_file, ..] = tls_files.parameters();
    assert_serves_without_redis(&url(std::slice::from_ref(&ca_file))).await;
    let [_, certificate, private_key] = other_files.parameters();
    assert_serves_without_redis(&url(&[ca_file, certificate, private_key])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_client_certificate_is_used_for_the_next_connection() {
    let (tls_files, other_files) = (TlsFiles::create(HOST_NAME), TlsFiles::create(HOST_NAME));
    let redis = Redis::start_with_tls(&tls_files, &[]).await;
    let folder = tempfile::tempdir().unwrap();
    // The setting names copies of the files. At first, they are copies of files from another authority.
    let copy = |files: &TlsFiles| {
        files.parameters().map(|parameter| {
            let (name, path) = parameter.split_once('=').unwrap();
            let path = Path::new(path);
            let copied = folder.path().join(path.file_name().unwrap());
            std::fs::copy(path, &copied).unwrap();
            format!("{name}={}", copied.display())
        })
    };
    let control = assert_serves_without_redis(&redis_url(&redis.url(), "", &copy(&other_files))).await;
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
        let url = redis_url(&cluster.url(), "+cluster", &tls_files.parameters());
        // The Redis cluster announces its node as 127.0.0.1.
        if host == ADDRESS {
            wait_for_redis_check(&start_control_plane(&[&url]).await, "up").await;
            continue;
        }
        let expected = format!("announces a node that cannot be reached - Io: 127.0.0.1:{}", cluster.port());
        let mut control = assert_serves_without_redis(&url).await;
        for _ in 0..ATTEMPTS {
            if count_in_log(&control, &expected) == 0 {
                // The check of the announced hosts at startup has a timeout of one second, which a busy machine may exceed.
                control = assert_serves_without_redis(&url).await;
            }
        }
        assert_eq!(count_in_log(&control, &expected), 1, "{}", control.log());
        cluster.command::<()>(&["CONFIG", "SET", "cluster-announce-hostname", "localhost"]).await;
        cluster.command::<()>(&["CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname"]).await;
        wait_for_redis_check(&control, "up").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_checked_against_addresses_announced_by_sentinels() {
    let tls_files = TlsFiles::create(ADDRESS);
    let master = Redis::start_with_tls(&tls_files, &[]).await;
    let _replica = Redis::start_replica_of(&master, &[]).await;
    let sentinel = Sentinel::start(&master).await;
    let [ca_file, certificate, private_key] = tls_files.parameters();
    let without_certificate = ["master=limits".to_owned(), ca_file];
    let parameters = [&without_certificate[..], &[certificate, private_key]].concat();
    let url = |parameters: &[String]| redis_url(&sentinel.url(), "+sentinel", parameters);
    wait_for_redis_check(&start_control_plane(&[&url(&parameters)]).await, "up").await;
    assert_serves_without_redis(&url(&without_certificate)).await;
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
    let [_, _, other_key] = other_files.parameters();
    let mut cases = vec![(other_key, "redis.url: sslcert, sslkey: ".to_owned())];
    for name in ["sslrootcert", "sslcert", "sslkey"] {
        cases.push((format!("{name}=/nowhere/at.all"), format!("redis.url: {name}: ")));
        cases.push((format!("{name}={}", invalid_file.display()), format!("redis.url: {name}: ")));
    }
    let setting = |parameters: &[String]| redis_url("rediss://127.0.0.1:1", "", parameters);
    for (invalid, expected_text) in cases {
        let (name, _) = invalid.split_once('=').unwrap();
        let replaced = |valid: String| if valid.starts_with(&format!("{name}=")) { invalid.clone() } else { valid };
        let url = setting(&tls_files.parameters().map(replaced));
        let [start, check] = startup_and_check_errors(&[url], folder.path());
        for ((code, error), expected) in [(start, 1), (check, 2)] {
            assert!(code == Some(expected) && error.contains(&expected_text), "{invalid}: {code:?} {error}");
            assert!(!error.contains("BEGIN"), "{error}");
        }
    }
    let [_, (code, error)] = startup_and_check_errors(&[setting(&["sslcert=x.pem".to_owned()])], folder.path());
    assert!(code == Some(2) && error.contains("redis.url: add the parameter sslkey"), "{error}");
}
