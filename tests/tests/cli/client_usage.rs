//! Errors of usage, hints and help texts.

use countersign_tests::{ControlPlane, Shell};
use serde_json::Value;

const ALL: [&str; 5] = ["URL", "CA", "SERVICE_ID", "SERVICE_KEY", "HUMAN_TOKEN"];
const REGISTER: [&str; 6] = ["agent", "register", "--email", "a@example.org", "--name", "Typed"];

fn register(shell: &Shell) -> String {
    shell.stdout(&["agent", "keygen"]);
    shell.stdout(&REGISTER)
}

#[test]
fn usage_errors_suggest_no_irreversible_command() {
    let shell = Shell::new();
    for (arguments, suggestion) in [
        (&["role", "delet", "reader"][..], "delete"),
        (&["key", "revok", "x"], "revoke"),
        (&["agent", "revok", "x"], "revoke"),
        (&["webhook", "rotate-secre", "x"], "rotate-secret"),
        (&["role", "delete", "reader", "--ye"], "--yes"),
    ] {
        let (code, error) = shell.failure(arguments);
        let suggested = [format!("'{suggestion}'"), format!("`{suggestion}`")].iter().any(|text| error.contains(text));
        assert!(code == 2 && !suggested, "{arguments:?}: {error}");
    }
    assert!(shell.failure(&["role", "lst"]).1.contains("did you mean `list`?"), "reversible commands are suggested");
    assert!(shell.failure(&["role", "list", "--quie"]).1.contains("did you mean `--quiet`?"));
}

#[test]
fn usage_errors_suggest_similar_names_only() {
    let shell = Shell::new();
    for arguments in [&["completions", "tcsh"][..], &["nope"], &["role", "frobnicate"], &["role", "list", "--nope"]] {
        let (code, error) = shell.failure(arguments);
        assert!(code == 2 && !error.contains("did you mean") && error.contains("\nNext: "), "{arguments:?}: {error}");
    }
    assert!(shell.failure(&["completions", "bsh"]).1.contains("did you mean `bash`?"));
}

#[test]
fn usage_errors_have_the_form_of_other_errors_and_a_usage_line() {
    let shell = Shell::new();
    for (arguments, usage) in [
        (&["role", "delete"][..], "countersign role delete [OPTIONS] <ROLE>"),
        (&["role", "lst"], "countersign role [OPTIONS] <COMMAND>"),
        (
            &["--profile", "agent", "role", "assign", "reader", "--bogus"],
            "countersign role assign [OPTIONS] <ROLE> <AGENT>",
        ),
        (&["audit", "list", "--since", "soon"], "countersign audit list [OPTIONS]"),
        (&["role", "list", "--service", "x"], "countersign role list [OPTIONS]"),
        (&["bogus"], "countersign <COMMAND> <SUBCOMMAND> [OPTIONS]"),
    ] {
        let (code, error) = shell.failure(arguments);
        let is_complete = error.starts_with("countersign: ") && error.contains(&format!("\nUsage: {usage}\nNext: "));
        assert!(code == 2 && is_complete, "{arguments:?}: {error}");
        assert!(!error.contains("error:") && !error.contains("tip:"), "{arguments:?}: {error}");
        let (_, json) = shell.failure(&[&["-o", "json"], arguments].concat());
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["error"]["usage"], usage, "{json}");
        assert!(json["error"]["next"].is_string(), "{json}");
        let (_, quiet) = shell.failure(&[arguments, &["--quiet"]].concat());
        assert!(!quiet.contains("Usage") && !quiet.contains("Next"), "{quiet}");
    }
}

#[test]
fn wait_with_a_separate_duration_has_a_hint() {
    let agent = "agent_01m86cc6jtfttacz06nf9nwqk6";
    let (code, error) = Shell::new().failure(&["role", "revoke", "reader", agent, "--wait", "5m"]);
    assert!(code == 2 && error.contains("\nNext: write --wait=5m"), "{error}");
}

#[test]
fn options_before_the_verb_have_a_hint() {
    for arguments in [
        &["--server", "https://localhost:8443", "role", "list"][..],
        &["--server=https://localhost:8443", "role", "list"],
        &["role", "--server", "https://localhost:8443", "list"],
    ] {
        let (code, error) = Shell::new().failure(arguments);
        assert!(code == 2 && error.contains("put `--server` after the verb"), "{arguments:?}: {error}");
    }
}

#[test]
fn exec_without_separator_has_a_hint() {
    for arguments in [&["agent", "exec", "echo", "hi"][..], &["agent", "exec", "./job.sh"]] {
        let (code, error) = Shell::new().failure(arguments);
        assert!(code == 2 && error.contains("put `--` before the command"), "{arguments:?}: {error}");
    }
}

