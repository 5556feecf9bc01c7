//! The command line `countersign`, as whoever runs an agent types it.

#![expect(clippy::unwrap_used, reason = "a test says what it expects")]

use countersign_tests::{ControlPlane, tools};
use std::{
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

fn countersign(control: &ControlPlane, arguments: &[&str]) -> Output {
    let mut command = Command::new(tools::binary("countersign"));
    command.args(arguments).env_clear();
    command.env("COUNTERSIGN_URL", &control.env["URL"]).env("COUNTERSIGN_CA", &control.env["CA"]);
    command.output().unwrap()
}

fn said(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Makes a key and registers it; gives its path and the agent's id.
fn registered(control: &ControlPlane, folder: &Path) -> (String, String) {
    let key = folder.join("agent.key").display().to_string();
    said(countersign(control, &["agent", "keygen", "--key", &key]));
    let arguments = ["agent", "register", "--key", &key, "--email", "a@example.org", "--name", "Typed"];
    (key.clone(), said(countersign(control, &arguments)))
}

#[tokio::test]
async fn keygen_register_login_gives_a_token_that_verifies() {
    let (control, folder) = (ControlPlane::start().await, tempfile::tempdir().unwrap());
    let (key, agent) = registered(&control, folder.path());
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let token = said(countersign(&control, &["agent", "login", "--key", &key, "--agent", &agent]));
    let verified = control.verify(&token).await.expect(200);
    assert_eq!((&verified["agent"]["id"], &verified["agent"]["name"]), (&agent.into(), &"Typed".into()));

    let kept = std::fs::read(&key).unwrap();
    assert_eq!(countersign(&control, &["agent", "keygen", "--key", &key]).status.code(), Some(1));
    assert_eq!(std::fs::read(&key).unwrap(), kept, "a key is never overwritten");
}

#[tokio::test]
async fn keys_made_by_openssl_are_read_in_both_forms() {
    let (control, folder) = (ControlPlane::start().await, tempfile::tempdir().unwrap());
    let path = |name: &str| folder.path().join(name).display().to_string();
    let openssl =
        |arguments: &[&str]| assert!(Command::new("openssl").args(arguments).output().unwrap().status.success());
    openssl(&["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", &path("sec1.key")]);
    openssl(&["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", &path("pkcs8.key")]);
    for name in ["sec1.key", "pkcs8.key"] {
        let arguments = ["agent", "register", "--key", &path(name), "--email", "a@example.org", "--name", name];
        assert!(said(countersign(&control, &arguments)).starts_with("agent_"), "{name}");
    }
}

#[tokio::test]
async fn exit_codes_tell_wrong_use_denial_and_silence_apart() {
    let (mut control, folder) = (ControlPlane::start().await, tempfile::tempdir().unwrap());
    let (key, agent) = registered(&control, folder.path());
    let code = |control: &ControlPlane, arguments: &[&str]| countersign(control, arguments).status.code();
    assert_eq!(code(&control, &["agent", "login"]), Some(2));
    assert_eq!(code(&control, &["agent", "login", "--key", "/nowhere", "--agent", &agent]), Some(1));
    let unknown = ["agent", "login", "--key", &key, "--agent", "agent_00000000000000000000000000"];
    let denied = countersign(&control, &unknown);
    assert_eq!(denied.status.code(), Some(3));
    let error = String::from_utf8(denied.stderr).unwrap();
    assert_eq!(error.trim(), "countersign: 404 AGENT_NOT_FOUND: The agent does not exist");
    control.kill();
    assert_eq!(code(&control, &["agent", "login", "--key", &key, "--agent", &agent]), Some(4));
}
