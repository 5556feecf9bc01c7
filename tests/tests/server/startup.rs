//! Tests of start and stop: what prevents a start, and preserved state.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{
    Agent, ControlPlane, eventually,
    http::{HttpClient, HttpResponse},
    process::free_port,
    tools,
};
use std::{
    os::unix::fs::PermissionsExt,
    process::{Command, Output, Stdio},
};

fn run_control_plane(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(tools::binary("countersign-control-plane"));
    command.args(arguments).envs(environment.iter().copied()).current_dir(std::env::temp_dir());
    command.output().unwrap()
}

/// systemd starts a process with exit code 1 again, and not one with exit code 2.
#[test]
fn exit_code_tells_whether_a_later_start_may_succeed() {
    let folder = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let used = port.local_addr().unwrap();
    let (missing, no_certificate) = (folder.path().join("missing"), folder.path().join("ca.pem"));
    std::fs::write(&no_certificate, "<html>").unwrap();
    let missing = missing.to_str().unwrap();
    let ca = |path: &str| [format!("sync.ca={path}"), "sync.urls=https://localhost:1".to_owned()];
    let keys = || ("COUNTERSIGN_SYNC__KEYS", "svc_sk_a");
    let cases = [
        (vec![format!("listen.admin={used}")], keys(), 1, "listen.admin: cannot listen on 127.0.0.1:"),
        (vec![format!("listen.grpc={used}")], keys(), 1, "listen.grpc: cannot listen on 127.0.0.1:"),
        (vec![format!("listen.grpc=unix:{missing}/a.sock")], keys(), 1, ".sock: No such file or directory"),
        (ca(missing).to_vec(), keys(), 1, missing),
        (ca(no_certificate.to_str().unwrap()).to_vec(), keys(), 2, "contains no PEM certificate"),
        (vec![], ("COUNTERSIGN_SYNC__KEYS_FILE", missing), 1, "cannot be read"),
        (vec![], ("COUNTERSIGN_SYNC__KEYS", "<html>"), 2, "sync.keys"),
    ];
    for (settings, (variable, value), code, expected) in cases {
        let defaults =
            ["listen.grpc=127.0.0.1:0", "listen.admin=127.0.0.1:0", "sync.urls=http://127.0.0.1:1", "log.format=text"];
        let mut command = Command::new(tools::binary("countersign-ext-authz"));
        for setting in defaults.into_iter().chain(settings.iter().map(String::as_str)) {
            command.args(["--set", setting]);
        }
        let output = command.env(variable, value).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(code) && error.contains(expected), "{settings:?}: {error}");
    }
    let variable = ("COUNTERSIGN_SECRETS__MASTER_KEY_FILE", missing);
    let output = run_control_plane(&["--dev"], &[variable]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && error.contains("cannot be read"), "{error}");
}

