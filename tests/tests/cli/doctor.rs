//! `countersign doctor`: its checks, their next steps and its exit code.

use crate::control_and_shell;
use countersign_tests::{
    ControlPlane, Shell,
    command_line::{ALL, parts},
    control_plane::text,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The checks, and the exit code.
fn checks(shell: &Shell) -> (Vec<Value>, i32) {
    let (code, checks, _) = parts(&shell.run(&["-o", "json", "doctor"]));
    (serde_json::from_str(&checks).unwrap(), code)
}

/// The exit code, and the statuses of the checks of the agent, the service key and the human token. Asserts that all other checks
/// are `ok`.
fn statuses(shell: &Shell) -> ([String; 3], i32) {
    let (code, checks, _) = parts(&shell.run(&["-o", "json", "doctor", "--login"]));
    let checks: Vec<Value> = serde_json::from_str(&checks).unwrap();
    let mut statuses: BTreeMap<_, _> =
        checks.iter().map(|check| (text(&check["check"]), text(&check["status"]))).collect();
    let credentials = ["agent", "service key", "human token"].map(|check| statuses.remove(check).unwrap());
    let others = ["clock", "control plane", "profile", "signing keys"].map(|check| (check.to_owned(), "ok".to_owned()));
    assert_eq!(statuses, BTreeMap::from(others));
    (credentials, code)
}

#[tokio::test]
async fn checks_are_ok_or_skipped_without_a_problem() {
    let (control, mut shell) = control_and_shell(&["URL", "CA"]).await;
    assert_eq!(statuses(&shell), (["-"; 3].map(str::to_owned), 0));
    shell.register_agent();
    shell.export("COUNTERSIGN_SERVICE_KEY", control.key());
    shell.export("COUNTERSIGN_SERVICE_ID", control.service());
    shell.export("COUNTERSIGN_HUMAN_TOKEN", control.human());
    assert_eq!(statuses(&shell), (["ok"; 3].map(str::to_owned), 0));
    let table = shell.stdout(&["doctor", "--login"]);
    assert!(table.lines().all(|line| line.starts_with("ok ")) && table.contains("can log in"), "{table}");
    assert!(!shell.profile_path("default.tokens.json").exists(), "the tokens of the test login are not stored");
}

#[tokio::test]
async fn failed_checks_have_a_next_step() {
    let mut control = ControlPlane::start_process().await;
    let mut shell = Shell::with_env(&control, &["URL", "CA"]);
    let agent = shell.register_agent();
    control.set_status(&agent, "suspended").await.expect(200);
    shell.export("COUNTERSIGN_SERVICE_KEY", &control.create_key(control.service(), "sync").await);
    shell.export("COUNTERSIGN_HUMAN_TOKEN", "nonsense");
    assert_eq!(statuses(&shell), (["failed", "warning", "failed"].map(str::to_owned), 3));
    let advice = ["Next: for the service key, ", "Next: for the human token, ", "countersign agent reactivate"];
    shell.assert_fails(3, &["doctor", "--login"], &advice);

    shell.export("COUNTERSIGN_SERVICE_KEY", &format!("{}\n", control.key()));
    shell.export("COUNTERSIGN_HUMAN_TOKEN", &format!("{}\nx", control.human()));
    let (code, shown, advice) = parts(&shell.run(&["doctor", "--login"]));
    let text = shown + &advice;
    assert_eq!(code, 3, "the agent is suspended: {text}");
    assert!(text.contains("is one word") && text.contains("a line end") && !text.contains("cannot reach"), "{text}");

    let another = ControlPlane::start_process().await;
    shell.export("COUNTERSIGN_CA", &another.env["CA"]);
    assert_eq!(checks(&shell).1, 4, "a server with an untrusted certificate is unreachable");
    for arguments in [["doctor"].as_slice(), &["agent", "login"]] {
        let expected = format!("check {}: no authority in this file signed", another.env["CA"]);
        shell.assert_fails(4, &[arguments, &["--service", control.service()]].concat(), &[&expected]);
    }
    control.kill();
    shell.export("COUNTERSIGN_CA", &control.env["CA"]);
    let (checks, code) = checks(&shell);
    assert_eq!((checks.len(), &checks[1]["status"], code), (7, &json!("failed"), 4));
    assert!(checks[1]["next"].as_str().unwrap().contains("COUNTERSIGN_URL"), "{checks:?}");
    for check in &checks[2..] {
        assert!(check["status"] == "-" && check["message"].as_str().unwrap().starts_with("not checked"), "{check}");
    }
}

#[tokio::test]
async fn doctor_creates_nothing() {
    let (_control, shell) = control_and_shell(&ALL).await;
    assert_eq!(shell.run(&["doctor"]).status.code(), Some(0));
    assert!(!shell.profile_path("").exists(), "no folder for profiles");
    shell.register_agent();
    let files =
        || std::fs::read_dir(shell.profile_path("")).unwrap().map(|file| file.unwrap().file_name()).collect::<Vec<_>>();
    let before = files();
    let checks = shell.json(&["doctor"]);
    let agent = checks.as_array().unwrap().iter().find(|check| check["check"] == "agent").unwrap();
    assert_eq!((&agent["status"], agent["message"].as_str().unwrap().ends_with("is active")), (&json!("ok"), true));
    assert_eq!(shell.json(&["agent", "show"])["lastSeenAt"], Value::Null, "doctor did not log in");
    assert_eq!(files(), before);
}

#[tokio::test]
async fn doctor_reports_rate_limits_as_warnings() {
    let control = ControlPlane::start_with_default_limits_and(&["limits.management_per_minute=1"]).await;
    let shell = Shell::with_env(&control, &["URL", "CA", "HUMAN_TOKEN"]);
    let [_, _, (checks, code)] = [(); 3].map(|()| checks(&shell));
    let token = checks.iter().find(|check| check["check"] == "human token").unwrap();
    assert_eq!((code, &token["status"]), (0, &json!("warning")), "{checks:?}");
    assert!(token["next"].as_str().unwrap().starts_with("wait "), "{checks:?}");
}
