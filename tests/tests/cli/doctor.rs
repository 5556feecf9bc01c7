//! `countersign doctor`, as somebody types it to whom something does not work.

#![expect(clippy::unwrap_used, reason = "a test says what it expects")]

use countersign_tests::{ControlPlane, Shell};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What was found about each thing; and the exit code.
fn found(shell: &Shell) -> (BTreeMap<String, String>, Option<i32>) {
    let output = shell.run(&["-o", "json", "doctor", "--login"]);
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (findings.iter().map(|one| (text(&one["check"]), text(&one["status"]))).collect(), output.status.code())
}

fn expected(pairs: [(&str, &str); 7]) -> BTreeMap<String, String> {
    pairs.iter().map(|(about, mark)| ((*about).to_owned(), (*mark).to_owned())).collect()
}

#[tokio::test]
async fn what_is_well_is_ok_and_what_is_not_there_is_no_failure() {
    let control = ControlPlane::start().await;
    let mut shell = Shell::knowing(&control, &["URL", "CA"]);
    let nothing = expected([
        ("profile", "ok"),
        ("control plane", "ok"),
        ("clock", "ok"),
        ("signing keys", "ok"),
        ("agent", "-"),
        ("service key", "-"),
        ("human token", "-"),
    ]);
    assert_eq!(found(&shell), (nothing.clone(), Some(0)));
    shell.said(&["agent", "keygen"]);
    shell.said(&["agent", "register", "--email", "a@example.org", "--name", "A"]);
    shell.export("COUNTERSIGN_SERVICE_KEY", control.key());
    shell.export("COUNTERSIGN_SERVICE_ID", control.service());
    shell.export("COUNTERSIGN_HUMAN_TOKEN", control.human());
    let all = nothing.keys().map(|about| (about.clone(), "ok".to_owned())).collect();
    assert_eq!(found(&shell), (all, Some(0)));
    let table = shell.said(&["doctor", "--login"]);
    assert!(table.lines().all(|line| line.starts_with("ok ")) && table.contains("can log in"), "{table}");
    assert!(!shell.kept("default.tokens.json").exists(), "the login was for looking only");
}

#[tokio::test]
async fn what_is_wrong_is_named_with_the_next_step() {
    let mut control = ControlPlane::start().await;
    let mut shell = Shell::knowing(&control, &["URL", "CA"]);
    shell.said(&["agent", "keygen"]);
    let agent = shell.said(&["agent", "register", "--email", "a@example.org", "--name", "A"]);
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
    assert_eq!(found(&shell), (marks, Some(3)));
    let output = shell.run(&["doctor", "--login"]);
    let advice = String::from_utf8(output.stderr).unwrap();
    for said in ["Next, for the service key: ", "Next, for the human token: ", "countersign agent reactivate"] {
        assert!(advice.contains(said), "{said}: {advice}");
    }

    shell.export("COUNTERSIGN_SERVICE_KEY", &format!("{}\n", control.key()));
    shell.export("COUNTERSIGN_HUMAN_TOKEN", &format!("{}\nx", control.human()));
    let output = shell.run(&["doctor", "--login"]);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(output.status.code(), Some(3), "the agent is suspended: {said}");
    assert!(said.contains("is one word") && said.contains("a line end") && !said.contains("cannot reach"), "{said}");

    let another = ControlPlane::start().await;
    shell.export("COUNTERSIGN_CA", &another.env["CA"]);
    assert_eq!(found(&shell).1, Some(4), "whom it does not trust it has not reached");
    control.kill();
    shell.export("COUNTERSIGN_CA", &control.env["CA"]);
    let output = shell.run(&["-o", "json", "doctor"]);
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((findings.len(), &findings[1]["status"], output.status.code()), (2, &json!("failed"), Some(4)));
    assert!(findings[1]["next"].as_str().unwrap().contains("COUNTERSIGN_URL"), "{findings:?}");
}