#[tokio::test]
async fn hints_contain_the_ids_of_the_command() {
    let control = ControlPlane::start().await;
    let shell = Shell::with_env(&control, &ALL);
    let agent = register(&shell);
    let note = String::from_utf8(shell.run(&["role", "create", "reader"]).stderr).unwrap();
    assert!(note.contains(&format!("countersign role assign reader {agent}")), "{note}");
    control.set_status(&agent, "suspended").await.expect(200);
    let expected = format!("countersign agent reactivate {agent}");
    let (code, error) = shell.failure(&["agent", "login"]);
    assert!(code == 3 && error.contains(&expected), "{error}");
    let (_, error) = shell.failure(&["-o", "json", "agent", "login"]);
    let error: Value = serde_json::from_str(&error).unwrap();
    assert!(error["error"]["next"].as_str().unwrap().contains(&expected), "{error}");
    let checks = shell.run(&["-o", "json", "doctor"]);
    assert!(String::from_utf8(checks.stdout).unwrap().contains(&expected));
    let (_, error) =
        shell.failure(&["webhook", "replay", "wh_00000000000000000000000000", "--event", "x", "--deployment"]);
    assert!(error.contains("countersign webhook deliveries --deployment wh_00000000000000000000000000"), "{error}");
    let webhook = "wh_00000000000000000000000000";
    let (_, error) = shell.failure(&["webhook", "replay", webhook, "--event", "nope"]);
    assert!(error.contains(&format!("countersign webhook deliveries {webhook}")), "{error}");
}

#[tokio::test]
async fn validation_errors_name_the_arguments() {
    let control = ControlPlane::start().await;
    let shell = Shell::with_env(&control, &ALL);
    let agent = register(&shell);
    shell.stdout(&["role", "create", "reader"]);
    let webhook = shell.stdout(&["webhook", "create", "http://127.0.0.1:9999/", "--out", "secret"]);
    for (arguments, named) in [
        (&["role", "assign", "reader", &agent, "--expires", "2000-01-01T00:00:00Z"][..], "correct --expires"),
        (&["role", "create", "", "--permission", ""], "correct NAME and --permission"),
        (&["webhook", "create", "http://receiver.example/"], "correct URL"),
        (&["webhook", "change", &webhook, "--target", "nonsense"], "correct --target"),
    ] {
        let (code, error) = shell.failure(arguments);
        assert!(code == 2 && error.trim_end().ends_with(&format!("\nNext: {named}")), "{arguments:?}: {error}");
    }
}

#[test]
fn help_texts_are_wrapped_once() {
    let shell = Shell::new();
    for (arguments, sentence) in [
        (
            &["agent", "register", "--help"][..],
            "Registering the same again returns the same agent, in its current status.",
        ),
        (&["doctor", "--help"], "Exit code 0 if no check failed, otherwise that of the first failure."),
        (&["key", "create", "--help"], "next to COUNTERSIGN_SYNC__URLS (the sync port"),
        (&["--help"], "which override the profile (~/.config/countersign/NAME.toml)."),
    ] {
        let mut command = shell.command(arguments);
        let wide = command.env("COLUMNS", "1000").output().unwrap();
        let wide = String::from_utf8(wide.stdout).unwrap();
        assert!(wide.contains(sentence), "{arguments:?}: {wide}");
    }
}

#[test]
fn help_groups_the_commands_and_has_examples() {
    let help = Shell::new().stdout(&["--help"]);
    for text in
        ["Agent commands:\n  agent ", "Service commands:\n  service ", "Examples:", "Exit codes:", "Global options:"]
    {
        assert!(help.contains(text), "{text}: {help}");
    }
}

#[tokio::test]
async fn api_keys_of_another_service_have_a_hint() {
    let control = ControlPlane::start().await;
    let mut shell = Shell::with_env(&control, &["URL", "CA", "SERVICE_KEY", "HUMAN_TOKEN"]);
    let created = shell.run(&["service", "create", "Shop"]);
    let warning = String::from_utf8(created.stderr).unwrap();
    assert!(warning.contains("warning: COUNTERSIGN_SERVICE_KEY is set"), "{warning}");
    let service = String::from_utf8(created.stdout).unwrap().trim().to_owned();
    let (code, error) = shell.failure(&["role", "list"]);
    let expected = format!(
        "\nNext: the API key belongs to {}: unset COUNTERSIGN_SERVICE_KEY, or set it to an API key of {service}",
        control.service()
    );
    assert!(code == 3 && error.contains(&expected), "{error}");
    shell.unset("COUNTERSIGN_SERVICE_KEY");
    assert_eq!(shell.stdout(&["role", "list"]).lines().count(), 1);
}
