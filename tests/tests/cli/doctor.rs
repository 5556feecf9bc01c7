//! `countersign doctor`: its checks, their next steps and its exit code.

#![expect(clippy::unwrap_used, reason = "tests panic on unexpected values")]

use countersign_tests::{ControlPlane, Shell};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The status of each check, and the exit code.
fn statuses(shell: &Shell) -> (BTreeMap<String, String>, Option<i32>) {
    let output = shell.run(&["-o", "json", "doctor", "--login"]);
    let checks: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (checks.iter().map(|check| (text(&check["check"]), text(&check["status"]))).collect(), output.status.code())
}

fn expected(pairs: [(&str, &str); 7]) -> BTreeMap<String, String> {
    pairs.iter().map(|(about, mark)| ((*about).to_owned(), (*mark).to_owned())).collect()
}

#[tokio::test]
async fn checks_are_ok_or_skipped_without_a_problem() {
    let control = ControlPlane::start().await;
    let mut shell = Shell::with_env(&control, &["URL", "CA"]);
    let without_credentials = expected([
        ("profile", "ok"),
        ("control plane", "ok"),
        ("clock", "ok"),
        ("signing keys", "ok"),
        ("agent", "-"),
        ("service key", "-"),
        ("human token", "-"),
    ]);
    assert_eq!(statuses(&shell), (without_credentials.clone(), Some(0)));
    shell.stdout(&["agent", "keygen"]);
    shell.stdout(&["agent", "register", "--email", "a@example.org", "--name", "A"]);
    shell.export("COUNTERSIGN_SERVICE_KEY", control.key());
    shell.export("COUNTERSIGN_SERVICE_ID", control.service());
    shell.export("COUNTERSIGN_HUMAN_TOKEN", control.human());
    let all = without_credentials.keys().map(|about| (about.clone(), "ok".to_owned())).collect();
    assert_eq!(statuses(&shell), (all, Some(0)));
    let table = shell.stdout(&["doctor", "--login"]);
    assert!(table.lines().all(|line| line.starts_with("ok ")) && table.contains("can log in"), "{table}");
    assert!(!shell.profile_path("default.tokens.json").exists(), "the tokens of the test login are not stored");
}

#[tokio::test]
async fn failed_checks_have_a_next_step() {
    let mut control = ControlPlane::start_process().await;
    let mut shell = Shell::with_env(&control, &["URL", "CA"]);
    shell.stdout(&["agent", "keygen"]);
    let agent = shell.stdout(&["agent", "register", "--email", "a@example.org", "--name", "A"]);
    control.set_status(&agent, "suspended").await.expect(200);
    shell.export("COUNTERSIGN_SERVICE_KEY", &control.create_key(control.service(), "sync").await);
    shell.export("COUNTERSIGN_HUMAN_TOKEN", "nonsense");
    let marks = expected([
        ("profile", "ok"),
        ("control plane", "ok"),
        ("clock", "ok"),
        ("signing keys", "ok"),
        ("agent", "failed"),
        ("service key", "warning"),
        ("human token", "failed"),
    ]);
    assert_eq!(statuses(&shell), (marks, Some(3)));
    let output = shell.run(&["doctor", "--login"]);
    let advice = String::from_utf8(output.stderr).unwrap();
    for text in ["Next: for the service key, ", "Next: for the human token, ", "countersign agent reactivate"] {
        assert!(advice.contains(text), "{text}: {advice}");
    }

    shell.export("COUNTERSIGN_SERVICE_KEY", &format!("{}\n", control.key()));
    shell.export("COUNTERSIGN_HUMAN_TOKEN", &format!("{}\nx", control.human()));
    let output = shell.run(&["doctor", "--login"]);
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(output.status.code(), Some(3), "the agent is suspended: {text}");
    assert!(text.contains("is one word") && text.contains("a line end") && !text.contains("cannot reach"), "{text}");

    let another = ControlPlane::start_process().await;
    shell.export("COUNTERSIGN_CA", &another.env["CA"]);
    assert_eq!(statuses(&shell).1, Some(4), "a server with an untrusted certificate is unreachable");
    for arguments in [["doctor"].as_slice(), &["agent", "login"]] {
        let (code, error) = shell.failure(&[arguments, &["--service", control.service()]].concat());
        let expected = format!("check {}: no authority in this file signed", another.env["CA"]);
        assert!(code == 4 && error.contains(&expected), "{arguments:?}: {error}");
    }
    control.kill();
    shell.export("COUNTERSIGN_CA", &control.env["CA"]);
    let output = shell.run(&["-o", "json", "doctor"]);
    let checks: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((checks.len(), &checks[1]["status"], output.status.code()), (7, &json!("failed"), Some(4)));
    assert!(checks[1]["next"].as_str().unwrap().contains("COUNTERSIGN_URL"), "{checks:?}");
    for check in &checks[2..] {
        assert!(check["status"] == "-" && check["message"].as_str().unwrap().starts_with("not checked"), "{check}");
    }
}

#[tokio::test]
async fn doctor_creates_nothing() {
    let control = ControlPlane::start().await;
    let shell = Shell::with_env(&control, &["URL", "CA", "SERVICE_ID", "SERVICE_KEY", "HUMAN_TOKEN"]);
    assert_eq!(shell.run(&["doctor"]).status.code(), Some(0));
    assert!(!shell.profile_path("").exists(), "no folder for profiles");
    shell.stdout(&["agent", "keygen"]);
    shell.stdout(&["agent", "register", "--email", "a@example.org", "--name", "A"]);
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
    let (mut code, mut checks) = (None, Value::Null);
    for _ in 0..3 {
        let output = shell.run(&["-o", "json", "doctor"]);
        (code, checks) = (output.status.code(), serde_json::from_slice(&output.stdout).unwrap());
    }
    let token = checks.as_array().unwrap().iter().find(|check| check["check"] == "human token").unwrap();
    assert_eq!((code, &token["status"]), (Some(0), &json!("warning")), "{checks}");
    assert!(token["next"].as_str().unwrap().starts_with("wait "), "{checks}");
}