#[test]
fn unreachable_database_is_reported_without_its_password() {
    let folder = tempfile::tempdir().unwrap();
    let data = format!("data_dir={}", folder.path().display());
    let url = "database.url=postgres://user:hunter2@127.0.0.1:1/x";
    let listen = ["api", "sync", "admin"].map(|port| format!("listen.{port}=127.0.0.1:0"));
    let [api, sync, admin] = listen.each_ref().map(String::as_str);
    let output = run_control_plane(
        &["--dev", "--set", &data, "--set", url, "--set", api, "--set", sync, "--set", admin],
        &[("COUNTERSIGN_LOG__LEVEL", "trace")],
    );
    let message = format!("{}{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("database.url") && message.contains("refused"), "{message}");
    assert!(!message.contains("hunter2"), "{message}");
}

#[tokio::test]
async fn during_the_start_the_admin_port_answers_and_the_others_refuse_connections() {
    let folder = tempfile::tempdir().unwrap();
    // The operating system accepts connections to this port, but nobody answers.
    let silent_database = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let database = format!("database.url=postgres://user@{}/x?sslmode=disable", silent_database.local_addr().unwrap());
    let data = format!("data_dir={}", folder.path().display());
    let ports = [free_port(), free_port(), free_port()];
    let [api, sync, admin] = ports;
    let listen = [("api", api), ("sync", sync), ("admin", admin)];
    let listen = listen.map(|(name, port)| format!("listen.{name}=127.0.0.1:{port}"));
    let settings = [&data, &database].into_iter().chain(&listen).flat_map(|setting| ["--set", setting]);
    let mut command = tokio::process::Command::new(tools::binary("countersign-control-plane"));
    let mut server = command.arg("--dev").args(settings).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    let probes = HttpClient::plain(format!("http://127.0.0.1:{admin}"));
    let is_starting = async || HttpResponse::try_send(probes.request("GET", "/readyz")).await;
    let ready = eventually("the admin port answers", is_starting, String::new).await;
    assert_eq!((ready.status, ready.text("")), (503, "waiting for start\n"));
    assert_eq!(probes.get("/livez").await.status, 200);
    for port in [api, sync] {
        let refused = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    }
    assert_eq!(server.try_wait().unwrap(), None, "the server was starting");
    server.kill().await.unwrap();
}

#[tokio::test]
async fn development_database_is_refused_without_dev_and_with_another_master_key() {
    let mut control = ControlPlane::start_process_with(&["database.url="]).await;
    control.kill();
    let folder = control.folder().display().to_string();
    let data = format!("data_dir={folder}");
    let tls = [format!("tls.certificate={folder}/ca.pem"), format!("tls.private_key={folder}/ca.key")];
    let ports = ["listen.api=127.0.0.1:0", "listen.sync=127.0.0.1:0", "listen.admin=127.0.0.1:0"];
    let flags = |settings: &[&str]| {
        settings.iter().flat_map(|setting| ["--set".to_owned(), (*setting).to_owned()]).collect::<Vec<_>>()
    };
    let production = flags(&[&[data.as_str(), &tls[0], &tls[1], "public_url=https://id.example"], &ports[..]].concat());
    let key = format!("secrets.master_key={}", "ab".repeat(32));
    let other_key = [vec!["--dev".to_owned()], flags(&[&[data.as_str(), &key], &ports[..]].concat())].concat();
    for (arguments, expected) in
        [(production, "created with --dev"), (other_key, "the database uses another master key")]
    {
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let output = run_control_plane(&arguments, &[]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn graceful_stop_and_restart_keep_the_state() {
    let mut control = ControlPlane::start_process().await;
    let agent = Agent::register(&control, "agent").await;
    let token = agent.token().await;
    let keys = control.api.get("/.well-known/jwks.json").await.body;
    assert!(control.terminate().await.success());
    control.restart().await;
    assert_eq!(control.api.get("/.well-known/jwks.json").await.body, keys);
    control.verify(&token).await.expect(200);
    let env = std::fs::read_to_string(control.folder().join("dev.env")).unwrap();
    assert!(env.contains(control.key()) && env.contains(control.service()), "dev.env still contains the first service");
}

#[tokio::test]
async fn secret_files_are_readable_by_the_owner_only() {
    let control = ControlPlane::start_process_with(&["database.url="]).await;
    for name in ["dev.env", "master.key", "operator.key", "ca.key", "countersign.db", "countersign.db-wal"] {
        let mode = control.folder().join(name).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[tokio::test]
async fn signing_key_is_encrypted_at_rest() {
    let control = ControlPlane::start_process_with(&["database.url="]).await;
    let stored = ["countersign.db", "countersign.db-wal"]
        .map(|name| std::fs::read(control.folder().join(name)).unwrap_or_default());
    let stored = stored.concat();
    let contains = |needle: &[u8]| stored.windows(needle.len()).any(|window| window == needle);
    let kid = control.api.get("/.well-known/jwks.json").await.text("/keys/0/kid").to_owned();
    assert!(contains(kid.as_bytes()), "the key id is in the database");
    let pkcs8_of_p256 = "301306072a8648ce3d020106082a8648ce3d030107";
    assert!(!contains(pkcs8_of_p256.as_bytes()) && !contains(&hex::decode(pkcs8_of_p256).unwrap()));
    assert!(!contains(control.key().as_bytes()), "only the hash of an API key is stored");
}
