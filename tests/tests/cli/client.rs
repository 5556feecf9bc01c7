//! The commands of an agent, with flags instead of a profile.

use countersign_tests::{ControlPlane, Shell};
use std::{os::unix::fs::PermissionsExt, process::Command};

/// Creates a key and registers it. Returns the path of the key and the id of the agent.
fn register(shell: &Shell) -> (String, String) {
    let key = shell.path("agent.key").display().to_string();
    shell.stdout(&["agent", "keygen", "--key", &key]);
    let arguments = ["agent", "register", "--key", &key, "--email", "a@example.org", "--name", "Typed"];
    let agent = shell.stdout(&arguments);
    (key, agent)
}

#[tokio::test]
async fn keygen_register_and_login_return_a_valid_token() {
    let control = ControlPlane::start().await;
    let shell = Shell::with_env(&control, &["URL", "CA"]);
    let (key, agent) = register(&shell);
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let token = shell.stdout(&["agent", "login", "--key", &key, &agent]);
    let verified = control.verify(&token).await.expect(200);
    assert_eq!((&verified["agent"]["id"], &verified["agent"]["name"]), (&agent.into(), &"Typed".into()));

    let before = std::fs::read(&key).unwrap();
    assert_eq!(shell.failure(&["agent", "keygen", "--key", &key]).0, 1);
    assert_eq!(std::fs::read(&key).unwrap(), before, "a key is never overwritten");
}

#[tokio::test]
async fn register_reads_keys_of_openssl_in_both_formats() {
    let control = ControlPlane::start().await;
    let shell = Shell::with_env(&control, &["URL", "CA"]);
    let path = |name: &str| shell.path(name).display().to_string();
    let openssl =
        |arguments: &[&str]| assert!(Command::new("openssl").args(arguments).output().unwrap().status.success());
    openssl(&["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", &path("sec1.key")]);
    openssl(&["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", &path("pkcs8.key")]);
    for name in ["sec1.key", "pkcs8.key"] {
        let arguments = ["agent", "register", "--key", &path(name), "--email", "a@example.org", "--name", name];
        assert!(shell.stdout(&arguments).starts_with("agent_"), "{name}");
    }
}

#[tokio::test]
async fn exit_codes_distinguish_wrong_usage_denial_and_outage() {
    let mut control = ControlPlane::start_process().await;
    let shell = Shell::with_env(&control, &["URL", "CA"]);
    let (key, agent) = register(&shell);
    let code = |arguments: &[&str]| shell.failure(arguments).0;
    assert_eq!(code(&["agent", "login", "--profile", "empty"]), 2);
    assert_eq!(code(&["agent", "login", "--key", "/nowhere", &agent]), 1);
    let unknown = ["agent", "login", "--key", &key, "agent_00000000000000000000000000"];
    let (denied, error) = shell.failure(&unknown);
    assert_eq!(denied, 3);
    let mut lines = error.lines();
    assert_eq!(lines.next(), Some("countersign: 404 AGENT_NOT_FOUND: The agent does not exist"));
    assert!(lines.next().is_some_and(|line| line.starts_with("Next: ")), "{error}");
    control.kill();
    assert_eq!(code(&["agent", "login", "--key", &key, &agent]), 4);
}
