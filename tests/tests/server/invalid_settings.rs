//! Tests that an error about a setting or a file names the setting, the value and the correction, at a start and in `config check`.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{ControlPlane, eventually, tools};
use std::{
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

fn run(program: &str, arguments: &[&str], settings: &[&str]) -> (Option<i32>, String) {
    // A server that starts, because a setting is accepted, ends with the status of `timeout`.
    let mut command = Command::new("timeout");
    command
        .arg("60")
        .arg(tools::binary(program))
        .args(arguments)
        .env("COUNTERSIGN_SYNC__KEYS", "svc_sk_a")
        .current_dir(std::env::temp_dir());
    if program == "countersign-control-plane" {
        command.env_remove("COUNTERSIGN_SYNC__KEYS");
    }
    for setting in settings {
        command.args(["--set", setting]);
    }
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(stdout.is_empty(), "{settings:?}: {}", String::from_utf8_lossy(&stdout));
    (status.code(), String::from_utf8(stderr).unwrap())
}

/// Exit codes and error outputs of a start and of `config check`.
fn start_and_check(arguments: &[&str], settings: &[&str]) -> [(Option<i32>, String); 2] {
    [&["serve"][..], &["config", "check"]]
        .map(|command| run("countersign-control-plane", &[command, arguments].concat(), settings))
}

/// Settings with which a control plane starts, in this folder.
fn valid_settings(folder: &Path) -> Vec<String> {
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(folder.join("certificate.pem"), pair.cert.pem()).unwrap();
    std::fs::write(folder.join("key.pem"), pair.signing_key.serialize_pem()).unwrap();
    let folder = folder.display();
    let files = [
        format!("data_dir={folder}/data"),
        format!("tls.certificate={folder}/certificate.pem"),
        format!("tls.private_key={folder}/key.pem"),
    ];
    let others = [
        "public_url=https://id.example",
        "listen.api=127.0.0.1:0",
        "listen.sync=127.0.0.1:0",
        "listen.admin=127.0.0.1:0",
    ];
    files.into_iter().chain(others.map(str::to_owned)).collect()
}

fn with<'a>(valid: &'a [String], changed: &[&'a str]) -> Vec<&'a str> {
    valid.iter().map(String::as_str).chain(changed.iter().copied()).collect()
}

#[test]
fn invalid_value_is_refused_with_the_setting_the_value_and_the_correction() {
    let folder = tempfile::tempdir().unwrap();
    let valid = valid_settings(folder.path());
    let cases: [(&[&str], &str); 31] = [
        (&["public_url="], "no public_url: set it to the https:// URL"),
        (&["public_url=id.example"], "public_url: `id.example` does not begin with `https://`: set it"),
        (&["public_url=http://id.example"], "public_url: `http://id.example` does not begin with `https://`: set it"),
        (&["public_url=https://"], "public_url: `https://` has no host: set it"),
        (&["public_url=https:///x"], "public_url: `https:///x` has no host: set it"),
        (&["public_url=https://id example"], "public_url: `https://id example` is not a valid URL: set it"),
        (&["public_url=https://id.example/?a=b"], "public_url: `https://id.example/?a=b` has a query or a fragment"),
        (&["public_url=https://id.example#a"], "public_url: `https://id.example#a` has a query or a fragment"),
        (&["limits.auth_per_minute=0"], "limits.auth_per_minute: 0 must be from 1 to 1000000 calls"),
        (&["limits.address_per_minute=1000001"], "limits.address_per_minute: 1000001 must be from 1 to 1000000"),
        (&["limits.address_per_minute=many"], "`limits.address_per_minute` in a flag: invalid type: string \"many\""),
        (&["tokens.access_seconds=0"], "tokens.access_seconds: 0 must be at least 1"),
        (&["tokens.refresh_seconds=0"], "tokens.refresh_seconds: 0 must be at least 1"),
        (&["connections.max=0"], "connections.max: 0 must be from 1 to 1000000"),
        (&["log.format=xml"], "`log.format` in a flag: `xml` must be `json` or `text`\n"),
        (&["log.level=loud"], "log.level: `loud` must be off, error, warn, info, debug or trace"),
        (&["log.level=info,a=loud"], "log.level: `info,a=loud`: "),
        (&["listen.api=localhost:8443"], "`listen.api` in a flag: `localhost:8443` must be an IP address and a port"),
        (&["listen.sync=:8444"], "`listen.sync` in a flag: `:8444` must be an IP address and a port, such as"),
        (
            &["listen.api=127.0.0.1:7", "listen.sync=127.0.0.1:7"],
            "listen.api, listen.sync: 127.0.0.1:7 and 127.0.0.1:7 need the same port: set different ports",
        ),
        (
            &["listen.sync=0.0.0.0:7", "listen.admin=127.0.0.1:7"],
            "listen.sync, listen.admin: 0.0.0.0:7 and 127.0.0.1:7",
        ),
        (&["listen.api=127.0.0.1:7", "listen.sync=[::]:7"], "listen.api, listen.sync: 127.0.0.1:7 and [::]:7"),
        (&["tokenz.access_seconds=5"], "unknown setting `tokenz.access_seconds` in a flag: did you mean"),
        (&["secrets.master_key=hunter2"], "secrets.master_key: must be 32 bytes as 64 hex characters"),
        (&["registration.public_agents=1000001"], "registration.public_agents: 1000001 must be from 0 to 1000000"),
        (&["database.url=mysql://localhost/x"], "set sqlite://<path> or postgres://"),
        (&["nope=5"], "unknown setting `nope` in a flag\n"),
        (&["tls.certificate="], "no TLS: set tls.certificate and tls.private_key"),
        (&["proxies.trusted=0.0.0.0/0"], "every address; list specific networks"),
        (&["webhooks.allowed_networks=inside"], "`webhooks.allowed_networks[0]` in a flag"),
        (&["webhooks.concurrency=1"], "webhooks.concurrency: must be from 2 to 4096"),
    ];
    for (changed, expected) in cases {
        for (code, error) in start_and_check(&[], &with(&valid, changed)) {
            assert!(code == Some(2) && error.contains(expected), "{changed:?}: expected {expected}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
    for url in [
        "public_url=https://user:hunter2@id.example",
        "public_url=user:hunter2@id.example",
        "public_url=https://@id.example",
    ] {
        for (code, error) in start_and_check(&[], &with(&valid, &[url])) {
            assert!(code == Some(2) && error.contains("public_url: ") && !error.contains("hunter2"), "{error}");
        }
    }
    for valid_value in ["public_url=https://id.example/agents/", "log.level=info,hyper=debug", "log.level=0"] {
        assert_eq!(check(&with(&valid, &[valid_value])), "ok\n", "{valid_value}");
    }
}

fn check(settings: &[&str]) -> String {
    let mut command = Command::new(tools::binary("countersign-control-plane"));
    for setting in settings {
        command.args(["--set", setting]);
    }
    let output = command.args(["config", "check"]).output().unwrap();
    assert!(output.status.success(), "{settings:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn all_invalid_values_of_a_file_are_reported_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.toml");
    let unreadable = "public_ulr = \"x\"\n[limits]\naddress_per_minute = \"many\"\n[log]\nformat = \"xml\"\n";
    let out_of_range = "[limits]\naddress_per_minute = 0\nauth_per_minute = 0\n[tokens]\naccess_seconds = 0\n";
    for (text, expected) in [
        (unreadable, &["`public_ulr`", "`limits.address_per_minute` in", "`log.format` in"][..]),
        (
            out_of_range,
            &["no public_url", "no TLS", "address_per_minute: 0", "auth_per_minute: 0", "access_seconds: 0"],
        ),
    ] {
        std::fs::write(&file, text).unwrap();
        for (code, error) in start_and_check(&["--config", file.to_str().unwrap()], &[]) {
            assert_eq!((code, error.lines().count()), (Some(2), expected.len()), "{error}");
            assert!(error.lines().all(|line| line.starts_with("countersign-control-plane: ")), "{error}");
            assert!(expected.iter().all(|text| error.contains(text)), "{error}");
        }
    }
    for (code, error) in start_and_check(&["--config", "/nowhere.toml"], &[]) {
        assert!(code == Some(2) && error.contains("/nowhere.toml"), "{error}");
    }
}

#[test]
fn config_check_refuses_the_files_that_a_start_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let valid = valid_settings(folder.path());
    let data = folder.path().join("data");
    assert_eq!(check(&with(&valid, &[])), "ok\n");
    assert!(!data.exists(), "config check creates nothing");
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    valid_settings(&other);
    let text = folder.path().join("text");
    std::fs::write(&text, "text").unwrap();
    let setting = |key: &str, path: &Path| format!("{key}={}", path.display());
    let issuer = ["humans.issuers.corp.issuer=https://login.example", "humans.issuers.corp.audience=a"];
    let mut cases = vec![
        (vec![setting("tls.private_key", &other.join("key.pem"))], "tls.certificate, tls.private_key: "),
        (vec![setting("data_dir", &text)], "data_dir: "),
    ];
    for key in ["tls.certificate", "tls.private_key", "webhooks.ca_file"] {
        cases.push((vec![setting(key, &folder.path().join("missing"))], key));
        cases.push((vec![setting(key, &text)], key));
    }
    for key in ["humans.issuers.corp.jwks", "humans.issuers.corp.ca_file"] {
        for file in [&text, &folder.path().join("missing")] {
            cases.push((vec![setting(key, file), issuer[0].to_owned(), issuer[1].to_owned()], key));
        }
    }
    for (changed, expected) in cases {
        let changed: Vec<_> = changed.iter().map(String::as_str).collect();
        let [(started, start_error), (checked, check_error)] = start_and_check(&[], &with(&valid, &changed));
        assert!(started == Some(1) && start_error.contains(expected), "{changed:?}: {start_error}");
        assert!(checked == Some(2) && check_error.contains(expected), "{changed:?}: {check_error}");
    }
    std::fs::create_dir_all(&data).unwrap();
    for (name, content, expected) in [
        ("operator.key", &b"text"[..], "delete it and start the server, which creates a new key"),
        ("operator.key", b"\xff", "delete it and start the server, which creates a new key"),
        ("master.key", b"abcd", "only a new deployment can use a new one"),
        ("master.key", b"\xff", "only a new deployment can use a new one"),
    ] {
        let file = data.join(name);
        std::fs::write(&file, content).unwrap();
        let in_development = run("countersign-control-plane", &["config", "check", "--dev"], &with(&valid, &[]));
        for (code, error) in start_and_check(&[], &with(&valid, &[])).into_iter().chain([in_development]) {
            assert!(code.is_some_and(|code| code > 0) && error.contains(file.to_str().unwrap()), "{name}: {error}");
            assert!(error.contains(expected), "{name}: {error}");
        }
        std::fs::remove_file(file).unwrap();
    }
}

#[tokio::test]
async fn secret_files_that_other_users_can_read_are_reported() {
    let mut control = ControlPlane::start_one_with(&["database.url="]).await;
    assert!(!control.log().contains("other users of this machine"), "{}", control.log());
    for name in ["master.key", "operator.key"] {
        let file = control.folder().join(name);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    }
    control.restart().await;
    for (secret, name) in [("master key", "master.key"), ("operator key", "operator.key")] {
        let file = control.folder().join(name);
        let file = file.display();
        let expected = format!("other users of this machine have access to the {secret}: run `chmod 600 {file}`");
        let line = async || control.log().lines().find(|line| line.contains(&expected)).map(str::to_owned);
        let line = eventually("the start warns", line, || control.log()).await;
        assert!(line.contains("WARN") && line.contains("0644"), "{line}");
    }
}

#[test]
fn sidecar_reports_all_invalid_values_with_their_settings() {
    let run_sidecar = |settings: &[&str]| run("countersign-ext-authz", &[], settings);
    for (settings, expected) in [
        (&["listen.grpc=here:port"][..], "`listen.grpc` in a flag: `here:port` must be an address such as"),
        (&["listen.admin=9092"], "`listen.admin` in a flag: `9092` must be an address such as `127.0.0.1:9092`\n"),
        (
            &["listen.admin=127.0.0.1:7", "listen.grpc=127.0.0.1:7"],
            "listen.grpc, listen.admin: both are 127.0.0.1:7: set different ports",
        ),
        (&["log.level=loud"], "countersign-ext-authz: log.level: `loud` must be off, error, warn"),
        (&["log.format=xml"], "`log.format` in a flag: `xml` must be `json` or `text`\n"),
        (&["headers.prefix=X-"], "`headers.prefix` in a flag: `X-` must be lower-case letters"),
        (&["sync.keys=hunter2"], "`sync.keys[0]` in a flag: must be service API keys: `svc_sk_`"),
    ] {
        let (code, error) = run_sidecar(settings);
        assert!(code == Some(2) && error.contains(expected), "{settings:?}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    let (code, error) = run_sidecar(&["sync.ping_seconds=61", "sync.max_staleness_seconds=2", "log.level=loud"]);
    assert_eq!((code, error.lines().count()), (Some(2), 3), "{error}");
    for expected in ["sync.ping_seconds: 61 must be from 1 to 60", "sync.max_staleness_seconds: 2 must be larger"] {
        assert!(error.contains(expected), "{error}");
    }
}
