//! TLS to Redis: trusted CAs, client certificates and host names.

use super::{
    fixture::{logged, says},
    places::alone,
};
use countersign_tests::{ControlPlane, Redis, Sentinel, TlsFiles, tools};
use std::{path::Path, process::Command};

const AT_NAME: &str = "localhost";
const AT_ADDRESS: &str = "127.0.0.1";

/// The control plane serves without Redis.
async fn serves_without(settings: &[&str]) -> ControlPlane {
    let control = alone(settings).await;
    says(&control, "down").await;
    control.api.get_as(control.key(), &control.path("/roles")).await.expect(200);
    control
}

/// Attempts of a step that a busy machine may miss.
const TRIES: usize = 5;

#[tokio::test(flavor = "multi_thread")]
async fn redis_certificate_must_come_from_the_configured_ca() {
    let (tls_files, others) = (TlsFiles::for_servers_at(AT_NAME), TlsFiles::for_servers_at(AT_NAME));
    let redis = Redis::start_with_tls(&tls_files, &["tls-auth-clients no"]).await;
    let url = format!("redis.url={}", redis.url());
    let [file, ..] = tls_files.settings();
    says(&alone(&[&url, &file]).await, "up").await;
    let [other_file, ..] = others.settings();
    for settings in [&[url.as_str()][..], &[&url, &other_file]] {
        serves_without(settings).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_certificate_is_sent_to_a_redis_that_requires_it() {
    let (tls_files, others) = (TlsFiles::for_servers_at(AT_NAME), TlsFiles::for_servers_at(AT_NAME));
    let redis = Redis::start_with_tls(&tls_files, &[]).await;
    let url = format!("redis.url={}", redis.url());
    let [ca_file, certificate, private_key] = tls_files.settings();
    says(&alone(&[&url, &ca_file, &certificate, &private_key]).await, "up").await;
    serves_without(&[&url, &ca_file]).await;
    let [_, certificate, private_key] = others.settings();
    serves_without(&[&url, &ca_file, &certificate, &private_key]).await;
}

/// Servers that a cluster or a Sentinel announces must match their certificates; otherwise the log says so at
/// startup.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_checked_against_announced_host_names() {
    for host in [AT_NAME, AT_ADDRESS] {
        let tls_files = TlsFiles::for_servers_at(host);
        let cluster = Redis::start_cluster_with_tls(&tls_files).await;
        let url = format!("redis.url={}", cluster.url());
        let [ca_file, certificate, private_key] = tls_files.settings();
        let settings = [url.as_str(), "redis.kind=cluster", &ca_file, &certificate, &private_key];
        // It announces 127.0.0.1.
        if host == AT_ADDRESS {
            says(&alone(&settings).await, "up").await;
            continue;
        }
        let said = format!("the cluster names a node that cannot be reached - Io: 127.0.0.1:{}", cluster.port());
        let mut control = serves_without(&settings).await;
        for _ in 0..TRIES {
            if logged(&control, &said) == 0 {
                // The lookup takes at most a second, which a busy machine may exceed.
                control = serves_without(&settings).await;
            }
        }
        assert_eq!(logged(&control, &said), 1, "{}", control.log());
        let named = [["cluster-announce-hostname", "localhost"], ["cluster-preferred-endpoint-type", "hostname"]];
        for [key, value] in named {
            cluster.command::<()>(&["CONFIG", "SET", key, value]).await;
        }
        says(&control, "up").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_checked_against_addresses_announced_by_sentinels() {
    let tls_files = TlsFiles::for_servers_at(AT_ADDRESS);
    let master = Redis::start_with_tls(&tls_files, &[]).await;
    let _replica = Redis::start_replica_of(&master, &[]).await;
    let sentinel = Sentinel::watching(&master).await;
    let url = format!("redis.url={}", sentinel.url());
    let [ca_file, certificate, private_key] = tls_files.settings();
    let by_sentinel = [url.as_str(), "redis.kind=sentinel", "redis.sentinel_master=limits", &ca_file];
    says(&alone(&[&by_sentinel[..], &[&certificate, &private_key]].concat()).await, "up").await;
    serves_without(&by_sentinel).await;
}

/// The errors of a start and of `config check` with these settings.
fn refusals(settings: &[String], folder: &Path) -> [(Option<i32>, String); 2] {
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
    let (tls_files, others) = (TlsFiles::for_servers_at(AT_NAME), TlsFiles::for_servers_at(AT_NAME));
    let folder = tempfile::tempdir().unwrap();
    let junk = folder.path().join("junk");
    std::fs::write(&junk, "what is no PEM").unwrap();
    let [ca_file, certificate, private_key] = tls_files.settings();
    let [_, _, other_key] = others.settings();
    let good = ["redis.url=rediss://127.0.0.1:1".to_owned(), ca_file, certificate, private_key];
    let mut cases = vec![(other_key, "redis.certificate, redis.private_key: ")];
    for key in ["redis.ca_file", "redis.certificate", "redis.private_key"] {
        cases.push((format!("{key}=/nowhere/at.all"), key));
        cases.push((format!("{key}={}", junk.display()), key));
    }
    for (bad, said) in cases {
        let [start, check] = refusals(&[&good[..], std::slice::from_ref(&bad)].concat(), folder.path());
        for ((code, error), expected) in [(start, 1), (check, 2)] {
            assert!(code == Some(expected) && error.contains(said), "{bad}: {code:?} {error}");
            assert!(!error.contains("BEGIN"), "{error}");
        }
    }
    let [_, (code, error)] = refusals(&[&good[..2], &["redis.certificate=x.pem".to_owned()]].concat(), folder.path());
    assert!(code == Some(2) && error.contains("redis.private_key: set it"), "{error}");
}
